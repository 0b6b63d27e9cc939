#include "server/anthropic_request.h"

#include <limits>
#include <set>
#include <utility>

#include "server/chat_options.h"
#include "server/conversation_builder.h"
#include "server/generation_fields.h"

namespace tetrad {

using Json = nlohmann::ordered_json;

namespace {

constexpr int kLowBudget = 2048, kMediumBudget = 8192;  // thinking tokens below which an effort is enough
constexpr std::string_view kBetweenBlocks = "\n\n";

[[noreturn]] void refuse_block(const std::string& path, const std::string& type, std::string_view allowed) {
  refuse(path + ".type", "{}.type: blocks of type {} are not supported here, only {}", path, described(Json(type)), allowed);
}

void append_block(std::string& text, const std::string& block) {
  if (!text.empty() && !block.empty()) text += kBetweenBlocks;
  text += block;
}

// Text, or blocks of text.
std::string read_text_blocks(const Json& content, const std::string& path) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) refuse(path, "{}: expected a string or a list of blocks, got {}", path, described(content));
  if (content.size() > kMaxContentParts) refuse(path, "{}: at most {} blocks, got {}", path, kMaxContentParts, content.size());
  std::string text;
  for (std::size_t i = 0; i < content.size(); ++i) {
    const std::string block_path = fmt::format("{}[{}]", path, i);
    RequestFields block(content[i], block_path);
    const std::string type = block.required_text("type");
    if (type != "text") refuse_block(block_path, type, "text");
    append_block(text, block.required_text("text"));
  }
  return text;
}

BuiltMessage message_of(std::string role, std::string content, const std::string& path) {
  BuiltMessage message;
  message.role = std::move(role);
  message.content = std::move(content);
  message.path = path;
  return message;
}

const Json& content_blocks(const Json& content, const std::string& path) {
  if (!content.is_array()) refuse(path, "{}: expected a string or a list of blocks, got {}", path, described(content));
  if (content.size() > kMaxContentParts) refuse(path, "{}: at most {} blocks, got {}", path, kMaxContentParts, content.size());
  return content;
}

// A user's blocks become messages in their order: one for each result of a tool, one for each run of text.
void add_user_message(ConversationBuilder& conversation, const Json& content, const std::string& path, const std::string& content_path) {
  if (content.is_string()) return conversation.add(message_of("user", content.get<std::string>(), path));
  const Json& blocks = content_blocks(content, content_path);
  if (blocks.empty()) refuse(content_path, "{}: empty: at least one block is required", content_path);
  std::string text;
  bool has_text = false;
  const auto end_text = [&] {
    if (std::exchange(has_text, false)) conversation.add(message_of("user", std::exchange(text, {}), path));
  };
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const std::string block_path = fmt::format("{}[{}]", content_path, i);
    RequestFields block(blocks[i], block_path);
    const std::string type = block.required_text("type");
    if (type == "text") {
      append_block(text, block.required_text("text"));
      has_text = true;
    } else if (type == "tool_result") {
      end_text();
      const Json* given = block.find("content");
      BuiltMessage result = message_of("tool", given == nullptr ? "" : read_text_blocks(*given, block_path + ".content"), block_path);
      if (block.boolean("is_error").value_or(false)) result.content = "Error: " + result.content;  // templates have no other sign for it
      result.tool_call_id = block.required_text("tool_use_id");
      conversation.add(std::move(result));
    } else {
      refuse_block(block_path, type, "text and tool_result");
    }
  }
  end_text();
}

void add_assistant_message(ConversationBuilder& conversation, const Json& content, const std::string& path,
                           const std::string& content_path) {
  if (content.is_string()) return conversation.add(message_of("assistant", content.get<std::string>(), path));
  const Json& blocks = content_blocks(content, content_path);
  BuiltMessage message = message_of("assistant", "", path);
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const std::string block_path = fmt::format("{}[{}]", content_path, i);
    RequestFields block(blocks[i], block_path);
    const std::string type = block.required_text("type");
    if (type == "text") {
      append_block(message.content, block.required_text("text"));
    } else if (type == "thinking") {
      append_block(message.reasoning, block.required_text("thinking"));
    } else if (type == "tool_use") {
      const std::string name = block.required_text("name");
      check_function_name(name, block_path + ".name");
      const Json* input = block.object("input");
      if (!message.tool_calls.is_array()) message.tool_calls = Json::array();
      if (message.tool_calls.size() >= kMaxCallsOfMessage)
        refuse(block_path, "{}: at most {} calls in a message", block_path, kMaxCallsOfMessage);
      message.tool_calls.push_back(tool_call_json(block.required_text("id"), name, input == nullptr ? Json::object() : *input));
    } else if (type != "redacted_thinking") {  // of another model, which nobody else can read
      refuse_block(block_path, type, "text, thinking and tool_use");
    }
  }
  conversation.add(std::move(message));
}

