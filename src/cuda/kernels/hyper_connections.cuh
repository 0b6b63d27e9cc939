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

inline constexpr int kInjectKept = 12;  // elements of a stream that a thread of 256 keeps between the two passes of inject and norm

// An element of a stream with the injection of the sub-block before it; y null: none.
__device__ __forceinline__ float injected(float h, float weight, const bf16* y) {
  return y == nullptr ? h : round_b16(h + round_b16(weight * to_f32(*y)));
}
__device__ __forceinline__ float inverse_rms(float sum, const HcShape& s) { return 1.0f / sqrtf(sum / static_cast<float>(s.D) + s.eps); }

}  // namespace tetrad::cuda
