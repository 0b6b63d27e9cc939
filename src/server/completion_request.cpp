#include "server/completion_request.h"

#include <algorithm>
#include <utility>

#include "server/generation_fields.h"

namespace tetrad {

using Json = nlohmann::ordered_json;

namespace {

std::vector<int> read_ids(const Json& list, const std::string& path, int vocab_size) {
  if (list.empty()) refuse(path, "{}: empty: at least one token is needed", path);
  if (list.size() > kMaxPromptIds) refuse(path, "{}: at most {} tokens, got {}", path, kMaxPromptIds, list.size());
  std::vector<int> ids;
  ids.reserve(list.size());
  for (std::size_t i = 0; i < list.size(); ++i) {
    const Json& item = list[i];
    // The usual case without making its path.
    if (item.is_number_unsigned() && item.get<std::uint64_t>() < static_cast<std::uint64_t>(vocab_size))
      ids.push_back(item.get<int>());
    else
      ids.push_back(static_cast<int>(whole_number(item, fmt::format("{}[{}]", path, i), 0, vocab_size - 1)));
  }
  return ids;
}

std::vector<CompletionPrompt> read_prompts(RequestFields& fields, int vocab_size) {
  const Json* given = fields.find("prompt");
  if (given == nullptr) refuse("prompt", "prompt: missing: text or token ids are required");
  std::vector<CompletionPrompt> prompts;
  if (given->is_string()) {
    prompts.emplace_back(given->get<std::string>());
    return prompts;
  }
  if (!given->is_array()) refuse("prompt", "prompt: expected a string, token ids, or a list of either, got {}", described(*given));
  if (given->empty()) refuse("prompt", "prompt: empty: at least one is required");
  if (given->front().is_number()) {
    prompts.emplace_back(read_ids(*given, "prompt", vocab_size));
    return prompts;
  }
  fields.list("prompt", kMaxPrompts);
  const bool texts = given->front().is_string();
  for (std::size_t i = 0; i < given->size(); ++i) {
    const Json& item = (*given)[i];
    const std::string path = fmt::format("prompt[{}]", i);
    if (texts ? !item.is_string() : !item.is_array())
      refuse(path, "{}: expected {}, got {}", path, texts ? "a string as the first" : "a string or a list of token ids", described(item));
    if (texts)
      prompts.emplace_back(item.get<std::string>());
    else
      prompts.emplace_back(read_ids(item, path, vocab_size));
  }
  return prompts;
}

}  // namespace

CompletionRequest parse_completion_request(std::string_view body, const RequestContext& context) {
  const Json parsed = parse_request_body(body);
  RequestFields fields(parsed, "");
  CompletionRequest request;
  request.model = fields.text("model").value_or("");
  request.request_id = read_request_id(fields);
  refuse_unsupported_fields(fields);
  fields.refuse_field("thinking_token_budget", "thinking is known of a chat only");
  fields.refuse_field("return_prompt_text", "echo puts the prompt before the answer");
  fields.refuse_field("suffix", "answers follow the prompt, nothing is filled in before a suffix");
  request.form = read_output_form(fields);
  request.engine = read_engine_request(fields, context, true);
  request.asked_stop_ids = asked_stop_ids(request.engine, context);
  GenerationRequest& generation = request.engine.generation;
  if (const auto logprobs = fields.integer("logprobs", 0, kMaxLogprobs)) generation.sampling.logprobs = static_cast<int>(*logprobs);
  request.echo = fields.boolean("echo").value_or(false);
  if (generation.prompt_logprobs >= 0) request.prompt_logprobs = generation.prompt_logprobs;
  if (request.echo && generation.sampling.logprobs)
    generation.prompt_logprobs = std::max(generation.prompt_logprobs, *generation.sampling.logprobs);
  request.delivery = read_delivery(fields);
  request.prompts = read_prompts(fields, context.vocab_size);
  request.unknown_fields = unknown_fields(fields, context, "response_format");
  return request;
}

}  // namespace tetrad
