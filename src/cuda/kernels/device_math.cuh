#pragma once
// Scalar helpers of the kernels: bf16 and FP8 conversion at the reference's rounding points, reductions in a fixed order, checked indices.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "base/bf16.h"
#include "cuda/kernels/mutants.cuh"

namespace tetrad::cuda {

__device__ __forceinline__ float to_f32(bf16 x) { return __uint_as_float(static_cast<unsigned>(x.bits) << 16); }
__device__ __forceinline__ bf16 to_b16(float x) { return bf16{__bfloat16_as_ushort(__float2bfloat16_rn(x))}; }
__device__ __forceinline__ float round_b16(float x) { return __bfloat162float(__float2bfloat16_rn(x)); }

// Cut, not rounded: for faults alone.
__device__ __forceinline__ bf16 cut_b16(float x) { return bf16{static_cast<std::uint16_t>(__float_as_uint(x) >> 16)}; }

// S EEEE MMM: the half with the same fields is the code's value divided by 256.
__device__ __forceinline__ float fp8_to_f32(std::uint8_t code) {
  const unsigned half = ((code & 0x80u) << 8) | ((code & 0x7fu) << 7);
  return (code & 0x7fu) == 0x7fu ? __uint_as_float(0x7fc00000u)
                                 : __half2float(__ushort_as_half(static_cast<unsigned short>(half))) * 256.0f;
}

__device__ __forceinline__ float sigmoid_f32(float x) { return 1.0f / (1.0f + expf(-x)); }
__device__ __forceinline__ float silu_f32(float x) { return x / (1.0f + expf(-x)); }
__device__ __forceinline__ float softplus_f32(float x) { return x > 20.0f ? x : log1pf(expf(x)); }

// What a norm adds to the mean of squares, and the factor 1 + w of an element as it is applied.
__device__ __forceinline__ float norm_eps(float eps) { return mutant(Mutant::kEpsRemoved) ? 0.0f : eps; }
__device__ __forceinline__ float norm_scale(float one_plus_w) { return mutant(Mutant::kNormWithoutOne) ? one_plus_w - 1.0f : one_plus_w; }

// Launches of a stream overlap where the GPU can (runtime/launch.cuh): blocks of the next kernel may already run, up to this call, which
// returns when everything before this kernel is done and visible. Each kernel calls it once on every path, before it reads or writes what
// another kernel of the step touches; weights it may fetch earlier.
__device__ __forceinline__ void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// The same, but the next kernel starts only afterwards: before its own wait it may then read what was written before this kernel.
__device__ __forceinline__ void wait_and_hold_next() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// An index that was read from device memory: outside its range the kernel traps, it never reads or writes beside its buffer.
template <class Index>
__device__ __forceinline__ Index checked(Index index, Index size) {
  if (index < 0 || index >= size) __trap();
  return index;
}

// Sum over a warp in a fixed order; every lane gets it.
__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(0xffffffffu, x, offset);
  return x;
}

// Sum of a warp's values in lanes up to this one.
template <class T>
__device__ __forceinline__ T warp_prefix(T x) {
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const T y = __shfl_up_sync(0xffffffffu, x, offset);
    if (static_cast<int>(threadIdx.x % 32) >= offset) x += y;
  }
  return x;
}

// The larger; a NaN wins, so that it stays visible.
__device__ __forceinline__ float max_or_nan(float a, float b) { return a > b || a != a ? a : b; }
__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) x = max_or_nan(x, __shfl_xor_sync(0xffffffffu, x, offset));
  return x;
}

// Over a block of kThreads (a multiple of 32), for every thread, in an order that depends on kThreads alone. `scratch`: kThreads / 32
// floats of shared memory, free again on return.
template <int kThreads>
__device__ __forceinline__ float block_sum(float x, float* scratch) {
  constexpr int kWarps = kThreads / 32;
  x = warp_sum(x);
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = x;
  __syncthreads();  // every warp's sum is in scratch
  float total = 0.0f;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) total += scratch[w];
  __syncthreads();  // everybody has read scratch
  return total;
}
template <int kThreads>
__device__ __forceinline__ float block_max(float x, float* scratch) {
  constexpr int kWarps = kThreads / 32;
  x = warp_max(x);
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = x;
  __syncthreads();  // every warp's maximum is in scratch
  float best = scratch[0];
#pragma unroll
  for (int w = 1; w < kWarps; ++w) best = max_or_nan(best, scratch[w]);
  __syncthreads();  // everybody has read scratch
  return best;
}

}  // namespace tetrad::cuda