Json read_messages(RequestFields& fields, const RequestContext& context, ChatRequest& request) {
  ConversationBuilder conversation;
  if (const Json* system = fields.find("system")) {
    std::string text = read_text_blocks(*system, "system");
    if (!text.empty()) conversation.add(message_of("system", std::move(text), "system"));
  }
  const Json* messages = fields.list("messages", kMaxMessages);
  if (messages == nullptr) refuse("messages", "messages: missing: a list of messages is required");
  if (messages->empty()) refuse("messages", "messages: empty: at least one message is required");
  std::set<std::string> unknown;
  for (std::size_t i = 0; i < messages->size(); ++i) {
    const std::string path = fmt::format("messages[{}]", i);
    RequestFields message((*messages)[i], path);
    const std::string role = message.required_text("role");
    const Json* content = message.find("content");
    if (content == nullptr) refuse(path + ".content", "{}.content: missing: text or a list of blocks is required", path);
    if (role == "user")
      add_user_message(conversation, *content, path, path + ".content");
    else if (role == "assistant")
      add_assistant_message(conversation, *content, path, path + ".content");
    else if (role == "system")
      conversation.add(message_of("system", read_text_blocks(*content, path + ".content"), path));
    else
      refuse(path + ".role", "{}.role: expected user or assistant, got {}", path, described(Json(role)));
    for (const std::string& field : message.unknown())
      if (unknown.size() < kMaxRequestFields) unknown.insert("messages[]" + field.substr(path.size()));
  }
  request.unknown_fields.assign(unknown.begin(), unknown.end());
  return conversation.finish(context.merge_system_messages, request.merged_system_messages);
}

ToolSet read_anthropic_tools(RequestFields& fields, Json& template_tools) {
  ToolSet tools;
  template_tools = Json::array();
  const Json* given = fields.list("tools", kMaxTools);
  for (std::size_t i = 0; given != nullptr && i < given->size(); ++i) {
    const std::string path = fmt::format("tools[{}]", i);
    RequestFields tool((*given)[i], path);
    const std::string type = tool.text("type").value_or("custom");
    if (type != "custom") refuse(path + ".type", "{}.type: only tools of the client are supported, got {}", path, described(Json(type)));
    const bool strict = tool.boolean("strict").value_or(false);
    const std::string name = tool.required_text("name");
    const Json* schema = tool.object("input_schema");
    offer_tool(tools, name, schema, path + ".name", path + ".input_schema", strict);
    Json function = {{"name", name}};
    if (const auto description = tool.text("description")) function["description"] = *description;
    if (schema != nullptr) function["parameters"] = *schema;
    template_tools.push_back({{"type", "function"}, {"function", std::move(function)}});
  }
  return tools;
}

ToolChoice read_tool_choice(RequestFields& fields, std::string& named, ChatRequest& request) {
  const Json* given = fields.object("tool_choice");
  if (given == nullptr) return ToolChoice::kAuto;
  RequestFields choice(*given, "tool_choice");
  const std::string type = choice.required_text("type");
  if (choice.boolean("disable_parallel_tool_use").value_or(false)) request.max_tool_calls = 1;
  if (type == "auto") return ToolChoice::kAuto;
  if (type == "none") return ToolChoice::kNone;
  if (type == "any") return ToolChoice::kRequired;
  if (type != "tool") refuse("tool_choice.type", "tool_choice.type: expected auto, any, tool or none, got {}", described(Json(type)));
  named = choice.required_text("name");
  return ToolChoice::kNamed;
}

