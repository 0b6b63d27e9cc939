// The shape of a conversation (chat_template.h, conversation_variables).
#include <algorithm>
#include <array>
#include <string>

#include "text/chat_template.h"
#include "text/json_bounded.h"

namespace tetrad {

namespace {

using Json = nlohmann::ordered_json;

[[noreturn]] void refuse(std::string_view path, std::string_view wanted, const Json& got) {
  fail<InputError>("{}: expected {}, got {}", path, wanted, got.type_name());
}

void check_text(const Json& value, const std::string& path) {
  if (!value.is_string()) refuse(path, "a string", value);
}

void check_content(const Json& content, const std::string& path) {
  if (content.is_string() || content.is_null()) return;
  if (!content.is_array()) refuse(path, "a string, null or a list of parts", content);
  for (std::size_t i = 0; i < content.size(); ++i) {
    const std::string part = fmt::format("{}[{}]", path, i);
    if (!content[i].is_object()) refuse(part, "an object", content[i]);
    if (const auto type = content[i].find("type"); type != content[i].end()) check_text(*type, part + ".type");
    if (const auto text = content[i].find("text"); text != content[i].end()) check_text(*text, part + ".text");
  }
}

// Arguments arrive as an object or, the usual form on the wire, as JSON text of one; a template needs the object.
void normalise_arguments(Json& arguments, const std::string& path) {
  if (arguments.is_object() || arguments.is_null()) return;
  if (!arguments.is_string()) refuse(path, "an object or the JSON text of one", arguments);
  const std::string text = arguments.get<std::string>();
  if (text.find_first_not_of(" \t\r\n") == std::string::npos) {
    arguments = Json::object();
    return;
  }
  Json parsed = parse_json_bounded(text, path);
  if (!parsed.is_object()) refuse(path, "the JSON text of an object", parsed);
  arguments = std::move(parsed);
}

void normalise_tool_calls(Json& calls, const std::string& path) {
  if (calls.is_null()) return;
  if (!calls.is_array()) refuse(path, "a list of tool calls", calls);
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const std::string entry_path = fmt::format("{}[{}]", path, i);
    Json& entry = calls[i];
    if (!entry.is_object()) refuse(entry_path, "an object", entry);
    const bool wrapped = entry.contains("function");
    const std::string call_path = wrapped ? entry_path + ".function" : entry_path;
    Json& call = wrapped ? entry["function"] : entry;
    if (!call.is_object()) refuse(call_path, "an object", call);
    const auto name = call.find("name");
    if (name == call.end()) fail<InputError>("{}.name: missing: a tool call names its function", call_path);
    check_text(*name, call_path + ".name");
    if (const auto arguments = call.find("arguments"); arguments != call.end()) normalise_arguments(*arguments, call_path + ".arguments");
  }
}

void normalise_message(Json& message, const std::string& path) {
  if (!message.is_object()) refuse(path, "an object", message);
  const auto role = message.find("role");
  if (role == message.end()) fail<InputError>("{}.role: missing: every message has a role", path);
  check_text(*role, path + ".role");
  if (const auto content = message.find("content"); content != message.end()) check_content(*content, path + ".content");
  const auto reasoning = message.find("reasoning_content");
  if (reasoning != message.end() && !reasoning->is_null()) check_text(*reasoning, path + ".reasoning_content");
  if (const auto calls = message.find("tool_calls"); calls != message.end()) normalise_tool_calls(*calls, path + ".tool_calls");
}

void check_tools(const Json& tools) {
  if (tools.is_null()) return;
  if (!tools.is_array()) refuse("tools", "a list or null", tools);
  for (std::size_t i = 0; i < tools.size(); ++i) {
    const std::string path = fmt::format("tools[{}]", i);
    if (!tools[i].is_object()) refuse(path, "an object", tools[i]);
    const auto function = tools[i].find("function");
    if (function != tools[i].end() && !function->is_object()) refuse(path + ".function", "an object", *function);
    const bool wrapped = function != tools[i].end();
    const Json& stated = wrapped ? *function : tools[i];
    const std::string stated_path = wrapped ? path + ".function" : path;
    const auto name = stated.find("name");
    if (name == stated.end()) fail<InputError>("{}.name: missing: a tool has a name", stated_path);
    check_text(*name, stated_path + ".name");
  }
}

constexpr std::size_t kMostFlags = 256;  // an object that keeps order finds a key by looking at all of them
constexpr std::array<std::string_view, 3> kTopLevel = {"messages", "tools", "flags"};

}  // namespace

nlohmann::ordered_json conversation_variables(const nlohmann::ordered_json& conversation) {
  if (!conversation.is_object()) refuse("conversation", "an object with \"messages\"", conversation);
  for (const auto& [key, value] : conversation.items()) {
    if (std::find(kTopLevel.begin(), kTopLevel.end(), key) == kTopLevel.end()) {
      fail<InputError>("{}: unknown key; a conversation has messages, tools and flags", key);
    }
  }
  const auto messages = conversation.find("messages");
  if (messages == conversation.end()) fail<InputError>("messages: missing: a conversation has a list of messages");
  if (!messages->is_array()) refuse("messages", "a list", *messages);
  Json variables = Json::object();
  Json& checked = variables["messages"] = *messages;
  for (std::size_t i = 0; i < checked.size(); ++i) normalise_message(checked[i], fmt::format("messages[{}]", i));
  if (const auto tools = conversation.find("tools"); tools != conversation.end()) {
    check_tools(*tools);
    variables["tools"] = *tools;
  }
  const auto flags = conversation.find("flags");
  if (flags == conversation.end() || flags->is_null()) return variables;
  if (!flags->is_object()) refuse("flags", "an object", *flags);
  if (flags->size() > kMostFlags) fail<InputError>("flags: {} of them, at most {}", flags->size(), kMostFlags);
  for (const auto& [key, value] : flags->items()) {
    if (key == "messages" || key == "tools") fail<InputError>("flags.{}: this variable is given at the top level", key);
    variables[key] = value;
  }
  return variables;
}

}  // namespace tetrad
