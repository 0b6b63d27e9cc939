#include "cli/load_stream.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace tetrad::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kMaxEventBytes = std::size_t{1} << 20;

// The text of a member that may be absent or null.
std::string_view text_at(const Json& object, const char* name) {
  const auto found = object.find(name);
  if (found == object.end() || !found->is_string()) return {};
  return found->get_ref<const std::string&>();
}

int count_at(const Json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_number_integer() ? found->get<int>() : 0;
}

void read_usage(const Json& json, LoadAnswer& answer) {
  const auto usage = json.find("usage");
  if (usage == json.end() || !usage->is_object()) return;
  answer.prompt_tokens = count_at(*usage, "prompt_tokens");
  answer.completion_tokens = count_at(*usage, "completion_tokens");
  const auto details = usage->find("prompt_tokens_details");
  if (details != usage->end() && details->is_object()) answer.cached_tokens = count_at(*details, "cached_tokens");
}

std::string error_kind(const Json& json, int status) {
  const auto error = json.find("error");
  if (error != json.end() && error->is_object())
    for (const char* name : {"code", "type"})
      if (const std::string_view kind = text_at(*error, name); !kind.empty()) return std::string(kind);
  return status > 0 ? fmt::format("http_{}", status) : "stream_error";
}

// Whether a choice of a chunk brings a piece of an answer; content is added to `text`.
bool brings_tokens(const Json& choice, std::string& text) {
  if (!choice.is_object()) return false;
  const auto delta = choice.find("delta");
  if (delta == choice.end() || !delta->is_object()) {
    const std::string_view piece = text_at(choice, "text");
    text += piece;
    return !piece.empty();
  }
  const std::string_view content = text_at(*delta, "content");
  text += content;
  if (!content.empty() || !text_at(*delta, "reasoning_content").empty() || !text_at(*delta, "reasoning").empty()) return true;
  const auto calls = delta->find("tool_calls");
  return calls != delta->end() && calls->is_array() && !calls->empty();
}

}  // namespace

void LoadStream::feed(std::string_view bytes, double now, LoadAnswer& answer) {
  pending_ += bytes;
  std::size_t start = 0;
  for (std::size_t end; (end = pending_.find('\n', start)) != std::string::npos; start = end + 1) {
    std::string_view line = std::string_view(pending_).substr(start, end - start);
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (!line.starts_with("data:")) continue;  // comments, names of events, the blank line between
    line.remove_prefix(5);
    if (line.starts_with(' ')) line.remove_prefix(1);
    take_event(line, now, answer);
  }
  pending_.erase(0, start);
  if (pending_.size() > kMaxEventBytes && answer.error.empty()) answer.error = "stream_error";
}

void LoadStream::take_event(std::string_view data, double now, LoadAnswer& answer) {
  if (data == "[DONE]") {
    done_ = true;
    return;
  }
  const Json json = Json::parse(data, nullptr, false);
  if (!json.is_object() || json.contains("error")) {
    answer.error = json.is_object() ? error_kind(json, 0) : "stream_error";
    return;
  }
  read_usage(json, answer);
  const auto choices = json.find("choices");
  if (choices == json.end() || !choices->is_array()) return;
  bool tokens = false;
  for (const Json& choice : *choices) tokens = brings_tokens(choice, answer.text) || tokens;
  if (!tokens) return;
  if (answer.first_token == 0)
    answer.first_token = now;
  else
    answer.gaps.push_back(now - answer.last_token);
  answer.last_token = now;
}

void read_load_body(LoadAnswer& answer) {
  const Json json = Json::parse(answer.body, nullptr, false);
  if (answer.status != 200) {
    answer.error = json.is_object() ? error_kind(json, answer.status) : fmt::format("http_{}", answer.status);
    return;
  }
  if (json.is_object()) read_usage(json, answer);
}

}  // namespace tetrad::cli