ThinkingWish read_thinking(RequestFields& fields, ChatRequest& request, bool budget_below_max_tokens) {
  ThinkingWish wish;
  if (const Json* config = fields.object("output_config")) {
    RequestFields config_fields(*config, "output_config");
    if (const Json* format = config_fields.object("format")) {
      if (request.form.kind != OutputForm::Kind::kText)
        refuse("output_config.format", "output_config.format: the form of the answer is given by {} already", request.form.field);
      request.form = read_format_object(*format, "output_config.format");
    }
    if (const auto effort = config_fields.text("effort")) wish.set_effort(*effort, "output_config.effort");
    refuse_foreign_forms(config_fields, "output_config.format");
    const std::vector<std::string> unknown = config_fields.unknown();
    request.unknown_fields.insert(request.unknown_fields.end(), unknown.begin(), unknown.end());
  }
  const Json* thinking = fields.object("thinking");
  if (thinking == nullptr) return wish;
  RequestFields thinking_fields(*thinking, "thinking");
  const std::string type = thinking_fields.required_text("type");
  if (type != "enabled" && type != "disabled" && type != "adaptive")
    refuse("thinking.type", "thinking.type: expected enabled, disabled or adaptive, got {}", described(Json(type)));
  wish.set_enabled(type != "disabled");
  const auto budget = thinking_fields.integer("budget_tokens", 1, kMaxInt, true);
  if (type == "disabled") return wish;
  if (type == "enabled" && !budget) refuse("thinking.budget_tokens", "thinking.budget_tokens: missing: required with type enabled");
  if (!budget) return wish;
  if (budget_below_max_tokens && *budget >= request.engine.generation.max_tokens)
    refuse("thinking.budget_tokens", "thinking.budget_tokens: must be less than max_tokens");
  request.thinking_budget = static_cast<int>(*budget);
  if (!wish.effort) wish.effort = *budget < kLowBudget ? "low" : *budget < kMediumBudget ? "medium" : "xhigh";
  return wish;
}

ChatRequest parse(std::string_view body, const RequestContext& context, bool only_count) {
  const Json parsed = parse_request_body(body);
  RequestFields fields(parsed, "");
  ChatRequest request;
  request.model = fields.text("model").value_or("");
  SamplingParams& sampling = request.engine.generation.sampling;
  sampling = context.sampling;
  sampling.seed = context.fresh_seed;
  sampling.temperature = number_between(fields, "temperature", sampling.temperature, 0, kMaxTemperature);
  sampling.top_p = number_between(fields, "top_p", sampling.top_p, 0, 1, false);
  if (const auto top_k = fields.integer("top_k", -1, kMaxInt)) sampling.top_k = static_cast<int>(*top_k);
  request.engine.generation.stop_ids = context.stop_ids;
  if (fields.list("stop_sequences", kMaxRequestFields) != nullptr)
    request.engine.generation.stop_strings = read_stop_strings(fields, "stop_sequences");
  request.engine.queue_timeout = context.queue_timeout;
  read_cache_fields(fields, request.engine);
  const auto max_tokens = fields.integer("max_tokens", 1, kMaxInt, true);
  if (!max_tokens && !only_count) refuse("max_tokens", "max_tokens: missing: a whole number is required");
  request.engine.generation.max_tokens = static_cast<int>(max_tokens.value_or(0));
  request.delivery.stream = fields.boolean("stream").value_or(false);
  request.delivery.include_usage = true;
  for (const char* field : {"metadata", "service_tier", "cache_control"}) fields.accept_field(field);
  fields.refuse_field("mcp_servers", "the server calls no other servers");
  fields.refuse_field("container", "the server runs no code");
  for (const char* field : {"n", "best_of", "logprobs", "top_logprobs", "seed", "stop", "min_tokens"})
    fields.refuse_field(field, "this API has no such field: ask /v1/chat/completions");
  if (const Json* format = fields.object("output_format")) request.form = read_format_object(*format, "output_format");

  request.variables = Json::object();
  request.variables["messages"] = read_messages(fields, context, request);
  Json template_tools;
  ToolSet offered = read_anthropic_tools(fields, template_tools);
  std::string named;
  const ToolChoice choice = read_tool_choice(fields, named, request);
  ThinkingWish wish = read_thinking(fields, request, max_tokens.has_value());
  // A last message of the assistant is the beginning of the answer.
  const Json& last = request.variables["messages"].back();
  request.continues_last = last["role"] == "assistant" && !last.contains("tool_calls");
  request.variables["add_generation_prompt"] = !request.continues_last;
  apply_tools_and_thinking(request, std::move(offered), std::move(template_tools), choice, named, "tool_choice", std::move(wish));
  const std::vector<std::string> unknown = unknown_fields(fields, context, "output_config.format");
  request.unknown_fields.insert(request.unknown_fields.begin(), unknown.begin(), unknown.end());
  return request;
}

}  // namespace

ChatRequest parse_anthropic_request(std::string_view body, const RequestContext& context) { return parse(body, context, false); }

ChatRequest parse_anthropic_count_request(std::string_view body, const RequestContext& context) { return parse(body, context, true); }

}  // namespace tetrad
