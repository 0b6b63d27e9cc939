#include "engine/sampler.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <utility>

#include "base/error.h"
#include "engine/philox.h"
#include "engine/token_constraint.h"

namespace tetrad {

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

// The index of the score chosen.
int Sampler::choose(std::span<const float> scores, std::int64_t position, bool restricted) {
  const int best_id = argmax(scores);
  if (best_id < 0 && restricted) fail<ConstraintError>("no token is allowed at position {}", position);
  if (best_id < 0) fail<NumericError>("logits at position {}: no token is above minus infinity", position);
  if (params_.greedy()) return best_id;
  const float best = scores[best_id];
  // Penalties can divide a huge logit past the largest float.
  if (best == std::numeric_limits<float>::infinity())
    fail<NumericError>("logits at position {}: penalties take token id {} to infinity", position, best_id);

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

SampledToken Sampler::sample(std::span<const float> logits, std::int64_t position, const TokenMask* allowed) {
  TETRAD_CHECK(static_cast<int>(logits.size()) == ids_.vocab_size, "sample: {} logits for a vocabulary of {}", logits.size(),
               ids_.vocab_size);
  require_sound(logits, position);
  int num_allowed = ids_.vocab_size;
  if (allowed != nullptr) {
    TETRAD_CHECK(allowed->vocab_size() == ids_.vocab_size, "a mask of {} ids for a vocabulary of {}", allowed->vocab_size(),
                 ids_.vocab_size);
    num_allowed = allowed->count();
    if (num_allowed == ids_.vocab_size) allowed = nullptr;
  }
  const bool adjusted = !params_.logit_bias.empty() || !use_.empty();
  SampledToken sampled;
  constexpr int kFewIn = 32;  // of so many ids one at most: then only the allowed ones are looked at
  if (allowed != nullptr && !adjusted && num_allowed <= ids_.vocab_size / kFewIn) {
    gather_allowed(logits, *allowed);
    sampled.id = few_ids_[static_cast<std::size_t>(choose(scores_, position, true))];
  } else if (allowed != nullptr || adjusted || !ids_.holes.empty()) {
    fill_scores(logits, allowed);
    if (adjusted) adjust(scores_);
    sampled.id = choose(scores_, position, allowed != nullptr);
  } else {
    sampled.id = choose(logits.first(static_cast<std::size_t>(ids_.limit)), position, false);
  }
  if (params_.logprobs) report(logits, sampled);
  return sampled;
}

SampledToken Sampler::force(std::span<const float> logits, std::int64_t position, int id) {
  require_sound(logits, position);
  SampledToken sampled;
  sampled.id = id;
  if (params_.logprobs) report(logits, sampled);
  return sampled;
}

// The scores of the allowed ids alone, in order of id.
void Sampler::gather_allowed(std::span<const float> logits, const TokenMask& allowed) {
  scores_.clear();
  few_ids_.clear();
  const std::span<const std::uint32_t> words = allowed.words();
  for (std::size_t w = 0; w < words.size(); ++w) {
    for (std::uint32_t bits = words[w]; bits != 0; bits &= bits - 1) {
      const int id = static_cast<int>(w) * 32 + std::countr_zero(bits);
      if (id >= ids_.limit || std::binary_search(ids_.holes.begin(), ids_.holes.end(), id)) continue;
      few_ids_.push_back(id);
      scores_.push_back(logits[static_cast<std::size_t>(id)]);
    }
  }
}

// The scores of the ids that may be chosen; the others at minus infinity.
void Sampler::fill_scores(std::span<const float> logits, const TokenMask* allowed) {
  const auto scores = logits.first(static_cast<std::size_t>(ids_.limit));
  if (allowed != nullptr) {
    scores_.resize(scores.size());
    copy_allowed(scores, allowed->words(), scores_);
  } else {
    scores_.assign(scores.begin(), scores.end());
  }
  for (const int id : ids_.holes) scores_[static_cast<std::size_t>(id)] = -std::numeric_limits<float>::infinity();
}

// Of the raw row, whatever has restricted or adjusted it.
void Sampler::report(std::span<const float> logits, SampledToken& sampled) {
  std::span<const float> candidates = logits.first(static_cast<std::size_t>(ids_.limit));
  if (!ids_.holes.empty() && *params_.logprobs > 0) {
    fill_scores(logits, nullptr);
    candidates = scores_;
  }
  report_.fill(logits, candidates, *params_.logprobs, sampled);
}

}  // namespace tetrad
