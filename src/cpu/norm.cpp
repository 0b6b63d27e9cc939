#include "cpu/norm.h"

#include <cmath>

#include "base/bf16.h"
#include "cpu/mutants.h"
#include "cpu/vector_math.h"

namespace tetrad::cpu {

float inverse_rms(const float* x, int n, float eps) {
  const float mean = sum_of_squares(x, n) / static_cast<float>(n);
  return 1.0f / std::sqrt(mutant(Mutant::kEpsRemoved) ? mean : mean + eps);
}

void rms_norm_row(const float* x, const float* scale, float eps, int groups, int group, float* out) {
  for (int g = 0; g < groups; ++g) {
    const int first = g * group;
    scale_round_bf16(x + first, inverse_rms(x + first, group, eps), scale + first, out + first, group);
  }
}

void rms_norm(const NormArgs& a, ThreadPool& pool) {
  pool.parallel_for(a.rows, 1, [&](int begin, int end) {
    for (int t = begin; t < end; ++t) {
      const float* x = a.x + static_cast<std::ptrdiff_t>(t) * a.ldx;
      rms_norm_row(x, a.scale, a.eps, a.groups, a.group, a.out + static_cast<std::ptrdiff_t>(t) * a.ldo);
    }
  });
}

}  // namespace tetrad::cpu
