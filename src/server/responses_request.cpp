#include "server/responses_request.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "server/chat_options.h"
#include "server/generation_fields.h"
#include "server/responses_input.h"

namespace tetrad {

using Json = nlohmann::ordered_json;

namespace {

constexpr int kMostTokens = std::numeric_limits<int>::max();
constexpr std::array<std::string_view, 4> kLeftOut = {"web_search", "web_search_preview", "image_generation", "tool_search"};

bool is_left_out(const std::string& type) { return std::find(kLeftOut.begin(), kLeftOut.end(), type) != kLeftOut.end(); }

void refuse_stored_state(RequestFields& fields) {
  static constexpr std::pair<std::string_view, std::string_view> kRefused[] = {
      {"previous_response_id", "responses are not stored: send the whole conversation as input"},
      {"conversation", "conversations are not stored: send the whole conversation as input"},
      {"background", "a response is made while its client waits"},
      {"prompt", "prompts are not stored: send instructions and input"},
      {"context_management", "conversations are not compacted here"},
      {"return_token_ids", "answers are text"},
      {"prompt_logprobs", "prompts are scored on /v1/completions and /v1/chat/completions"},
      {"logprobs", "they are asked for by \"include\": [\"message.output_text.logprobs\"]"},
      {"response_format", "it is called text.format"},
      {"echo", "the prompt is not part of a response"},
      {"suffix", "answers follow the prompt"},
      {"chat_template", "the template is the server's"},
      {"continue_final_message", "a response begins an item of its own"},
      {"messages", "they are called input"},
  };
  for (const auto& [field, why] : kRefused) fields.refuse_field(field, why);
  if (const auto truncation = fields.text("truncation"); truncation && *truncation != "disabled")
    refuse("truncation", "truncation: only disabled is supported: prompts are never shortened");
  if (const auto choices = fields.integer("n", 1, kMostTokens, true); choices && *choices != 1) refuse("n", "n: a response has one answer");
  for (const char* field : {"store", "prompt_cache_key", "prompt_cache_retention", "client_metadata", "service_tier", "max_tool_calls"})
    fields.accept_field(field);
}

// What of a response is more than usual. Reasoning comes in the clear: nothing encrypted needs to be sent back.
void read_include(RequestFields& fields, SamplingParams& sampling) {
  const auto top = fields.integer("top_logprobs", 0, kMaxLogprobs);
  const Json* include = fields.list("include", kMaxContentParts);
  for (std::size_t i = 0; include != nullptr && i < include->size(); ++i) {
    const Json& value = (*include)[i];
    if (value == "message.output_text.logprobs")
      sampling.logprobs = static_cast<int>(top.value_or(0));
    else if (value != "reasoning.encrypted_content")
      refuse(fmt::format("include[{}]", i), "include[{}]: {} is not supported", i, described(value));
  }
  if (top.value_or(0) > 0 && !sampling.logprobs)
    refuse("top_logprobs", "top_logprobs: only with \"include\": [\"message.output_text.logprobs\"]");
}

// The form of the text; the form itself for the response.
Json read_text(RequestFields& fields, OutputForm& output) {
  Json form = {{"type", "text"}};
  const Json* text = fields.object("text");
  if (text == nullptr) return form;
  RequestFields text_fields(*text, "text");
  if (const auto verbosity = text_fields.text("verbosity"); verbosity && *verbosity != "medium")
    refuse("text.verbosity", "text.verbosity: only medium is supported: the model knows no others");
  if (const Json* format = text_fields.object("format")) {
    OutputForm asked = read_format_object(*format, "text.format");
    if (asked.kind != OutputForm::Kind::kText && output.kind != OutputForm::Kind::kText)
      refuse("text.format", "text.format: the form of the answer is given by {} already", output.field);
    if (asked.kind != OutputForm::Kind::kText) output = std::move(asked);
    form = *format;
  }
  for (const std::string& unknown : text_fields.unknown())
    refuse(unknown, "{}: no such field: the form of the text is text.format", unknown);
  return form;
}

// Tools in the form that templates show.
class ToolReader {
 public:
  explicit ToolReader(ResponsesRequest& request) : request_(request) {}

  void read(const Json& tools, const std::string& path, const std::string& name_space) {
    for (std::size_t i = 0; i < tools.size(); ++i) {
      const std::string tool_path = fmt::format("{}[{}]", path, i);
      RequestFields tool(tools[i], tool_path);
      const std::string type = tool.required_text("type");
      if (type == "function")
        add_function(tool, tool_path, name_space);
      else if (type == "custom")
        add_custom(tool, tool_path, name_space);
      else if (type == "namespace" && name_space.empty())
        add_namespace(tool, tool_path);
      else if (is_left_out(type))
        request_.chat.unknown_fields.push_back(fmt::format("tools[].type {}", type));
      else
        refuse(tool_path + ".type", "{}.type: tools of type {} are not supported: the client runs its own", tool_path,
               described(Json(type)));
      if (shown.size() > kMaxTools) refuse(path, "{}: at most {} tools", path, kMaxTools);
    }
  }

  ToolSet offered;
  Json shown = Json::array();

 private:
  void offer(RequestFields& tool, const std::string& path, const std::string& name_space, bool custom, const Json* schema, bool strict) {
    const std::string name = tool.required_text("name"), joined = joined_tool_name(name_space, name);
    offer_tool(offered, joined, schema, path + ".name", path + ".parameters", strict);
    if (custom || !name_space.empty()) request_.tools[joined] = {name, name_space, custom};
    Json function = {{"name", joined}};
    if (const auto description = tool.text("description")) function["description"] = *description;
    if (schema != nullptr) function["parameters"] = *schema;
    shown.push_back({{"type", "function"}, {"function", std::move(function)}});
  }

