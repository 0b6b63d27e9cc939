#include "engine/logprobs.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

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

PromptScorer::PromptScorer(const GenerationRequest& request, SampleableIds ids)
    : prompt_(request.prompt_ids),
      num_top_(request.prompt_logprobs),
      num_rows_(static_cast<int>(request.prompt_ids.size()) - 1),
      ids_(std::move(ids)) {
  TETRAD_CHECK(num_top_ >= 0 && num_rows_ >= 0, "{} log probabilities of a prompt of {} rows", num_top_, num_rows_ + 1);
}

std::vector<SampledToken> PromptScorer::take(std::span<const float> logits, int first_row) {
  const auto vocab = static_cast<std::size_t>(ids_.vocab_size);
  const int end = std::min(first_row + static_cast<int>(logits.size() / vocab), num_rows_);
  TETRAD_CHECK(logits.size() % vocab == 0 && first_row <= scored_ && end >= scored_, "rows [{}, {}) of a prompt scored up to row {}",
               first_row, end, scored_);
  std::vector<SampledToken> scores;
  scores.reserve(static_cast<std::size_t>(end - scored_));
  for (; scored_ < end; ++scored_) {
    const auto row = logits.subspan(static_cast<std::size_t>(scored_ - first_row) * vocab, vocab);
    require_sound(row, scored_ + 1);
    if (argmax(row) < 0) fail<NumericError>("logits at position {}: no token is above minus infinity", scored_ + 1);
    std::span<const float> candidates = row.first(static_cast<std::size_t>(ids_.limit));
    if (num_top_ > 0 && !ids_.holes.empty()) {
      candidates_.assign(candidates.begin(), candidates.end());
      for (const int id : ids_.holes) candidates_[static_cast<std::size_t>(id)] = -std::numeric_limits<float>::infinity();
      candidates = candidates_;
    }
    SampledToken& token = scores.emplace_back();
    token.id = prompt_[static_cast<std::size_t>(scored_) + 1];
    report_.fill(row, candidates, num_top_, token);
  }
  return scores;
}

}  // namespace tetrad
