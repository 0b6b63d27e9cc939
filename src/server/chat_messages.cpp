#include "server/chat_messages.h"

#include <algorithm>
#include <array>
#include <utility>

#include "server/chat_request.h"

namespace tetrad {

using Json = nlohmann::ordered_json;

namespace {

bool is_text_part(std::string_view type) {
  static constexpr std::array<std::string_view, 3> kTypes = {"text", "input_text", "output_text"};
  return std::find(kTypes.begin(), kTypes.end(), type) != kTypes.end();
}

// A part's text; those that hold reasoning go to `reasoning`, if the message may have any.
std::string part_text(const Json& part, const std::string& path, std::string* reasoning) {
  RequestFields fields(part, path);
  const std::string type = fields.required_text("type");
  if (is_text_part(type)) return fields.required_text("text");
  if (reasoning != nullptr && type == "refusal") return fields.required_text("refusal");
  if (reasoning != nullptr && (type == "thinking" || type == "reasoning")) {
    *reasoning += fields.required_text(type == "thinking" ? "thinking" : "text");
    return {};
  }
  refuse(path + ".type", "{}.type: parts of type {} are not supported, only text", path, Json(type.substr(0, 60)).dump());
}

std::string read_content(RequestFields& message, bool required, std::string* reasoning) {
  const Json* content = message.find("content");
  const std::string path = message.path_of("content");
  if (content == nullptr) {
    if (required) refuse(path, "{}: missing: text or a list of parts is required", path);
    return {};
  }
  if (content->is_string()) return content->get<std::string>();
  if (!content->is_array()) refuse(path, "{}: expected a string or a list of parts, got {}", path, described(*content));
  message.list("content", kMaxContentParts);
  std::string text;
  for (std::size_t i = 0; i < content->size(); ++i) text += part_text((*content)[i], fmt::format("{}[{}]", path, i), reasoning);
  return text;
}

Json read_tool_calls(RequestFields& message) {
  const Json* given = message.list("tool_calls", kMaxCallsOfMessage);
  if (given == nullptr || given->empty()) return nullptr;
  Json calls = Json::array();
  for (std::size_t i = 0; i < given->size(); ++i) {
    const std::string path = fmt::format("{}[{}]", message.path_of("tool_calls"), i);
    RequestFields call((*given)[i], path);
    const std::string type = call.text("type").value_or("function");
    if (type != "function")
      refuse(path + ".type", "{}.type: only \"function\" is supported, got {}", path, Json(type.substr(0, 60)).dump());
    const Json* function = call.object("function");
    if (function == nullptr) refuse(path + ".function", "{}.function: missing: a tool call names its function", path);
    RequestFields function_fields(*function, path + ".function");
    const std::string name = function_fields.required_text("name");
    check_function_name(name, path + ".function.name");
    calls.push_back(tool_call_json(call.text("id").value_or(""), name,
                                   call_arguments(function_fields.find("arguments"), path + ".function.arguments")));
  }
  return calls;
}

BuiltMessage read_message(const Json& given, const std::string& path, std::set<std::string>& unknown) {
  RequestFields fields(given, path);
  BuiltMessage message;
  message.path = path;
  message.role = fields.required_text("role");
  if (message.role == "developer") message.role = "system";
  if (message.role == "system" || message.role == "user") {
    message.content = read_content(fields, true, nullptr);
  } else if (message.role == "assistant") {
    // One field has three names among clients; the first that holds something counts.
    for (const char* name : {"reasoning_content", "reasoning", "thinking"}) {
      const std::string reasoning = fields.text(name).value_or("");
      if (message.reasoning.empty()) message.reasoning = reasoning;
    }
    std::string parts_reasoning;
    message.content = read_content(fields, false, &parts_reasoning);
    if (message.reasoning.empty()) message.reasoning = parts_reasoning;
    message.tool_calls = read_tool_calls(fields);
    fields.refuse_field("function_call", "calls are given as tool_calls");
    fields.refuse_field("audio", "only text is supported");
    if (const auto refusal = fields.text("refusal"); refusal && message.content.empty()) message.content = *refusal;
    fields.accept_field("annotations");
  } else if (message.role == "tool") {
    message.content = read_content(fields, false, nullptr);
    message.tool_call_id = fields.text("tool_call_id").value_or("");
    fields.accept_field("name");  // of the function, which the call states too
  } else {
    refuse(path + ".role", "{}.role: expected system, developer, user, assistant or tool, got {}", path,
           Json(message.role.substr(0, 60)).dump());
  }
  for (const std::string& field : fields.unknown()) {
    if (unknown.size() < kMaxRequestFields) unknown.insert("messages[]" + field.substr(path.size()));
  }
  return message;
}

}  // namespace

void read_chat_messages(RequestFields& body, ConversationBuilder& conversation, std::vector<std::string>& unknown) {
  const Json* messages = body.list("messages", kMaxMessages);
  if (messages == nullptr) refuse("messages", "messages: missing: a list of messages is required");
  if (messages->empty()) refuse("messages", "messages: empty: at least one message is required");
  std::set<std::string> names;
  for (std::size_t i = 0; i < messages->size(); ++i) conversation.add(read_message((*messages)[i], fmt::format("messages[{}]", i), names));
  unknown.insert(unknown.end(), names.begin(), names.end());
}

}  // namespace tetrad
