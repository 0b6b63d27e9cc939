#include "engine/sampling_params.h"

#include <string_view>
#include <unordered_set>

#include "base/error.h"

namespace tetrad {
namespace {

// Written so that a NaN fails.
void check_closed(std::string_view field, double value, double low, double high) {
  if (!(value >= low && value <= high)) fail<InputError>("{} must be between {} and {}, got {}", field, low, high, value);
}

void check_half_open(std::string_view field, double value, double high) {
  if (!(value > 0.0 && value <= high)) fail<InputError>("{} must be greater than 0 and at most {}, got {}", field, high, value);
}

}  // namespace

void validate(const SamplingParams& params, int vocab_size) {
  if (!(params.temperature >= 0.0 && params.temperature <= kMaxTemperature))
    fail<InputError>("temperature must be between 0 (greedy) and {}, got {}", kMaxTemperature, params.temperature);
  if (params.top_k < -1) fail<InputError>("top_k must be at least 1, or 0 or -1 for no limit, got {}", params.top_k);
  check_half_open("top_p", params.top_p, 1.0);
  check_closed("min_p", params.min_p, 0.0, 1.0);
  check_half_open("repetition_penalty", params.repetition_penalty, kMaxRepetitionPenalty);
  check_closed("presence_penalty", params.presence_penalty, -kMaxAdditivePenalty, kMaxAdditivePenalty);
  check_closed("frequency_penalty", params.frequency_penalty, -kMaxAdditivePenalty, kMaxAdditivePenalty);
  if (params.logprobs && (*params.logprobs < 0 || *params.logprobs > kMaxLogprobs))
    fail<InputError>("logprobs must be between 0 and {}, got {}", kMaxLogprobs, *params.logprobs);
  std::unordered_set<int> seen;
  for (const auto& [id, bias] : params.logit_bias) {
    if (id < 0 || id >= vocab_size) fail<InputError>("logit_bias: token id {} is outside the vocabulary [0, {})", id, vocab_size);
    if (!(bias >= -kMaxLogitBias && bias <= kMaxLogitBias))
      fail<InputError>("logit_bias of token id {} must be between {} and {}, got {}", id, -kMaxLogitBias, kMaxLogitBias, bias);
    if (!seen.insert(id).second) fail<InputError>("logit_bias: token id {} is given twice", id);
  }
}

}  // namespace tetrad
