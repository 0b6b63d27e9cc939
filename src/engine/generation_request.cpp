#include "engine/generation_request.h"

#include <algorithm>

#include "base/error.h"
#include "engine/stop_strings.h"

namespace tetrad {

std::string_view finish_reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop: return "stop";
    case FinishReason::kLength: return "length";
    case FinishReason::kContext: return "context";
    case FinishReason::kCancelled: return "cancelled";
  }
  fail<InternalError>("finish reason {} has no name", static_cast<int>(reason));
}

int context_length(const GenerationRequest& request, int max_positions) {
  return request.max_length > 0 ? std::min(request.max_length, max_positions) : max_positions;
}

void validate(const GenerationRequest& request, int vocab_size, int max_positions) {
  const int max_length = context_length(request, max_positions);
  if (request.prompt_ids.empty()) fail<InputError>("the prompt is empty: at least one token is needed");
  for (std::size_t i = 0; i < request.prompt_ids.size(); ++i)
    if (request.prompt_ids[i] < 0 || request.prompt_ids[i] >= vocab_size)
      fail<InputError>("prompt token {} has id {}, outside the vocabulary [0, {})", i, request.prompt_ids[i], vocab_size);
  const std::size_t answer = request.prompt_only ? 0 : 1;  // tokens that must find room
  if (request.prompt_ids.size() + answer > static_cast<std::size_t>(max_length))
    fail<InputError>("the prompt has {} tokens and the context holds {}{}: shorten the prompt or raise the context length",
                     request.prompt_ids.size(), max_length, request.prompt_only ? "" : ", the answer included");
  if (request.max_tokens < 0) fail<InputError>("max_tokens must be at least 1, or 0 for no limit, got {}", request.max_tokens);
  if (request.prompt_only && request.max_tokens > 0)
    fail<InputError>("a request for the prompt alone has no answer: max_tokens must be 0, got {}", request.max_tokens);
  if (request.min_tokens < 0) fail<InputError>("min_tokens must be at least 0, got {}", request.min_tokens);
  if (request.min_tokens > 0 && request.prompt_only) fail<InputError>("a request for the prompt alone has no answer: min_tokens must be 0");
  if (request.max_tokens > 0 && request.min_tokens > request.max_tokens)
    fail<InputError>("min_tokens must be at most max_tokens, got {} and {}", request.min_tokens, request.max_tokens);
  for (const auto& constraint : request.constraints) {
    if (constraint == nullptr) fail<InputError>("a constraint of the answer is missing");
    constraint->check(vocab_size);
  }
  if (request.prompt_logprobs < -1 || request.prompt_logprobs > kMaxLogprobs)
    fail<InputError>("prompt_logprobs must be between 0 and {}, or -1 for none, got {}", kMaxLogprobs, request.prompt_logprobs);
  validate(request.sampling, vocab_size);
  const StopStrings checks_its_strings(request.stop_strings, request.include_stop);
}

}  // namespace tetrad
