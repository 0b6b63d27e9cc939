#pragma once
// RMS norms (docs/model.md, "Norms"). Statistics in float over a fixed 8-lane order; one rounding to bf16 at the end.
#include "base/thread_pool.h"

namespace tetrad::cpu {

// N1: out = bf16(x * rsqrt(mean(x^2) + eps) * scale), scale = 1 + w formed at load. The mean runs over each group of `group` elements.
// x, out: [rows, groups * group], may alias; scale: [groups * group].
struct NormArgs {
  int rows;
  int groups;
  int group;
  float eps;
  const float* x;
  int ldx;  // elements between rows
  const float* scale;
  float* out;
  int ldo;
};
void rms_norm(const NormArgs& a, ThreadPool& pool);

// One row of the above, for callers that are already inside a parallel loop.
void rms_norm_row(const float* x, const float* scale, float eps, int groups, int group, float* out);

// 1 / sqrt(mean(x^2) + eps) over n elements.
float inverse_rms(const float* x, int n, float eps);

}  // namespace tetrad::cpu
