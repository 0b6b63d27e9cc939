#include "server/service.h"

#include <algorithm>
#include <random>

namespace tetrad {

RequestContext Service::request_context() const {
  RequestContext context;
  context.sampling = generation.sampling;
  context.stop_ids = generation.stop_ids;
  context.vocab_size = vocab_size;
  context.max_choices = settings.max_choices;
  context.default_max_tokens = settings.default_max_tokens;
  context.queue_timeout = settings.queue_timeout;
  context.merge_system_messages = settings.merge_system_messages;
  context.strict_fields = settings.strict_fields;
  static thread_local std::random_device entropy;
  context.fresh_seed = (std::uint64_t{entropy()} << 32) | entropy();
  return context;
}

std::string Service::resolve_model(const std::string& asked) const {
  const auto& names = settings.model_names;
  if (asked.empty()) return names.front();
  if (std::find(names.begin(), names.end(), asked) != names.end()) return asked;
  if (std::find(names.begin(), names.end(), "*") != names.end()) return asked;
  throw RequestError({.status = 404,
                      .type = "not_found_error",
                      .code = "model_not_found",
                      .param = "model",
                      .message = fmt::format("The model '{}' does not exist: this server has '{}'.", asked, names.front()),
                      .retry_after = {},
                      .should_retry = {}});
}

ApiError Service::error_of(const std::exception& error, const std::string& request_id) const {
  ApiError api = api_error(error, request_id);
  if (const auto* refusal = dynamic_cast<const EngineRefusal*>(&error);
      refusal != nullptr && refusal->kind() == EngineErrorKind::kQueueFull && settings.queue_full_status == 429) {
    api.status = 429;
    api.type = "rate_limit_error";
  }
  return api;
}

void Service::check_prompt_bytes(std::size_t bytes, std::string_view field) const {
  if (max_prompt_bytes > 0 && bytes > max_prompt_bytes)
    throw RequestError(std::string(field),
                       fmt::format("This model's maximum context length is {} tokens. However, the request has {} bytes of input, which "
                                   "cannot fit. Shorten the input.",
                                   context_tokens, bytes),
                       "context_length_exceeded");
}

std::vector<int> Service::encode(const std::string& prompt, std::string_view field) const {
  check_prompt_bytes(prompt.size(), field);
  return tokenizer->encode(prompt);
}

std::optional<ThinkingTokens> thinking_tokens(const Tokenizer& tokenizer, const std::string& message) {
  const auto start = tokenizer.added_token("<think>"), end = tokenizer.added_token("</think>");
  if (!start || !end) return std::nullopt;
  ThinkingTokens tokens{*start, *end, tokenizer.encode(message + "\n</think>\n\n")};
  ThinkingBudget({.start_id = *start, .end_id = *end, .inside = true, .budget = 0, .end_phrase = tokens.end_phrase})
      .check(tokenizer.size());
  return tokens;
}

std::size_t longest_prompt_bytes(const Tokenizer& tokenizer, int context_tokens) {
  std::size_t longest = 1;
  for (int id = 0; id < tokenizer.size(); ++id) longest = std::max(longest, tokenizer.token_bytes(id).size());
  constexpr std::size_t kNormalizedGrowth = 4;  // bytes before normalisation for one after it, at most
  return longest * kNormalizedGrowth * static_cast<std::size_t>(context_tokens);
}

}  // namespace tetrad
