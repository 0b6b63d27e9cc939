#include "server/conversation_builder.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "server/answer_parser.h"
#include "server/request_json.h"
#include "server/tool_set.h"
#include "text/json_bounded.h"

namespace tetrad {

using Json = nlohmann::ordered_json;

namespace {

constexpr std::string_view kSpace = " \t\r\n";

void split_reasoning(BuiltMessage& message) {
  const std::size_t start = std::min(message.content.find_first_not_of(kSpace), message.content.size());
  if (!message.reasoning.empty() || message.content.compare(start, kThink.size(), kThink) != 0) return;
  const std::size_t end = message.content.find(kEndThink, start);
  if (end == std::string::npos) return;
  message.reasoning = message.content.substr(start + kThink.size(), end - start - kThink.size());
  message.content.erase(0, end + kEndThink.size());
}

bool merge_system_messages(std::vector<BuiltMessage>& messages, bool allowed) {
  const auto is_system = [](const BuiltMessage& message) { return message.role == "system"; };
  const auto misplaced = messages.empty() ? messages.end() : std::find_if(messages.begin() + 1, messages.end(), is_system);
  if (misplaced == messages.end()) return false;
  if (!allowed) refuse(misplaced->path, "{}: a system or developer message must be the first, and the only one", misplaced->path);
  BuiltMessage merged{.role = "system", .content = {}, .reasoning = {}, .tool_call_id = {}, .path = {}};
  std::vector<BuiltMessage> others;
  for (BuiltMessage& message : messages) {
    if (!is_system(message)) {
      others.push_back(std::move(message));
      continue;
    }
    if (!merged.content.empty() && !message.content.empty()) merged.content += "\n\n";
    merged.content += message.content;
  }
  messages.clear();
  messages.push_back(std::move(merged));
  std::move(others.begin(), others.end(), std::back_inserter(messages));
  return true;
}

void order_tool_results(std::vector<BuiltMessage>& messages) {
  for (std::size_t i = 0; i + 1 < messages.size(); ++i) {
    if (!messages[i].tool_calls.is_array()) continue;
    std::map<std::string, std::size_t, std::less<>> order;
    for (const Json& call : messages[i].tool_calls)
      if (const auto id = call.find("id"); id != call.end()) order.emplace(id->get<std::string>(), order.size());
    const auto first = messages.begin() + static_cast<std::ptrdiff_t>(i) + 1;
    const auto end = std::find_if(first, messages.end(), [](const BuiltMessage& message) { return message.role != "tool"; });
    if (!std::all_of(first, end, [&](const BuiltMessage& message) { return order.count(message.tool_call_id) > 0; })) continue;
    std::stable_sort(first, end, [&](const BuiltMessage& a, const BuiltMessage& b) {
      return order.find(a.tool_call_id)->second < order.find(b.tool_call_id)->second;
    });
  }
}

}  // namespace

void ConversationBuilder::add(BuiltMessage message) {
  if (message.role == "assistant") split_reasoning(message);
  messages_.push_back(std::move(message));
}

Json ConversationBuilder::finish(bool merge_system, bool& merged) {
  merged = merge_system_messages(messages_, merge_system);
  order_tool_results(messages_);
  Json list = Json::array();
  for (BuiltMessage& message : messages_) {
    Json built = {{"role", message.role}, {"content", std::move(message.content)}};
    if (!message.reasoning.empty()) built["reasoning_content"] = std::move(message.reasoning);
    if (message.tool_calls.is_array() && !message.tool_calls.empty()) built["tool_calls"] = std::move(message.tool_calls);
    if (!message.tool_call_id.empty()) built["tool_call_id"] = std::move(message.tool_call_id);
    list.push_back(std::move(built));
  }
  messages_.clear();
  return list;
}

Json call_arguments(const Json* arguments, const std::string& path) {
  if (arguments == nullptr) return Json::object();
  if (arguments->is_object()) return *arguments;
  if (!arguments->is_string()) refuse(path, "{}: expected an object or the JSON text of one, got {}", path, described(*arguments));
  const std::string& text = arguments->get_ref<const std::string&>();
  if (text.find_first_not_of(kSpace) == std::string::npos) return Json::object();
  Json parsed;
  try {
    parsed = parse_json_bounded(text, path, kMaxRequestNesting);
  } catch (const InputError& error) {
    throw RequestError(path, error.what());
  }
  if (!parsed.is_object()) refuse(path, "{}: expected the JSON text of an object, got {}", path, described(parsed));
  return parsed;
}

Json tool_call_json(const std::string& id, const std::string& name, Json arguments) {
  Json call = Json::object();
  if (!id.empty()) call["id"] = id;
  call["type"] = "function";
  call["function"] = {{"name", name}, {"arguments", std::move(arguments)}};
  return call;
}

void check_function_name(const std::string& name, const std::string& path) {
  if (name.empty()) refuse(path, "{}: empty: a function has a name", path);
  if (name.size() > kMaxToolName) refuse(path, "{}: at most {} bytes long, got {}", path, kMaxToolName, name.size());
  const auto is_mark = [](char c) { return c == '<' || c == '>' || static_cast<unsigned char>(c) <= 0x20 || c == 0x7F; };
  if (std::any_of(name.begin(), name.end(), is_mark))
    refuse(path, "{}: a name has neither < and > nor spaces and control characters", path);
}

}  // namespace tetrad
