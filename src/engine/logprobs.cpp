#include "engine/logprobs.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "text/tokenizer.h"

namespace tetrad {

SampleableIds SampleableIds::of(const Tokenizer& tokenizer, int vocab_size) {
  SampleableIds ids{vocab_size, std::min(vocab_size, tokenizer.size()), {}};
  for (int id = 0; id < ids.limit; ++id)
    if (tokenizer.token_bytes(id).empty()) ids.holes.push_back(id);
  return ids;
}

void require_sound(std::span<const float> logits, std::int64_t position) {
  if (is_sound(logits)) return;
  const auto bad = std::find_if(logits.begin(), logits.end(), [](float x) { return !(x <= std::numeric_limits<float>::max()); });
  fail<NumericError>("logits at position {}: {} at token id {}", position, *bad, bad - logits.begin());
}

void LogprobReport::fill(std::span<const float> row, std::span<const float> candidates, int num_top, SampledToken& token) {
  const float best = row[static_cast<std::size_t>(argmax(row))];
  weights_.resize(row.size());
  softmax_weights(row, best, 1.0f, weights_);
  const double log_total = std::log(sum_weights(weights_));
  const auto logprob = [&](int id) {
    return TokenLogprob{id, static_cast<float>(static_cast<double>(row[static_cast<std::size_t>(id)] - best) - log_total)};
  };
  token.logprob = logprob(token.id);
  if (num_top == 0) return;
  select_top_k(candidates, num_top, best_);
  std::sort(best_.begin(), best_.end(), ranks_before);
  token.top.reserve(best_.size());
  for (const ScoredToken& scored : best_) token.top.push_back(logprob(scored.id));
}

}  // namespace tetrad
