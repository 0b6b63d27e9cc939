#pragma once
// A segment of some rows of x in a warp's registers, for linears that stream weights past them.
#include "cuda/kernels/linear_few.cuh"

namespace tetrad::cuda {

using SegmentRing = WeightRing<false, 1, kSegmentFragments>;  // a slot holds a segment of 16 outputs

// Up to 8 * kTiles rows of a bf16 weight's x as multiply steps take them; rows and columns that there are not are zero.
template <int kTiles>
struct SegmentRows {
  XFragment x[kSegmentFragments][kTiles];

  // Rows t0 .. t0 + rows - 1 from fragment `first` on.
  __device__ __forceinline__ void load(const LinearParams& p, int t0, int rows, int first) {
    const int lane = threadIdx.x % 32, column = first * kFragmentColumns + lane % 4 * 2, last = p.K - 1 - column;
    const bf16* row[kTiles];
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      const int t = 8 * i + lane / 4;
      row[i] = p.x + static_cast<std::ptrdiff_t>(t0 + t) * p.ldx + column;
      const int pairs = t < rows ? last : 0;  // two columns from here on are in the row, if they begin before this
#pragma unroll
      for (int f = 0; f < kSegmentFragments; ++f)
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const int at = f * kFragmentColumns + j * 8;
          x[f][i].step[j / 2][j % 2] = at < pairs ? *reinterpret_cast<const unsigned*>(row[i] + at) : 0u;
        }
    }
    if (p.K % 2 == 0) return;
#pragma unroll
    for (int i = 0; i < kTiles; ++i)
#pragma unroll
      for (int f = 0; f < kSegmentFragments; ++f)
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const int at = f * kFragmentColumns + j * 8;
          if (8 * i + lane / 4 < rows && at == last) x[f][i].step[j / 2][j % 2] = row[i][at].bits;
        }
  }

  // acc: the sums of 16 outputs over the segment, whose `count` fragments are in `slot`.
  __device__ __forceinline__ void multiply(const std::byte* slot, int count, float (&acc)[kTiles][4]) const {
#pragma unroll
    for (int i = 0; i < kTiles; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) acc[i][j] = 0.0f;
#pragma unroll
    for (int f = 0; f < kSegmentFragments; ++f) {
      if (f >= count) break;
      WeightFragment<false> w;
      unsigned a[2][4];
      w.load(slot + f * WeightFragment<false>::kBytes, threadIdx.x % 32);
      w.expand(a);
      multiply_fragment<kTiles>(a, x[f], acc);
    }
  }
};

}  // namespace tetrad::cuda
