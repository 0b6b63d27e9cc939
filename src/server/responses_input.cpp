#include "server/responses_input.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "server/chat_request.h"
#include "server/responses_request.h"

namespace tetrad {

using Json = nlohmann::ordered_json;

namespace {

constexpr std::string_view kBetweenParts = "\n\n";

// Text, or a list of parts of the types named.
std::string read_parts(const Json& content, const std::string& path, std::initializer_list<std::string_view> types) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) refuse(path, "{}: expected a string or a list of parts, got {}", path, described(content));
  if (content.size() > kMaxContentParts) refuse(path, "{}: at most {} parts, got {}", path, kMaxContentParts, content.size());
  std::string text;
  for (std::size_t i = 0; i < content.size(); ++i) {
    const std::string part_path = fmt::format("{}[{}]", path, i);
    RequestFields part(content[i], part_path);
    const std::string type = part.required_text("type");
    if (std::find(types.begin(), types.end(), type) == types.end())
      refuse(part_path + ".type", "{}.type: parts of type {} are not supported here, only text", part_path, described(Json(type)));
    text += part.required_text(type == "refusal" ? "refusal" : "text");
  }
  return text;
}

// Gathers what an assistant said in a row, and knows which calls await a result.
class InputReader {
 public:
  InputReader(ConversationBuilder& conversation, std::set<std::string>& unknown) : conversation_(conversation), unknown_(unknown) {}

  void add(const Json& item, const std::string& path) {
    RequestFields fields(item, path);
    const std::string type = fields.text("type").value_or("message");
    fields.accept_field("id");
    const bool cut_off = fields.text("status") == "incomplete";
    if (type == "message")
      add_message(fields, path);
    else if (type == "reasoning")
      add_reasoning(fields, path);
    else if (type == "function_call" || type == "custom_tool_call")
      add_call(fields, path, type == "custom_tool_call", cut_off);
    else if (type == "function_call_output" || type == "custom_tool_call_output")
      add_result(fields, path);
    else if (type == "item_reference")
      refuse(path + ".type", "{}.type: items are not stored, so none can be referred to: send the item itself", path);
    else
      refuse(path + ".type", "{}.type: items of type {} are not supported", path, described(Json(type)));
  }

  void finish() {
    if (!assistant_) return;
    conversation_.add(std::move(*assistant_));
    assistant_.reset();
  }

 private:
  BuiltMessage& assistant(const std::string& path) {
    if (!assistant_) {
      assistant_.emplace();
      assistant_->role = "assistant";
      assistant_->path = path;
    }
    return *assistant_;
  }

  void add_message(RequestFields& fields, const std::string& path) {
    std::string role = fields.required_text("role");
    const Json* content = fields.find("content");
    if (content == nullptr) refuse(path + ".content", "{}.content: missing: text or a list of parts is required", path);
    fields.accept_field("phase");
    for (const std::string& field : fields.unknown())
      if (unknown_.size() < kMaxRequestFields) unknown_.insert("input[]" + field.substr(path.size()));
    if (role == "assistant") {
      append(assistant(path).content, read_parts(*content, path + ".content", {"output_text", "input_text", "text", "refusal"}));
      return;
    }
    if (role == "developer") role = "system";
    if (role != "user" && role != "system")
      refuse(path + ".role", "{}.role: expected user, assistant, system or developer, got {}", path, described(Json(role)));
    finish();
    BuiltMessage message;
    message.role = role;
    message.path = path;
    message.content = read_parts(*content, path + ".content", {"input_text", "text", "output_text"});
    conversation_.add(std::move(message));
  }

  // A summary stands for the reasoning only where that is not given.
  void add_reasoning(RequestFields& fields, const std::string& path) {
    fields.accept_field("encrypted_content");
    const Json *content = fields.list("content", kMaxContentParts), *summary = fields.list("summary", kMaxContentParts);
    std::string text;
    if (content != nullptr) text = read_parts(*content, path + ".content", {"reasoning_text", "text"});
    if (text.empty() && summary != nullptr) text = read_parts(*summary, path + ".summary", {"summary_text"});
    if (assistant_ && (!assistant_->content.empty() || assistant_->tool_calls.is_array())) finish();
    append(assistant(path).reasoning, text);
  }

  // A call that was cut off has no arguments that could be shown: it is left out, and what the client says to it.
  void add_call(RequestFields& fields, const std::string& path, bool custom, bool cut_off) {
    const std::string id = fields.required_text("call_id");
    const std::string name = joined_tool_name(fields.text("namespace").value_or(""), fields.required_text("name"));
    check_function_name(name, path + ".name");
    if (!calls_.insert(id).second) refuse(path + ".call_id", "{}.call_id: a call with this id came before", path);
    if (cut_off) {
      left_out_.insert(id);
      return;
    }
    Json arguments = custom ? Json{{std::string(kCustomInput), fields.required_text("input")}}
                            : call_arguments(fields.find("arguments"), path + ".arguments");
    BuiltMessage& message = assistant(path);
    if (!message.tool_calls.is_array()) message.tool_calls = Json::array();
    if (message.tool_calls.size() >= kMaxCallsOfMessage) refuse(path, "{}: at most {} calls in a row", path, kMaxCallsOfMessage);
    message.tool_calls.push_back(tool_call_json(id, name, std::move(arguments)));
  }

  void add_result(RequestFields& fields, const std::string& path) {
    const std::string id = fields.required_text("call_id");
    if (calls_.count(id) == 0) refuse(path + ".call_id", "{}.call_id: no call of the input has the id {}", path, described(Json(id)));
    const Json* output = fields.find("output");
    if (output == nullptr) refuse(path + ".output", "{}.output: missing: text or a list of parts is required", path);
    if (left_out_.count(id) > 0) return;
    finish();
    BuiltMessage message;
    message.role = "tool";
    message.path = path;
    message.tool_call_id = id;
    message.content = read_parts(*output, path + ".output", {"input_text", "output_text", "text"});
    conversation_.add(std::move(message));
  }

  static void append(std::string& text, const std::string& more) {
    if (!text.empty() && !more.empty()) text += kBetweenParts;
    text += more;
  }

  ConversationBuilder& conversation_;
  std::set<std::string>& unknown_;
  std::optional<BuiltMessage> assistant_;
  std::set<std::string, std::less<>> calls_, left_out_;  // ids
};

}  // namespace

std::string joined_tool_name(const std::string& name_space, const std::string& name) {
  if (name_space.empty()) return name;
  return name_space + (name_space.ends_with("__") ? "" : "__") + name;
}

void read_responses_input(RequestFields& body, ConversationBuilder& conversation, std::vector<std::string>& unknown) {
  const Json* input = body.find("input");
  if (input == nullptr) refuse("input", "input: missing: text or a list of items is required");
  std::set<std::string> names;
  if (input->is_string()) {
    BuiltMessage message;
    message.role = "user";
    message.content = input->get<std::string>();
    message.path = "input";
    conversation.add(std::move(message));
    return;
  }
  if (!input->is_array()) refuse("input", "input: expected a string or a list of items, got {}", described(*input));
  if (input->empty()) refuse("input", "input: empty: at least one item is required");
  body.list("input", kMaxMessages);
  InputReader reader(conversation, names);
  for (std::size_t i = 0; i < input->size(); ++i) reader.add((*input)[i], fmt::format("input[{}]", i));
  reader.finish();
  unknown.insert(unknown.end(), names.begin(), names.end());
}

}  // namespace tetrad
