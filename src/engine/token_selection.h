#pragma once
// Selection over a row of scores without sorting it: the passes that the sampler is made of. Ties: higher score first, then lower index.
// A score of minus infinity is never selected. Scores hold no NaN and no plus infinity.
#include <cstdint>
#include <span>
#include <vector>

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

// weights[i] = exp((scores[i] - best) / temperature) to about 2e-7 relative, 0 below e^-87. The polynomial is our own so that the bits do
// not depend on the C library. best = max(scores), temperature > 0; weights has the size of scores.
void softmax_weights(std::span<const float> scores, float best, float temperature, std::span<float> weights);

// Sum in a fixed order, in double.
double sum_weights(std::span<const float> weights);

// Zeroes every weight outside the smallest set, taken in rank order, whose mass reaches top_p of the total (the token that crosses is
// kept).
void keep_top_p(std::span<const float> scores, std::span<float> weights, double top_p);

// The first index, in ascending order, at which the running sum of weights exceeds uniform * total. At least one weight is positive.
int draw_index(std::span<const float> weights, double uniform);

}  // namespace tetrad
