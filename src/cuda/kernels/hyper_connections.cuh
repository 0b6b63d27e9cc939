#pragma once
// What the kernels of hyper_connections share.
#include "cuda/kernels/device_math.cuh"
#include "cuda/kernels/hyper_connections.h"

namespace tetrad::cuda {

// One output of down_inject, still unrounded, activated: a column of low, or an injection weight; neither past the last.
__device__ __forceinline__ void hc_store_low(const HcShape& s, float sum, int t, int j, bf16* low, int ld_low, bf16* inject) {
  const float v = round_b16(round_b16(sum) / static_cast<float>(s.HC));
  if (j < s.LR)
    low[static_cast<std::size_t>(t) * ld_low + j] = to_b16(silu_f32(v));
  else if (inject != nullptr && j < s.LR + s.HC)
    inject[t * s.HC + j - s.LR] = to_b16(2.0f * round_b16(sigmoid_f32(v)));  // exact
}

}  // namespace tetrad::cuda
