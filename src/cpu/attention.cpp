#include "cpu/attention.h"

#include <algorithm>
#include <cmath>

#include "cpu/vector_math.h"

namespace tetrad::cpu {

void attend_head(const AttendHeadArgs& a) {
  const auto scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(a.DH)));
  for (int n = 0; n < a.num_rows; ++n) a.scratch[n] = round_bf16(round_bf16(dot(a.q, a.k_rows[n] + a.head_offset, a.DH)) * scale);
  softmax(a.scratch, a.scratch, a.num_rows);
  round_bf16_array(a.scratch, a.num_rows);
  std::fill_n(a.out, a.DH, 0.0f);
  for (int n = 0; n < a.num_rows; ++n) {
    const bf16* v = a.v_rows[n] + a.head_offset;
    const float p = a.scratch[n];
    for (int d = 0; d < a.DH; ++d) a.out[d] += p * to_float(v[d]);
  }
  round_bf16_array(a.out, a.DH);
}

}  // namespace tetrad::cpu
