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
      {"documents", "documents are given as messages"},
      {"mm_processor_kwargs", "only text is supported"},
  };
  for (const auto& [field, why] : kRefused) fields.refuse_field(field, why);
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
    const bool strict = function_fields.boolean("strict").value_or(tool.boolean("strict").value_or(false));
    tool.accept_field("strict");
    const Json* schema = function_fields.object("parameters");
    offer_tool(tools, name, schema, path + ".function.name", path + ".function.parameters", strict);
  }
  template_tools = *given;
  return tools;
}

// Whether the prompt ends with the head of a new answer, or in the middle of the last message.
void read_prompt_end(RequestFields& fields, ChatRequest& request) {
  const auto new_answer = fields.boolean("add_generation_prompt");
  request.continues_last = fields.boolean("continue_final_message").value_or(false);
  request.variables["add_generation_prompt"] = request.continues_last ? false : new_answer.value_or(true);
  if (!request.continues_last) return;
  if (new_answer == true) refuse("continue_final_message", "continue_final_message: not together with \"add_generation_prompt\": true");
  check_continuation(request.variables["messages"], "continue_final_message");
}

}  // namespace

ChatRequest parse_chat_request(std::string_view body, const RequestContext& context) {
  return parse_chat_request(parse_request_body(body), context);
}

ChatRequest parse_chat_request(const Json& body, const RequestContext& context) {
  RequestFields fields(body, "");
  ChatRequest request;
  request.model = fields.text("model").value_or("");
  request.request_id = read_request_id(fields);
  refuse_unsupported_fields(fields);
  refuse_unsupported_chat_fields(fields);
  request.form = read_output_form(fields);
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
  read_prompt_end(fields, request);
  request.returns_prompt_text = fields.boolean("return_prompt_text").value_or(false);
  apply_tools_and_thinking(request, std::move(offered), std::move(template_tools), choice, named, "tool_choice", std::move(wish));

  const std::vector<std::string> unknown = unknown_fields(fields, context, "response_format");
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
