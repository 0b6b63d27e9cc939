#include "server/chat_options.h"

#include <utility>

#include "server/conversation_builder.h"
#include "server/request_json.h"

namespace tetrad {

using Json = nlohmann::ordered_json;

void ThinkingWish::set_effort(const std::string& wanted, const std::string& path) {
  static constexpr std::pair<std::string_view, std::string_view> kEfforts[] = {{"minimal", "low"}, {"low", "low"},     {"medium", "medium"},
                                                                               {"high", "xhigh"},  {"xhigh", "xhigh"}, {"max", "xhigh"}};
  if (wanted == "none") {
    set_enabled(false);
    effort.reset();
    return;
  }
  for (const auto& [name, level] : kEfforts) {
    if (wanted != name) continue;
    enabled = true;
    effort = level;
    return;
  }
  refuse(path, "{}: expected none, minimal, low, medium, high, xhigh or max, got {}", path, described(Json(wanted)));
}

void offer_tool(ToolSet& tools, const std::string& name, const Json* schema, const std::string& name_path, const std::string& schema_path) {
  check_function_name(name, name_path);
  if (tools.find(name) != nullptr) refuse(name_path, "{}: {} is offered already", name_path, Json(name).dump());
  tools.add(OfferedTool::from_schema(name, schema == nullptr ? Json() : *schema, schema_path));
}

void apply_tools_and_thinking(ChatRequest& request, ToolSet offered, Json tools, ToolChoice choice, const std::string& named,
                              const std::string& choice_path, ThinkingWish wish) {
  const bool forced = choice == ToolChoice::kRequired || choice == ToolChoice::kNamed;
  if (forced && offered.empty()) refuse(choice_path, "{}: a call can be required only of a request with tools", choice_path);
  if (choice == ToolChoice::kNamed && offered.find(named) == nullptr)
    refuse(choice_path, "{}: the function {} is not among the tools", choice_path, described(Json(named)));
  if (forced) {
    // The head of the call is written for the model, which leaves no place for reasoning before it.
    if (wish.enabled == true && wish.expressly)
      refuse(choice_path, "{}: a required call cannot be combined with thinking: turn thinking off or leave the choice to the model",
             choice_path);
    wish.enabled = false;
    request.answer_prefix = choice == ToolChoice::kNamed ? fmt::format("<tool_call>\n<function={}>\n", named) : "<tool_call>\n<function=";
  }
  request.tool_choice = choice;
  if (choice == ToolChoice::kNamed) request.max_tool_calls = 1;
  // Tools that must not be called are not shown to the model either.
  if (choice != ToolChoice::kNone && !offered.empty()) {
    request.variables["tools"] = std::move(tools);
    request.tools = std::move(offered);
  }
  if (wish.enabled) request.variables["enable_thinking"] = *wish.enabled;
  if (wish.effort && wish.enabled != false) request.variables["reasoning_effort"] = *wish.effort;
}

}  // namespace tetrad
