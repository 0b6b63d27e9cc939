#pragma once
// Chooses the next token of one request from its row of logits.
//
// Order: the allowed ids; logit bias, repetition penalty, frequency and presence penalty on the raw logits; temperature; top-k; top-p;
// min-p; draw.
//   transformers: sequence bias, repetition penalty, temperature, top-k, top-p, min-p. Differs from here in keeping every token that ties
//     with the k-th best (here exactly k, the lower id first) and in having no presence and frequency penalty.
//   vLLM: bias, penalties and temperature as here, then min-p before top-k and top-p. min-p compares with the best token only, so the
//     order matters just where top-p is on too: here top-p measures the mass before min-p thins it.
// Each filter works on what the one before it left, renormalised. The repetition penalty divides a positive logit and multiplies a negative
// one, for tokens of the prompt and of the answer; frequency (times the count) and presence (once) are subtracted, for tokens of the
// answer.
//
// Ties: higher score first, then lower id; greedy takes the first. A row is drawn by the inverse of its cumulative distribution in order of
// id, with 64 Philox bits keyed by the seed and the position of the token, so a draw does not depend on what shares the batch. Weights are
// integers (model/token_choice.h): whoever draws, this or a backend that keeps the row on its device, draws the same id.
// Ids without a token (padding rows of the vocabulary, holes) are never chosen, whatever their logits and biases.
// Logprobs are of the raw row (logprobs.h).
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/logprobs.h"
#include "engine/row_chooser.h"
#include "engine/sampling_params.h"
#include "engine/token_mask.h"

namespace tetrad {

class Sampler {
 public:
  // Validates params (InputError). prompt_ids feed the repetition penalty.
  Sampler(SamplingParams params, SampleableIds ids, std::span<const int> prompt_ids);

  // logits [V]; position: how many tokens precede the one chosen. Does not count the token as part of the answer: accept() does.
  // allowed, of V ids: the only ones that may be chosen; null: all. Throws NumericError if the row holds a NaN or plus infinity, or nothing
  // above minus infinity, and ConstraintError if only what is allowed holds nothing.
  SampledToken sample(std::span<const float> logits, std::int64_t position, const TokenMask* allowed = nullptr);
  // The same where there is no choice.
  SampledToken force(std::span<const float> logits, std::int64_t position, int id);
  void accept(int id);

  // The two in halves, for whoever holds the row: what sample() chooses from, valid until accept() and as long as the mask; and what it
  // returns or throws of the answer. Log probabilities need the row itself (needs_row).
  TokenChoice choice(std::int64_t position, const TokenMask* allowed = nullptr) const;
  SampledToken chosen(const ChosenToken& token, std::int64_t position) const;
  bool needs_row() const { return params_.logprobs.has_value(); }

 private:
  struct TokenUse {
    std::size_t adjustment = 0;  // its index
    int in_answer = 0;
  };

  TokenAdjustment& adjustment_of(int id);
  bool tracks_use() const;
  void report(std::span<const float> logits, SampledToken& sampled);

  SamplingParams params_;
  SampleableIds ids_;
  TokenChoice choice_;  // but for what differs from token to token
  std::vector<TokenAdjustment> adjustments_;
  std::unordered_map<int, TokenUse> use_;
  RowChooser chooser_;
  std::vector<float> candidates_;  // [V]
  LogprobReport report_;
};

}  // namespace tetrad
