#pragma once
// The pieces of a linear for few rows: a warp multiplies 16 outputs of one segment, with the weights of the next on their way.
#include "cuda/kernels/linear_params.cuh"
#include "cuda/kernels/tensor_step.cuh"

namespace tetrad::cuda {

inline constexpr int kBatchBf16 = kSegmentFragments;  // fragments loaded before the first is used: 20 loads of 16 bytes in flight per lane
inline constexpr int kBatchFp8 = 4;                   // one scale block of 128 columns

// Fragments that a warp has fetched and not used.
template <bool kFp8, int kFragments = kFp8 ? kBatchFp8 : kBatchBf16>
struct Batch {
  static constexpr int kCount = kFragments;
  WeightFragment<kFp8> w[kCount];

  __device__ __forceinline__ void load_one(const std::byte* fragments, int f, int b, int lane) {
    w[b].load(fragments + static_cast<std::size_t>(f) * WeightFragment<kFp8>::kBytes, lane);
  }
  __device__ __forceinline__ void load(const std::byte* fragments, int begin, int end, int lane) {
#pragma unroll
    for (int b = 0; b < kCount; ++b)
      if (begin + b < end) load_one(fragments, begin + b, b, lane);
  }
};

// acc += a fragment of 16 outputs times the same columns of the tokens.
template <int kTokenTiles>
__device__ __forceinline__ void multiply_fragment(const unsigned (*a)[4], const XFragment* x, float (*acc)[4]) {
#pragma unroll
  for (int i = 0; i < kTokenTiles; ++i) {
    multiply_step(acc[i], a[0], x[i].step[0][0], x[i].step[0][1]);
    multiply_step(acc[i], a[1], x[i].step[1][0], x[i].step[1][1]);
  }
}

// acc <- the sum over fragments [begin, end), whose first ones are in the batch; leaves those of [next, next_end) there.
template <bool kFp8, int kTokenTiles>
__device__ __forceinline__ void segment_sum(const std::byte* fragments, const bf16* const* rows, int K, int begin, int end, int next,
                                            int next_end, Batch<kFp8>& batch, float (*acc)[4]) {
  constexpr int kCount = Batch<kFp8>::kCount;
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < kTokenTiles; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j) acc[i][j] = 0.0f;
  for (int f = begin; f < end; f += kCount) {
    const bool last = f + kCount >= end;
    const int from = last ? next : f + kCount, to = last ? next_end : end;
#pragma unroll
    for (int b = 0; b < kCount; ++b) {
      if (f + b < end) {
        unsigned a[2][4];
        batch.w[b].expand(a);
        XFragment x[kTokenTiles];
#pragma unroll
        for (int i = 0; i < kTokenTiles; ++i) x[i].load(rows[i], f + b, K, lane);
        multiply_fragment<kTokenTiles>(a, x, acc);
      }
      if (from + b < to) batch.load_one(fragments, from + b, b, lane);
    }
  }
}

// The rows of x that this lane reads: token t0 + 8 i + lane / 4, null past the end.
template <int kTokenTiles>
__device__ __forceinline__ void token_rows(const LinearParams& p, int t0, int end, const bf16** rows) {
#pragma unroll
  for (int i = 0; i < kTokenTiles; ++i) {
    const int t = t0 + 8 * i + static_cast<int>(threadIdx.x) % 32 / 4;
    rows[i] = t < end ? x_row(p, t) : nullptr;
  }
}

// acc to [8 * kTokenTiles tokens][16 outputs].
template <int kTokenTiles>
__device__ __forceinline__ void store_sums(const float (*acc)[4], float* out) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < kTokenTiles; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j) out[(8 * i + lane % 4 * 2 + j % 2) * kFragmentRows + lane / 4 + j / 2 * 8] = acc[i][j];
}

}  // namespace tetrad::cuda
