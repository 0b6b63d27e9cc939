#include "server/chat_options.h"

#include <limits>
#include <utility>

#include "server/conversation_builder.h"
#include "server/request_json.h"

namespace tetrad {

using Json = nlohmann::ordered_json;

namespace {

void read_thinking_budget(RequestFields& fields, std::string_view field, ChatRequest& request) {
  constexpr int kMost = std::numeric_limits<int>::max();
  if (const auto budget = fields.integer(field, kNoThinkingBudget, kMost, true)) request.thinking_budget = static_cast<int>(*budget);
}

}  // namespace

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

void offer_tool(ToolSet& tools, const std::string& name, const Json* schema, const std::string& name_path, const std::string& schema_path,
                bool strict) {
  check_function_name(name, name_path);
  if (tools.find(name) != nullptr) refuse(name_path, "{}: {} is offered already", name_path, Json(name).dump());
  OfferedTool tool = OfferedTool::from_schema(name, schema == nullptr ? Json() : *schema, schema_path);
  tool.strict = strict;
  tools.add(std::move(tool));
}

ToolChoice read_tool_choice(RequestFields& fields, std::string& named) {
  const Json* given = fields.find("tool_choice");
  if (given == nullptr) return ToolChoice::kAuto;
  if (given->is_string()) {
    static constexpr std::pair<std::string_view, ToolChoice> kChoices[] = {
        {"auto", ToolChoice::kAuto}, {"none", ToolChoice::kNone}, {"required", ToolChoice::kRequired}};
    for (const auto& [name, choice] : kChoices)
      if (*given == name) return choice;
    refuse("tool_choice", "tool_choice: expected auto, none, required or a function, got {}", described(*given));
  }
  RequestFields choice(*given, "tool_choice");
  const std::string type = choice.required_text("type");
  if (type != "function") refuse("tool_choice.type", "tool_choice.type: only \"function\" is supported, got {}", described(Json(type)));
  const Json* function = choice.object("function");
  if (function == nullptr) {
    named = choice.required_text("name");
  } else {
    RequestFields function_fields(*function, "tool_choice.function");
    named = function_fields.required_text("name");
  }
  return ToolChoice::kNamed;
}

ThinkingWish read_thinking(RequestFields& fields, ChatRequest& request) {
  ThinkingWish wish;
  if (const Json* thinking = fields.object("thinking")) {
    RequestFields thinking_fields(*thinking, "thinking");
    const std::string type = thinking_fields.required_text("type");
    if (type != "enabled" && type != "disabled")
      refuse("thinking.type", "thinking.type: expected enabled or disabled, got {}", described(Json(type)));
    read_thinking_budget(thinking_fields, "budget_tokens", request);
    wish.set_enabled(type == "enabled");
  }
  if (const Json* reasoning = fields.object("reasoning")) {
    RequestFields reasoning_fields(*reasoning, "reasoning");
    if (const auto enabled = reasoning_fields.boolean("enabled")) wish.set_enabled(*enabled);
    if (const auto effort = reasoning_fields.text("effort")) wish.set_effort(*effort, "reasoning.effort");
    if (reasoning_fields.boolean("exclude").value_or(false)) request.reasoning = ReasoningOutput::kOmit;
    read_thinking_budget(reasoning_fields, "max_tokens", request);
  }
  for (const char* name : {"thinking_budget", "thinking_token_budget"}) read_thinking_budget(fields, name, request);
  if (const auto effort = fields.text("reasoning_effort")) wish.set_effort(*effort, "reasoning_effort");
  if (const auto enabled = fields.boolean("enable_thinking")) wish.set_enabled(*enabled);
  if (const auto preserve = fields.boolean("preserve_thinking")) request.variables["preserve_thinking"] = *preserve;
  if (fields.boolean("include_reasoning") == false) request.reasoning = ReasoningOutput::kOmit;
  if (fields.boolean("separate_reasoning") == false) request.reasoning = ReasoningOutput::kInline;

  const Json* switches = fields.object("chat_template_kwargs");
  if (switches == nullptr) return wish;
  if (switches->size() > kMaxTemplateSwitches)
    refuse("chat_template_kwargs", "chat_template_kwargs: at most {} of them, got {}", kMaxTemplateSwitches, switches->size());
  RequestFields switch_fields(*switches, "chat_template_kwargs");
  if (const auto effort = switch_fields.text("reasoning_effort")) wish.set_effort(*effort, "chat_template_kwargs.reasoning_effort");
  if (const auto enabled = switch_fields.boolean("enable_thinking")) wish.set_enabled(*enabled);
  for (const auto& [name, value] : switches->items()) {
    if (name == "messages" || name == "tools" || name == "add_generation_prompt")
      refuse(switch_fields.path_of(name), "{}: it is a field of the request itself", switch_fields.path_of(name));
    if (name != "reasoning_effort" && name != "enable_thinking") request.variables[name] = value;
  }
  return wish;
}

void check_continuation(const Json& messages, std::string_view field) {
  const Json& last = messages.back();
  if (last["role"] != "assistant") refuse(std::string(field), "{}: the last message is not the assistant's", field);
  if (last.contains("tool_calls"))
    refuse(std::string(field), "{}: the last message ends in tool calls, behind which nothing can follow", field);
}

void apply_tools_and_thinking(ChatRequest& request, ToolSet offered, Json tools, ToolChoice choice, const std::string& named,
                              const std::string& choice_path, ThinkingWish wish) {
  const bool forced = choice == ToolChoice::kRequired || choice == ToolChoice::kNamed;
  if (forced && offered.empty()) refuse(choice_path, "{}: a call can be required only of a request with tools", choice_path);
  if (choice == ToolChoice::kNamed && offered.find(named) == nullptr)
    refuse(choice_path, "{}: the function {} is not among the tools", choice_path, described(Json(named)));
  if (forced && request.continues_last)
    refuse(choice_path, "{}: a required call begins a message of its own, and this request continues one", choice_path);
  request.tool_choice = choice;
  if (choice == ToolChoice::kNamed) {
    request.max_tool_calls = 1;
    request.named_tool = named;
  }
  // Tools that must not be called are not shown to the model either.
  if (choice != ToolChoice::kNone && !offered.empty()) {
    request.variables["tools"] = std::move(tools);
    request.tools = std::move(offered);
  }
  if (wish.enabled) request.variables["enable_thinking"] = *wish.enabled;
  if (wish.effort && wish.enabled != false) request.variables["reasoning_effort"] = *wish.effort;
}

}  // namespace tetrad
