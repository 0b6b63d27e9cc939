#include "engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/error.h"
#include "engine/philox.h"
#include "text/tokenizer.h"

namespace tetrad {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

}  // namespace

SampleableIds SampleableIds::of(const Tokenizer& tokenizer, int vocab_size) {
  SampleableIds ids{vocab_size, std::min(vocab_size, tokenizer.size()), {}};
  for (int id = 0; id < ids.limit; ++id)
    if (tokenizer.token_bytes(id).empty()) ids.holes.push_back(id);
  return ids;
}

Sampler::Sampler(SamplingParams params, SampleableIds ids, std::span<const int> prompt_ids)
    : params_(std::move(params)), ids_(std::move(ids)) {
  validate(params_, ids_.vocab_size);
  TETRAD_CHECK(ids_.limit >= 0 && ids_.limit <= ids_.vocab_size, "limit {} of {} ids", ids_.limit, ids_.vocab_size);
  if (static_cast<float>(params_.temperature) == 0.0f) params_.temperature = 0.0;
  if (params_.repetition_penalty != 1.0)
    for (const int id : prompt_ids) use_[id].in_prompt = true;
}

bool Sampler::tracks_use() const {
  return params_.repetition_penalty != 1.0 || params_.presence_penalty != 0.0 || params_.frequency_penalty != 0.0;
}

void Sampler::accept(int id) {
  if (tracks_use()) ++use_[id].in_answer;
}

void Sampler::adjust(std::span<float> scores) const {
  const int limit = static_cast<int>(scores.size());
  for (const auto& [id, bias] : params_.logit_bias)
    if (id < limit) scores[id] += static_cast<float>(bias);
  const auto repetition = static_cast<float>(params_.repetition_penalty);
  for (const auto& [id, use] : use_) {
    if (id < 0 || id >= limit) continue;
    float& score = scores[id];
    score = score > 0 ? score / repetition : score * repetition;
    if (use.in_answer == 0) continue;
    score -= static_cast<float>(params_.frequency_penalty * use.in_answer);
    score -= static_cast<float>(params_.presence_penalty);
  }
}

int Sampler::choose(std::span<const float> scores, std::int64_t position) {
  const int best_id = argmax(scores);
  if (best_id < 0) fail<NumericError>("logits at position {}: no token is above minus infinity", position);
  if (params_.greedy()) return best_id;
  const float best = scores[best_id];
  // Penalties can divide a huge logit past the largest float.
  if (best == kInfinity) fail<NumericError>("logits at position {}: penalties take token id {} to infinity", position, best_id);

  const bool few = params_.top_k > 0 && params_.top_k < static_cast<int>(scores.size());
  if (few) {
    select_top_k(scores, params_.top_k, best_);
    best_scores_.clear();
    for (const ScoredToken& token : best_) best_scores_.push_back(token.score);
    scores = best_scores_;
  }
  weights_.resize(scores.size());
  softmax_weights(scores, best, static_cast<float>(params_.temperature), weights_);
  keep_top_p(scores, weights_, params_.top_p);
  if (params_.min_p > 0) {
    const auto least = static_cast<float>(params_.min_p);  // the best weight is 1
    for (float& weight : weights_) weight = weight < least ? 0.0f : weight;
  }
  const int index = draw_index(weights_, philox_uniform(params_.seed, static_cast<std::uint64_t>(position)));
  return few ? best_[index].id : index;
}

void Sampler::report_logprobs(std::span<const float> row, std::span<const float> scores, SampledToken& sampled) {
  const float best = row[argmax(row)];
  weights_.resize(row.size());
  softmax_weights(row, best, 1.0f, weights_);
  const double log_total = std::log(sum_weights(weights_));
  const auto logprob = [&](int id) { return TokenLogprob{id, static_cast<float>(static_cast<double>(row[id] - best) - log_total)}; };
  sampled.logprob = logprob(sampled.id);
  if (*params_.logprobs == 0) return;
  select_top_k(scores, *params_.logprobs, best_);
  std::sort(best_.begin(), best_.end(), ranks_before);
  for (const ScoredToken& token : best_) sampled.top.push_back(logprob(token.id));
}

SampledToken Sampler::sample(std::span<const float> logits, std::int64_t position) {
  TETRAD_CHECK(static_cast<int>(logits.size()) == ids_.vocab_size, "sample: {} logits for a vocabulary of {}", logits.size(),
               ids_.vocab_size);
  if (!is_sound(logits)) {
    const auto bad = std::find_if(logits.begin(), logits.end(), [](float x) { return !(x <= std::numeric_limits<float>::max()); });
    fail<NumericError>("logits at position {}: {} at token id {}", position, *bad, bad - logits.begin());
  }
  const bool adjusted = !params_.logit_bias.empty() || !use_.empty();
  const bool copied = adjusted || !ids_.holes.empty();
  std::span<const float> scores = logits.first(static_cast<std::size_t>(ids_.limit));
  const auto fill_scores = [&] {
    scores_.assign(logits.begin(), logits.begin() + ids_.limit);
    for (const int id : ids_.holes) scores_[id] = -kInfinity;
  };
  if (copied) {
    fill_scores();
    if (adjusted) adjust(scores_);
    scores = scores_;
  }
  SampledToken sampled;
  sampled.id = choose(scores, position);
  if (params_.logprobs) {
    if (adjusted) fill_scores();  // the report is of the raw row
    report_logprobs(logits, adjusted ? std::span<const float>(scores_) : scores, sampled);
  }
  return sampled;
}

}  // namespace tetrad
