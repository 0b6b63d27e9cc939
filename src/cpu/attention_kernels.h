#pragma once
// The two sums of attention over gathered rows of bf16, for one head.
//   Order     scores in the 8-lane order of vector_math.h (products rounded before they are added); weighted sums in one chain per
//             element, rows ascending, fused multiply-add. Both give the same bits on every machine: products of bf16 values are exact.
//   NaN       reaches the result as IEEE arithmetic gives it
//   Tests     unit/attention_kernels_test
#include "base/bf16.h"

namespace tetrad::cpu {

// scores[n] = sum_d q[d] * rows[n][offset + d] over DH elements.
void attention_scores(const float* q, const bf16* const* rows, int num_rows, int offset, int DH, float* scores);

// out[d] = sum_n weights[n] * rows[n][offset + d]; zero for num_rows == 0.
void attention_weighted_sum(const float* weights, const bf16* const* rows, int num_rows, int offset, int DH, float* out);

}  // namespace tetrad::cpu
