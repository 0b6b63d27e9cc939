#pragma once
// What the kernels of hyper_connections share.
#include "cuda/kernels/device_math.cuh"
#include "cuda/kernels/hyper_connections.h"

namespace tetrad::cuda {

// round_b16 in one instruction: of a pair that is rounded the upper half is a float already.
__device__ __forceinline__ float rounded(float x) {
  unsigned bits;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(x), "f"(0.0f));
  return __uint_as_float(bits);
}

// low and injection weight of a rounded logit; v: over HC and rounded again.
__device__ __forceinline__ bf16 hc_low(const HcShape& s, float logit, float v) {
  if (mutant(Mutant::kMixScaleAfterSilu)) return to_b16(rounded(silu_f32(logit)) / static_cast<float>(s.HC));
  return to_b16(silu_f32(v));
}
__device__ __forceinline__ bf16 hc_injection(float v) {
  return to_b16((mutant(Mutant::kInjectNotDoubled) ? 1.0f : 2.0f) * rounded(sigmoid_f32(v)));  // exact
}

// What a stream adds to the mean, and the mean.
__device__ __forceinline__ float hc_product(float gate, float normed) {
  return mutant(Mutant::kMixUnrounded) ? gate * normed : rounded(gate * normed);
}
__device__ __forceinline__ float hc_mean_of(const HcShape& s, float sum) {
  return mutant(Mutant::kMixSum) ? sum : sum / static_cast<float>(s.HC);
}

// One output of down_inject, still unrounded, activated: a column of low, or an injection weight; neither past the last.
__device__ __forceinline__ void hc_store_low(const HcShape& s, float sum, int t, int j, bf16* low, int ld_low, bf16* inject) {
  const float logit = rounded(sum), v = rounded(logit / static_cast<float>(s.HC));
  if (j < s.LR)
    low[static_cast<std::size_t>(t) * ld_low + j] = hc_low(s, logit, v);
  else if (inject != nullptr && j < s.LR + s.HC)
    inject[t * s.HC + j - s.LR] = hc_injection(v);
}

inline constexpr int kInjectThreads = 256;  // to a stream, where a thread keeps its elements between the two passes of inject and norm
inline constexpr int kInjectKept = 12;      // at most so many
inline constexpr int kInjectWhole = 10;     // of a stream that all threads share evenly, so that nobody asks where it ends

// An element of a stream with the injection of the sub-block before it.
__device__ __forceinline__ float injected(float h, float weight, bf16 y) { return rounded(h + rounded(weight * to_f32(y))); }

// A thread's elements of a stream of D: those at threadIdx.x + i * kInjectThreads, with the injection where there is one; zero past D,
// unless D is just kKept elements a thread. All are asked for before any is used.
template <bool kInject, int kKept>
__device__ __forceinline__ void load_injected(const bf16* h, const bf16* inject, const bf16* y, int D, float (&kept)[kKept]) {
  constexpr bool kWhole = kKept == kInjectWhole;
  const auto place = [&](int i) {
    const int d = static_cast<int>(threadIdx.x) + i * kInjectThreads;
    return kWhole ? d : min(d, D - 1);
  };
  bf16 own[kKept], of_y[kKept] = {};
#pragma unroll
  for (int i = 0; i < kKept; ++i) own[i] = h[place(i)];
  float weight = 0.0f;
  if constexpr (kInject) {
    weight = to_f32(*inject);
#pragma unroll
    for (int i = 0; i < kKept; ++i) of_y[i] = y[place(i)];
  }
#pragma unroll
  for (int i = 0; i < kKept; ++i) {
    const float value = kInject ? injected(to_f32(own[i]), weight, of_y[i]) : to_f32(own[i]);
    kept[i] = kWhole || static_cast<int>(threadIdx.x) + i * kInjectThreads < D ? value : 0.0f;
  }
}
__device__ __forceinline__ float inverse_rms(float sum, const HcShape& s) {
  return 1.0f / sqrtf(sum / static_cast<float>(s.D) + norm_eps(s.eps));
}

}  // namespace tetrad::cuda
