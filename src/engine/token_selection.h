#pragma once
// Selection over a row of scores without sorting it: the passes that the sampler is made of. Ties: higher score first, then lower index.
// A score of minus infinity is never selected. Scores hold no NaN and no plus infinity.
#include <cstdint>
#include <span>
#include <vector>

#include "model/token_choice.h"

namespace tetrad {

struct ScoredToken {
  float score = 0;
  int id = 0;
};
inline bool ranks_before(const ScoredToken& a, const ScoredToken& b) { return a.score > b.score || (a.score == b.score && a.id < b.id); }

// Index of the best score in one pass; -1 if all are minus infinity or there are none.
int argmax(std::span<const float> scores);

// Whether every score is finite or minus infinity.
bool is_sound(std::span<const float> scores);

// out[i] = scores[i] where bit i of the mask is set, minus infinity elsewhere. Bit i is bit i % 32 of word i / 32; out has the size of
// scores and the mask no fewer bits.
void copy_allowed(std::span<const float> scores, std::span<const std::uint32_t> mask, std::span<float> out);

// The k best in ascending order of index; fewer if fewer are above minus infinity. k > 0.
void select_top_k(std::span<const float> scores, int k, std::vector<ScoredToken>& best);

// weights[i] = exp_nonpositive((scores[i] - best) * inverse_temperature), see model/token_choice.h. best = max(scores); weights has the
// size of scores.
void softmax_weights(std::span<const float> scores, float best, float inverse_temperature, std::span<float> weights);

// Sum in a fixed order, in double: for log probabilities.
double sum_weights(std::span<const float> weights);

// Sum of the weights as integers (fixed_weight), exact. At most 2^20 of them.
std::uint64_t mass_of(std::span<const float> weights);

// The unit in which TokenChoice holds top-p: 2^-64, rounded down but to 1 at least; 0 from 1.0 on, which keeps everything.
std::uint64_t top_p_units(double top_p);

// Which ids a filter keeps: those with a score above `least`, and of those that equal it the first `ties`.
struct KeptScores {
  float least = 0;
  int ties = 0;
};

// The smallest set, taken in rank order, whose mass reaches top_p of the total (the token that crosses is kept). top_p > 0; some weight is
// positive as an integer.
class TopP {
 public:
  KeptScores keep(std::span<const float> scores, std::span<const float> weights, std::uint64_t top_p);

 private:
  struct Candidate {
    ScoredToken token;
    std::uint64_t weight = 0;
  };
  static KeptScores crossing(std::span<Candidate> candidates, std::uint64_t missing);

  std::vector<std::uint16_t> buckets_;
  std::vector<Candidate> candidates_;
};

// Zeroes the weights of what is not kept.
void drop_others(std::span<const float> scores, KeptScores kept, std::span<float> weights);

// The first index, in ascending order, at which the running sum of integer weights exceeds floor(total * random / 2^64). The total is
// positive.
int draw_index(std::span<const float> weights, std::uint64_t random);

}  // namespace tetrad
