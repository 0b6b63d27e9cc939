#include "server/logprob_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <string_view>

#include "server/tool_set.h"
#include "text/unicode.h"

namespace tetrad {
namespace {

std::string number_text(float logprob) {
  std::string text = fmt::format("{}", finite_logprob(logprob));
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

void append_string(std::string& out, std::string_view text) {
  out += '"';
  append_json_escaped(out, text);
  out += '"';
}

std::string bytes_of(int id, const TokenBytes& token_bytes) { return token_bytes ? token_bytes(id) : std::string(); }

std::size_t num_shown(const SampledToken& sampled, int num_top) { return std::min(sampled.top.size(), static_cast<std::size_t>(num_top)); }

void separate(std::string& list) {
  if (!list.empty()) list += ',';
}

}  // namespace

double finite_logprob(float logprob) {
  constexpr double kLowest = -9999.0;
  return std::isfinite(logprob) ? static_cast<double>(logprob) : kLowest;
}

std::string token_text(const std::string& bytes) {
  if (text::find_invalid_utf8(bytes) == std::string::npos) return bytes;
  std::string spelled = "bytes:";
  for (const char byte : bytes) spelled += fmt::format("\\x{:02x}", static_cast<unsigned>(static_cast<unsigned char>(byte)));
  return spelled;
}

int num_characters(std::string_view text) {
  return static_cast<int>(std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

void CompletionLogprobs::add_token(const std::string& bytes) {
  for (std::string* list : {&tokens_, &logprobs_, &top_, &offsets_}) separate(*list);
  append_string(tokens_, token_text(bytes));
  fmt::format_to(std::back_inserter(offsets_), "{}", offset_);
  offset_ += num_characters(bytes);
}

void CompletionLogprobs::add_unscored(int id, const TokenBytes& token_bytes) {
  add_token(bytes_of(id, token_bytes));
  logprobs_ += "null";
  top_ += "null";
}

void CompletionLogprobs::add(const SampledToken& sampled, int num_top, const TokenBytes& token_bytes) {
  add_token(bytes_of(sampled.id, token_bytes));
  logprobs_ += number_text(sampled.logprob->logprob);
  std::vector<std::string> names;
  const auto add_top = [&](const TokenLogprob& token) {
    std::string name = token_text(bytes_of(token.id, token_bytes));
    if (std::find(names.begin(), names.end(), name) != names.end()) return;
    if (!names.empty()) top_ += ',';
    append_string(top_, name);
    top_ += ':';
    top_ += number_text(token.logprob);
    names.push_back(std::move(name));
  };
  top_ += '{';
  for (std::size_t i = 0; i < num_shown(sampled, num_top); ++i) add_top(sampled.top[i]);
  add_top({sampled.id, sampled.logprob->logprob});
  top_ += '}';
}

std::string CompletionLogprobs::text() const {
  return fmt::format(R"({{"tokens":[{}],"token_logprobs":[{}],"top_logprobs":[{}],"text_offset":[{}]}})", tokens_, logprobs_, top_,
                     offsets_);
}

void CompletionLogprobs::clear() {
  for (std::string* list : {&tokens_, &logprobs_, &top_, &offsets_}) list->clear();
}

void PromptLogprobs::add(const std::vector<SampledToken>& tokens, int num_top, const TokenBytes& token_bytes) {
  for (const SampledToken& sampled : tokens) {
    const auto add_one = [&](int id, float logprob, const std::string& rank) {
      fmt::format_to(std::back_inserter(entries_), R"("{}":{{"logprob":{},"rank":{},"decoded_token":)", id, number_text(logprob), rank);
      append_string(entries_, token_text(bytes_of(id, token_bytes)));
      entries_ += '}';
    };
    const auto same = [&](const TokenLogprob& other) { return other.id == sampled.id; };
    const auto own = std::find_if(sampled.top.begin(), sampled.top.end(), same);
    entries_ += ",{";
    add_one(sampled.id, sampled.logprob->logprob, own == sampled.top.end() ? "null" : fmt::format("{}", own - sampled.top.begin() + 1));
    for (std::size_t i = 0; i < num_shown(sampled, num_top); ++i) {
      if (same(sampled.top[i])) continue;
      entries_ += ',';
      add_one(sampled.top[i].id, sampled.top[i].logprob, fmt::format("{}", i + 1));
    }
    entries_ += '}';
  }
}

}  // namespace tetrad
