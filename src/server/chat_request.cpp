#include "server/chat_request.h"

#include <utility>

#include "server/chat_messages.h"
#include "server/chat_options.h"
#include "server/generation_fields.h"

namespace tetrad {

using Json = nlohmann::ordered_json;

namespace {

void refuse_unsupported_chat_fields(RequestFields& fields) {
  static constexpr std::pair<std::string_view, std::string_view> kRefused[] = {
      {"functions", "functions are offered as tools"},
      {"function_call", "it is called tool_choice"},
      {"audio", "answers are text"},
      {"web_search_options", "the server searches nothing"},
      {"prediction", "there is no predicted output"},
      {"suffix", "answers follow the prompt"},
      {"echo", "the prompt of a chat is not part of its answer"},
      {"chat_template", "the template is the server's"},
      {"continue_final_message", "an answer begins a message of its own"},
      {"documents", "documents are given as messages"},
      {"mm_processor_kwargs", "only text is supported"},
      {"thinking_token_budget", "thinking cannot be cut at a number of tokens; reasoning_effort shortens it"},
  };
  for (const auto& [field, why] : kRefused) fields.refuse_field(field, why);
  if (const Json* format = fields.object("response_format")) {
    RequestFields format_fields(*format, "response_format");
    const std::string type = format_fields.required_text("type");
    if (type != "text") refuse("response_format", "response_format: only type text is supported, got {}", described(Json(type)));
  }
  if (const Json* modalities = fields.list("modalities", 16); modalities != nullptr && *modalities != Json::array({"text"}))
    refuse("modalities", "modalities: only [\"text\"] is supported");
  if (fields.boolean("stream_reasoning") == false) refuse("stream_reasoning", "stream_reasoning: not supported: reasoning is streamed");
}

// Log probabilities: a switch and how many of the best beside each token.
void read_logprobs(RequestFields& fields, SamplingParams& sampling) {
  const bool wanted = fields.boolean("logprobs").value_or(false);
  const auto top = fields.integer("top_logprobs", 0, kMaxLogprobs);
  if (top && *top > 0 && !wanted) refuse("top_logprobs", "top_logprobs: only with \"logprobs\": true");
  if (wanted) sampling.logprobs = static_cast<int>(top.value_or(0));
}

ToolSet read_chat_tools(RequestFields& fields, Json& template_tools) {
  ToolSet tools;
  const Json* given = fields.list("tools", kMaxTools);
  if (given == nullptr) return tools;
  for (std::size_t i = 0; i < given->size(); ++i) {
    const std::string path = fmt::format("tools[{}]", i);
    RequestFields tool((*given)[i], path);
    const std::string type = tool.required_text("type");
    if (type != "function") refuse(path + ".type", "{}.type: only \"function\" is supported, got {}", path, described(Json(type)));
    const Json* function = tool.object("function");
    if (function == nullptr) refuse(path + ".function", "{}.function: missing: an object is required", path);
    RequestFields function_fields(*function, path + ".function");
    const std::string name = function_fields.required_text("name");
    function_fields.text("description");
    for (RequestFields* where : {&tool, &function_fields}) where->refuse_field("strict", "arguments are not constrained to the schema");
    const Json* schema = function_fields.object("parameters");
    offer_tool(tools, name, schema, path + ".function.name", path + ".function.parameters");
  }
  template_tools = *given;
  return tools;
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

// What clients call thinking and reasoning, from the least specific to the most: `thinking`, `reasoning`, reasoning_effort,
// enable_thinking, chat_template_kwargs.
ThinkingWish read_thinking(RequestFields& fields, ChatRequest& request) {
  ThinkingWish wish;
  if (const Json* thinking = fields.object("thinking")) {
    RequestFields thinking_fields(*thinking, "thinking");
    const std::string type = thinking_fields.required_text("type");
    if (type != "enabled" && type != "disabled")
      refuse("thinking.type", "thinking.type: expected enabled or disabled, got {}", described(Json(type)));
    thinking_fields.refuse_field("budget_tokens", "thinking cannot be cut at a number of tokens; reasoning_effort shortens it");
    wish.set_enabled(type == "enabled");
  }
  if (const Json* reasoning = fields.object("reasoning")) {
    RequestFields reasoning_fields(*reasoning, "reasoning");
    if (const auto enabled = reasoning_fields.boolean("enabled")) wish.set_enabled(*enabled);
    if (const auto effort = reasoning_fields.text("effort")) wish.set_effort(*effort, "reasoning.effort");
    if (reasoning_fields.boolean("exclude").value_or(false)) request.reasoning = ReasoningOutput::kOmit;
    reasoning_fields.refuse_field("max_tokens", "thinking cannot be cut at a number of tokens; reasoning_effort shortens it");
  }
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

}  // namespace

ChatRequest parse_chat_request(std::string_view body, const RequestContext& context) {
  return parse_chat_request(parse_request_body(body), context);
}

ChatRequest parse_chat_request(const Json& body, const RequestContext& context) {
  RequestFields fields(body, "");
  ChatRequest request;
  request.model = fields.text("model").value_or("");
  request.request_id = fields.text("request_id").value_or("");
  refuse_unsupported_fields(fields);
  refuse_unsupported_chat_fields(fields);
  request.engine = read_engine_request(fields, context);
  request.asked_stop_ids = asked_stop_ids(request.engine, context);
  read_logprobs(fields, request.engine.generation.sampling);
  request.delivery = read_delivery(fields);

  ConversationBuilder conversation;
  read_chat_messages(fields, conversation, request.unknown_fields);
  request.variables = Json::object();
  request.variables["messages"] = conversation.finish(context.merge_system_messages, request.merged_system_messages);
  Json template_tools;
  ToolSet offered = read_chat_tools(fields, template_tools);
  std::string named;
  const ToolChoice choice = read_tool_choice(fields, named);
  if (fields.boolean("parallel_tool_calls") == false) request.max_tool_calls = 1;
  ThinkingWish wish = read_thinking(fields, request);
  request.variables["add_generation_prompt"] = fields.boolean("add_generation_prompt").value_or(true);
  apply_tools_and_thinking(request, std::move(offered), std::move(template_tools), choice, named, "tool_choice", std::move(wish));

  const std::vector<std::string> unknown = unknown_fields(fields, context);
  request.unknown_fields.insert(request.unknown_fields.begin(), unknown.begin(), unknown.end());
  if (context.strict_fields && !request.unknown_fields.empty())
    refuse(request.unknown_fields[0], "{}: unknown field", request.unknown_fields[0]);
  return request;
}

bool prompt_opens_reasoning(std::string_view prompt) {
  const std::size_t end = prompt.find_last_not_of(" \t\r\n");
  return end != std::string_view::npos && prompt.substr(0, end + 1).ends_with("<think>");
}

}  // namespace tetrad
