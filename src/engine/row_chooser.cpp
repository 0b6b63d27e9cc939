#include "engine/row_chooser.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "base/error.h"
#include "engine/token_mask.h"

namespace tetrad {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
constexpr std::size_t kFewIn = 32;  // of so many ids one at most is allowed: then only the allowed ones are looked at

}  // namespace

ChosenToken RowChooser::choose(std::span<const float> row, int limit, std::span<const int> holes, const TokenChoice& choice) {
  if (!is_sound(row)) {
    const auto bad = std::find_if(row.begin(), row.end(), [](float x) { return !(x <= kLargestScore); });
    return {static_cast<int>(bad - row.begin()), ChoiceOutcome::kUnsound, *bad};
  }
  if (choice.forced >= 0) return {.id = choice.forced};
  few_ids_.clear();
  const std::span<const float> scores = scores_of(row, limit, holes, choice);
  const auto id_at = [&](int index) { return few_ids_.empty() ? index : few_ids_[static_cast<std::size_t>(index)]; };
  const int first = argmax(scores);
  if (first < 0) return {.outcome = choice.mask.empty() ? ChoiceOutcome::kNothing : ChoiceOutcome::kNotAllowed};
  if (choice.inverse_temperature == 0) return {.id = id_at(first)};
  const float best = scores[static_cast<std::size_t>(first)];
  if (best > kLargestScore) return {.id = id_at(first), .outcome = ChoiceOutcome::kToInfinity};
  return {.id = id_at(draw(scores, best, choice))};
}

// The index of the score drawn.
int RowChooser::draw(std::span<const float> scores, float best, const TokenChoice& choice) {
  const bool few = choice.top_k > 0 && static_cast<std::size_t>(choice.top_k) < scores.size();
  if (few) {
    select_top_k(scores, choice.top_k, best_);
    best_scores_.clear();
    for (const ScoredToken& token : best_) best_scores_.push_back(token.score);
    scores = best_scores_;
  }
  weights_.resize(scores.size());
  softmax_weights(scores, best, choice.inverse_temperature, weights_);
  if (choice.top_p > 0) drop_others(scores, top_p_.keep(scores, weights_, choice.top_p), weights_);
  if (choice.least_exponent > kMinusInfinity)
    for (std::size_t i = 0; i < scores.size(); ++i)
      weights_[i] = choice_exponent(scores[i], best, choice.inverse_temperature) < choice.least_exponent ? 0.0f : weights_[i];
  const int index = draw_index(weights_, choice.random);
  return few ? best_[static_cast<std::size_t>(index)].id : index;
}

// Of the ids that may be chosen; the others at minus infinity, or not among them.
std::span<const float> RowChooser::scores_of(std::span<const float> row, int limit, std::span<const int> holes, const TokenChoice& choice) {
  const auto scores = row.first(static_cast<std::size_t>(limit));
  if (!choice.mask.empty() && choice.adjustments.empty() && count_ids(choice.mask) <= row.size() / kFewIn) {
    gather_allowed(row, limit, holes, choice.mask);
    return scores_;
  }
  if (choice.mask.empty() && choice.adjustments.empty() && holes.empty()) return scores;
  scores_.resize(scores.size());
  if (choice.mask.empty())
    std::copy(scores.begin(), scores.end(), scores_.begin());
  else
    copy_allowed(scores, choice.mask, scores_);
  for (const int id : holes) scores_[static_cast<std::size_t>(id)] = kMinusInfinity;
  for (const TokenAdjustment& adjustment : choice.adjustments) {
    if (adjustment.id >= limit) continue;
    float& score = scores_[static_cast<std::size_t>(adjustment.id)];
    score = adjusted_score(score, adjustment, choice.repetition, choice.presence);
  }
  return scores_;
}

// The scores of the allowed ids alone, in order of id.
void RowChooser::gather_allowed(std::span<const float> row, int limit, std::span<const int> holes, std::span<const std::uint32_t> mask) {
  scores_.clear();
  for (std::size_t w = 0; w < mask.size(); ++w) {
    for (std::uint32_t bits = mask[w]; bits != 0; bits &= bits - 1) {
      const int id = static_cast<int>(w) * 32 + std::countr_zero(bits);
      if (id >= limit || std::binary_search(holes.begin(), holes.end(), id)) continue;
      few_ids_.push_back(id);
      scores_.push_back(row[static_cast<std::size_t>(id)]);
    }
  }
}

}  // namespace tetrad
