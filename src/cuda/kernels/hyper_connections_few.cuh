#pragma once
// What the hyper-connection kernels for few rows share: a warp keeps a segment of 16 outputs in registers, asked for before it waits for
// the kernel before it, and multiplies rows that lie in shared memory.
#include "cuda/kernels/linear_params.cuh"
#include "cuda/kernels/tensor_step.cuh"

namespace tetrad::cuda {

// Consecutive fragments of a strip, up to a segment of them.
struct SegmentWeights {
  WeightFragment<false> fragment[kSegmentFragments];
  int count;

  // A segment of all its fragments: the count is known to the compiler.
  __device__ __forceinline__ void load_whole(const LinearParams& p, int strip, int segment) {
    count = kSegmentFragments;
    const std::byte* from =
        p.data + (static_cast<std::size_t>(strip) * p.k_fragments + segment * kSegmentFragments) * WeightFragment<false>::kBytes;
#pragma unroll
    for (int f = 0; f < kSegmentFragments; ++f) fragment[f].load(from + f * WeightFragment<false>::kBytes, threadIdx.x % 32);
  }
  __device__ __forceinline__ void load(const LinearParams& p, int strip, int segment) {
    const int first = segment * kSegmentFragments;
    count = min(kSegmentFragments, p.k_fragments - first);
    const std::byte* from = p.data + (static_cast<std::size_t>(strip) * p.k_fragments + first) * WeightFragment<false>::kBytes;
#pragma unroll
    for (int f = 0; f < kSegmentFragments; ++f)
      if (f < count) fragment[f].load(from + f * WeightFragment<false>::kBytes, threadIdx.x % 32);
  }
};

// acc += fragments [kBegin, kEnd) of the segment times `count` rows of `stride` elements, whose first column is that of the segment. Tokens
// past the count multiply the last row: a token's sums depend on its own row alone.
template <int kBegin, int kEnd, int kTokenTiles>
__device__ __forceinline__ void multiply_segment(const SegmentWeights& w, const bf16* rows, int stride, int count,
                                                 float (&acc)[kTokenTiles][4]) {
  const int lane = threadIdx.x % 32;
  const bf16* from[kTokenTiles];
#pragma unroll
  for (int i = 0; i < kTokenTiles; ++i) from[i] = rows + min(8 * i + lane % 8, count - 1) * stride + lane / 8 * 8;
  const auto step = [&](int f) {
    XFragment columns[kTokenTiles];
    unsigned a[2][4];
#pragma unroll
    for (int i = 0; i < kTokenTiles; ++i) columns[i].load(from[i] + f * kFragmentColumns);
    w.fragment[f].expand(a);
#pragma unroll
    for (int k = 0; k < 2; ++k)
#pragma unroll
      for (int i = 0; i < kTokenTiles; ++i) multiply_step(acc[i], a[k], columns[i].step[k][0], columns[i].step[k][1]);
  };
  if (w.count == kSegmentFragments) {
#pragma unroll
    for (int f = kBegin; f < kEnd; ++f) step(f);
  } else {
#pragma unroll
    for (int f = kBegin; f < kEnd; ++f)
      if (f < w.count) step(f);
  }
}

// Has an address ready before the wait for the kernel before, when there is time for it: it is asked for, the data not yet.
__device__ __forceinline__ void compute_early(const void* address) { asm volatile("prefetch.global.L2 [%0];" ::"l"(address)); }

}  // namespace tetrad::cuda
