#include "cpu/attention.h"

#include <cmath>

#include "cpu/attention_kernels.h"
#include "cpu/vector_math.h"

namespace tetrad::cpu {

void attend_head(const AttendHeadArgs& a) {
  const auto scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(a.DH)));
  attention_scores(a.q, a.k_rows, a.num_rows, a.head_offset, a.DH, a.scratch);
  for (int n = 0; n < a.num_rows; ++n) a.scratch[n] = round_bf16(round_bf16(a.scratch[n]) * scale);
  softmax(a.scratch, a.scratch, a.num_rows);
  round_bf16_array(a.scratch, a.num_rows);
  attention_weighted_sum(a.scratch, a.v_rows, a.num_rows, a.head_offset, a.DH, a.out);
  round_bf16_array(a.out, a.DH);
}

}  // namespace tetrad::cpu
