#pragma once
// Chooses a token from a row of logits on the host: the reference for every backend that chooses on its own (model/token_choice.h).
#include <span>
#include <vector>

#include "engine/token_selection.h"

namespace tetrad {

class RowChooser {
 public:
  // row [V], of which `choice` may be any; limit and holes as in ChoiceBatch.
  ChosenToken choose(std::span<const float> row, int limit, std::span<const int> holes, const TokenChoice& choice);

 private:
  std::span<const float> scores_of(std::span<const float> row, int limit, std::span<const int> holes, const TokenChoice& choice);
  void gather_allowed(std::span<const float> row, int limit, std::span<const int> holes, std::span<const std::uint32_t> mask);
  int draw(std::span<const float> scores, float best, const TokenChoice& choice);

  std::vector<float> scores_, weights_;  // [V], reused from token to token
  std::vector<float> best_scores_;
  std::vector<int> few_ids_;  // ids of scores_ where few are allowed; empty: the index is the id
  std::vector<ScoredToken> best_;
  TopP top_p_;
};

}  // namespace tetrad
