#pragma once
// A conversation on its way to the chat template: readers add messages in the order of the request, finish() puts them in the form that
// templates of this line take.
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

namespace tetrad {

struct BuiltMessage {
  std::string role;  // system, user, assistant, tool
  std::string content;
  std::string reasoning;                        // assistant
  nlohmann::ordered_json tool_calls = nullptr;  // assistant: list of {"id", "type", "function": {"name", "arguments": object}}
  std::string tool_call_id;                     // tool
  std::string path;                             // in the request
};

class ConversationBuilder {
 public:
  void add(BuiltMessage message);
  bool empty() const { return messages_.empty(); }

  // The list of messages for the template.
  //   System messages become one, the first, joined by an empty line; with merge_system false any but a first one is refused.
  //   Results of tools that follow each other come in the order of the calls they answer, if each names its call: templates show no ids.
  //   Content of an assistant that begins with <think>...</think> is split, if the message states no reasoning.
  nlohmann::ordered_json finish(bool merge_system, bool& merged);

 private:
  std::vector<BuiltMessage> messages_;
};

// The arguments of a call in the history: an object, or JSON text of one; nothing and blank text are {}.
nlohmann::ordered_json call_arguments(const nlohmann::ordered_json* arguments, const std::string& path);

nlohmann::ordered_json tool_call_json(const std::string& id, const std::string& name, nlohmann::ordered_json arguments);

// The name of a function that is offered or was called: not empty, bounded, and without what the form of a call uses as marks.
void check_function_name(const std::string& name, const std::string& path);

}  // namespace tetrad
