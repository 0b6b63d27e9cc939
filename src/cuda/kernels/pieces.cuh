#pragma once
// Rows of bf16 in pieces of eight elements, 16 bytes, and silu and sigmoid of several numbers at a time with the bits of one at a time.
#include "cuda/kernels/device_math.cuh"

namespace tetrad::cuda {

struct Eight {
  float x[8];
};

__device__ __forceinline__ uint4 piece(const bf16* row, int p) { return reinterpret_cast<const uint4*>(row)[p]; }

__device__ __forceinline__ float low_half(unsigned word) { return __uint_as_float(word << 16); }
__device__ __forceinline__ float high_half(unsigned word) { return __uint_as_float(word & 0xffff0000u); }

__device__ __forceinline__ Eight expand(const uint4& v) {
  return {{low_half(v.x), high_half(v.x), low_half(v.y), high_half(v.y), low_half(v.z), high_half(v.z), low_half(v.w), high_half(v.w)}};
}

__device__ __forceinline__ uint4 round_eight(const Eight& e) {
  const auto two = [](float low, float high) { return to_b16(low).bits | static_cast<unsigned>(to_b16(high).bits) << 16; };
  return {two(e.x[0], e.x[1]), two(e.x[2], e.x[3]), two(e.x[4], e.x[5]), two(e.x[6], e.x[7])};
}

// x / y correctly rounded, as the compiler divides, but without its branch to the slow path for each number: 2^-64 < |x| < 64 and
// 1 <= y < 2^100, so that nothing on the way overflows, is flushed, or loses the sign of a zero.
__device__ __forceinline__ float divide_in_range(float x, float y) {
  float r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(y));
  r = fmaf(r, fmaf(-y, r, 1.0f), r);
  float q = x * r;
  q = fmaf(r, fmaf(-y, q, x), q);
  return fmaf(r, fmaf(-y, q, x), q);
}

template <bool kSilu, int kCount>
__device__ __forceinline__ void gates_of(float (&x)[kCount]) {
  constexpr float kInRange = 64.0f, kLeast = 0x1p-64f;  // what divides is 1 for the sigmoid, x for the silu
  bool in_range = true;
#pragma unroll
  for (int i = 0; i < kCount; ++i) in_range = in_range && fabsf(x[i]) < kInRange && (!kSilu || fabsf(x[i]) > kLeast);  // false for a NaN
  if (in_range) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) x[i] = divide_in_range(kSilu ? x[i] : 1.0f, 1.0f + expf(-x[i]));
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) x[i] = kSilu ? silu_f32(x[i]) : sigmoid_f32(x[i]);
  }
}
template <int kCount>
__device__ __forceinline__ void silu_all(float (&x)[kCount]) {
  gates_of<true>(x);
}
template <int kCount>
__device__ __forceinline__ void sigmoid_all(float (&x)[kCount]) {
  gates_of<false>(x);
}

}  // namespace tetrad::cuda