  void add_function(RequestFields& tool, const std::string& path, const std::string& name_space) {
    offer(tool, path, name_space, false, tool.object("parameters"), tool.boolean("strict").value_or(false));
  }

  void add_custom(RequestFields& tool, const std::string& path, const std::string& name_space) {
    const Json schema = {
        {"type", "object"}, {"properties", {{std::string(kCustomInput), {{"type", "string"}}}}}, {"required", Json::array({kCustomInput})}};
    const Json* format = tool.object("format");
    if (format != nullptr && format->value("type", "text") != "text") request_.chat.unknown_fields.emplace_back("tools[].format");
    offer(tool, path, name_space, true, &schema, false);
  }

  void add_namespace(RequestFields& tool, const std::string& path) {
    const std::string name = tool.required_text("name");
    check_function_name(name, path + ".name");
    if (const Json* tools = tool.list("tools", kMaxTools)) read(*tools, path + ".tools", name);
  }

  ResponsesRequest& request_;
};

// tool_choice as OpenAI's chat has it, custom tools included.
ToolChoice read_choice(RequestFields& fields, const ResponsesRequest& request, std::string& named) {
  const Json* given = fields.find("tool_choice");
  if (given == nullptr || !given->is_object() || given->value("type", Json()) != "custom") return read_tool_choice(fields, named);
  named = RequestFields(*given, "tool_choice").required_text("name");
  const auto tool = request.tools.find(named);
  if (tool == request.tools.end() || !tool->second.custom)
    refuse("tool_choice", "tool_choice: the custom tool {} is not among the tools", described(Json(named)));
  return ToolChoice::kNamed;
}

// As it was asked for; else as the template was told.
Json effort_of(const Json& body, const ChatRequest& chat) {
  if (const auto reasoning = body.find("reasoning"); reasoning != body.end() && reasoning->is_object())
    if (const auto effort = reasoning->find("effort"); effort != reasoning->end() && !effort->is_null()) return *effort;
  if (chat.variables.value("enable_thinking", Json()) == false) return "none";
  return chat.variables.value("reasoning_effort", Json());
}

Json echo_of(const Json& body, const ChatRequest& chat, Json form) {
  const auto given = [&](const char* field, Json otherwise) {
    const auto it = body.find(field);
    return it == body.end() || it->is_null() ? std::move(otherwise) : *it;
  };
  const SamplingParams& sampling = chat.engine.generation.sampling;
  Json echo;
  echo["instructions"] = given("instructions", nullptr);
  echo["max_output_tokens"] = given("max_output_tokens", nullptr);
  echo["metadata"] = given("metadata", Json::object());
  echo["parallel_tool_calls"] = chat.max_tool_calls != 1;
  echo["previous_response_id"] = nullptr;
  echo["reasoning"] = {{"effort", effort_of(body, chat)}, {"summary", nullptr}};
  echo["store"] = false;
  echo["temperature"] = sampling.temperature;
  echo["text"] = {{"format", std::move(form)}};
  echo["tool_choice"] = given("tool_choice", "auto");
  echo["tools"] = given("tools", Json::array());
  echo["top_logprobs"] = sampling.logprobs.value_or(0);
  echo["top_p"] = sampling.top_p;
  echo["truncation"] = "disabled";
  return echo;
}

}  // namespace

ResponsesRequest parse_responses_request(std::string_view body, const RequestContext& context) {
  const Json parsed = parse_request_body(body);
  RequestFields fields(parsed, "");
  ResponsesRequest request;
  ChatRequest& chat = request.chat;
  chat.prompt_field = "input";
  chat.model = fields.text("model").value_or("");
  chat.request_id = read_request_id(fields);
  refuse_stored_state(fields);
  refuse_unsupported_fields(fields);
  chat.engine = read_engine_request(fields, context);
  if (const auto most = fields.integer("max_output_tokens", 1, kMostTokens, true))
    chat.engine.generation.max_tokens = static_cast<int>(*most);
  chat.asked_stop_ids = asked_stop_ids(chat.engine, context);
  read_include(fields, chat.engine.generation.sampling);
  chat.delivery = read_delivery(fields);
  chat.form = read_output_form(fields);
  Json form = read_text(fields, chat.form);

  ConversationBuilder conversation;
  if (auto instructions = fields.text("instructions"); instructions && !instructions->empty())
    conversation.add({.role = "system", .content = *std::move(instructions), .reasoning = {}, .tool_call_id = {}, .path = "instructions"});
  read_responses_input(fields, conversation, chat.unknown_fields);
  chat.variables = Json::object();
  chat.variables["messages"] = conversation.finish(context.merge_system_messages, chat.merged_system_messages);
  ToolReader tools(request);
  if (const Json* given = fields.list("tools", kMaxTools)) tools.read(*given, "tools", "");
  std::string named;
  const ToolChoice choice = read_choice(fields, request, named);
  if (fields.boolean("parallel_tool_calls") == false) chat.max_tool_calls = 1;
  ThinkingWish wish = read_thinking(fields, chat);
  chat.variables["add_generation_prompt"] = true;
  apply_tools_and_thinking(chat, std::move(tools.offered), std::move(tools.shown), choice, named, "tool_choice", std::move(wish));
  request.echo = echo_of(parsed, chat, std::move(form));

  const std::vector<std::string> unknown = unknown_fields(fields, context, "text.format");
  chat.unknown_fields.insert(chat.unknown_fields.begin(), unknown.begin(), unknown.end());
  if (context.strict_fields && !chat.unknown_fields.empty())
    refuse(chat.unknown_fields[0], "{}: not known, or without effect here", chat.unknown_fields[0]);
  return request;
}

}  // namespace tetrad
