#include "engine/sampler.h"

#include <algorithm>
#include <cmath>
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
  const auto temperature = static_cast<float>(params_.temperature);
  choice_.inverse_temperature = temperature == 0.0f ? 0.0f : std::min(1.0f / temperature, kLargestScore);
  choice_.top_k = std::max(params_.top_k, 0);
  choice_.top_p = top_p_units(params_.top_p);
  if (params_.min_p > 0) choice_.least_exponent = static_cast<float>(std::log(params_.min_p));
  choice_.repetition = static_cast<float>(params_.repetition_penalty);
  choice_.presence = static_cast<float>(params_.presence_penalty);
  for (const auto& [id, bias] : params_.logit_bias) {
    TokenAdjustment& adjustment = adjustment_of(id);
    adjustment.flags |= TokenAdjustment::kBiased;
    adjustment.bias = static_cast<float>(bias);
  }
  if (params_.repetition_penalty == 1.0) return;
  for (const int id : prompt_ids) adjustment_of(id).flags |= TokenAdjustment::kUsed;
}

TokenAdjustment& Sampler::adjustment_of(int id) {
  TETRAD_CHECK(id >= 0 && id < ids_.vocab_size, "token id {} of {}", id, ids_.vocab_size);
  const auto [it, is_new] = use_.try_emplace(id, TokenUse{adjustments_.size(), 0});
  if (is_new) adjustments_.push_back({.id = id});
  return adjustments_[it->second.adjustment];
}

bool Sampler::tracks_use() const {
  return params_.repetition_penalty != 1.0 || params_.presence_penalty != 0.0 || params_.frequency_penalty != 0.0;
}

void Sampler::accept(int id) {
  if (!tracks_use()) return;
  TokenAdjustment& adjustment = adjustment_of(id);
  adjustment.flags |= TokenAdjustment::kUsed | TokenAdjustment::kInAnswer;
  adjustment.frequency = static_cast<float>(params_.frequency_penalty * ++use_.at(id).in_answer);
}

TokenChoice Sampler::choice(std::int64_t position, const TokenMask* allowed) const {
  TokenChoice choice = choice_;
  choice.random = philox_bits(params_.seed, static_cast<std::uint64_t>(position));
  choice.adjustments = adjustments_;
  if (allowed == nullptr) return choice;
  TETRAD_CHECK(allowed->vocab_size() == ids_.vocab_size, "a mask of {} ids for a vocabulary of {}", allowed->vocab_size(), ids_.vocab_size);
  if (allowed->count() < ids_.vocab_size) choice.mask = allowed->words();
  return choice;
}

SampledToken Sampler::chosen(const ChosenToken& token, std::int64_t position) const {
  switch (token.outcome) {
    case ChoiceOutcome::kChosen: break;
    case ChoiceOutcome::kUnsound: fail<NumericError>("logits at position {}: {} at token id {}", position, token.value, token.id);
    case ChoiceOutcome::kNothing: fail<NumericError>("logits at position {}: no token is above minus infinity", position);
    case ChoiceOutcome::kNotAllowed: fail<ConstraintError>("no token is allowed at position {}", position);
    case ChoiceOutcome::kToInfinity:
      fail<NumericError>("logits at position {}: penalties take token id {} to infinity", position, token.id);
  }
  TETRAD_CHECK(token.id >= 0 && token.id < ids_.vocab_size, "token id {} of {} was chosen", token.id, ids_.vocab_size);
  SampledToken sampled;
  sampled.id = token.id;
  return sampled;
}

SampledToken Sampler::sample(std::span<const float> logits, std::int64_t position, const TokenMask* allowed) {
  TETRAD_CHECK(static_cast<int>(logits.size()) == ids_.vocab_size, "sample: {} logits for a vocabulary of {}", logits.size(),
               ids_.vocab_size);
  SampledToken sampled = chosen(chooser_.choose(logits, ids_.limit, ids_.holes, choice(position, allowed)), position);
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

// Of the raw row, whatever has restricted or adjusted it.
void Sampler::report(std::span<const float> logits, SampledToken& sampled) {
  std::span<const float> candidates = logits.first(static_cast<std::size_t>(ids_.limit));
  if (!ids_.holes.empty() && *params_.logprobs > 0) {
    candidates_.assign(candidates.begin(), candidates.end());
    for (const int id : ids_.holes) candidates_[static_cast<std::size_t>(id)] = -std::numeric_limits<float>::infinity();
    candidates = candidates_;
  }
  report_.fill(logits, candidates, *params_.logprobs, sampled);
}

}  // namespace tetrad
