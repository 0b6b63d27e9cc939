#pragma once
// A linear of bf16 weights for few rows, whose blocks are few: the blocks of a cluster share 16 outputs and divide the segments, a warp
// each. A segment's sums go to the block that adds them up, through distributed shared memory. The bits are those of every other linear.
#include "cuda/kernels/cluster.cuh"
#include "cuda/kernels/linear_rows.cuh"

namespace tetrad::cuda {

inline constexpr int kSplitRanks = 4, kSplitWarps = 8;  // of a cluster; of a block at most
inline constexpr int kSplitSegments = kSplitRanks * kSplitWarps;
inline constexpr int kOwnOutputs = kFragmentRows / kSplitRanks;  // of the 16, that a block adds up

// A warp's sums of a segment, of `tokens` rows, each to the block that it belongs to: sums [segments][8 * kTokenTiles][kOwnOutputs]. The
// blocks of the cluster must have started.
template <int kTokenTiles>
__device__ __forceinline__ void put_sums(const float (*acc)[4], int tokens, int segment, float* sums) {
  constexpr int kTokens = 8 * kTokenTiles;
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < kTokenTiles; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int t = 8 * i + lane % 4 * 2 + j % 2, n = lane / 4 + j / 2 * 8;
      if (t < tokens) put_peer_value(sums + (segment * kTokens + t) * kOwnOutputs + n % kOwnOutputs, n / kOwnOutputs, acc[i][j]);
    }
}

// Once all are there: store(row, output of the 16, total) of this block's outputs.
template <int kTokenTiles, class Store>
__device__ __forceinline__ void add_sums(const float* sums, int num_segments, int tokens, int rank, const Store& store) {
  constexpr int kTokens = 8 * kTokenTiles;
  cluster_sync();
  for (int i = threadIdx.x; i < tokens * kOwnOutputs; i += static_cast<int>(blockDim.x)) {
    float total = sums[i];
#pragma unroll 8
    for (int s = 1; s < num_segments; ++s) total += sums[s * kTokens * kOwnOutputs + i];
    store(i / kOwnOutputs, rank * kOwnOutputs + i % kOwnOutputs, total);
  }
}

struct SplitShape {
  int per_rank;  // segments of a block: its warps
};

// Of a block: the sums that it adds up; then per warp its segment of weights.
template <int kTokenTiles>
__host__ __device__ int split_sum_bytes(const SplitShape& shape) {
  return (kSplitRanks * shape.per_rank * 8 * kTokenTiles * kOwnOutputs * 4 + 127) / 128 * 128;
}
template <int kTokenTiles>
__host__ __device__ int split_shared_bytes(const SplitShape& shape) {
  return split_sum_bytes<kTokenTiles>(shape) + shape.per_rank * SegmentRing::bytes(1);
}

// Grid (4 * N/16, T/(8 * kTokenTiles)), in clusters of four. store(t, n, total) gets every output of the padded rows of weights once.
template <int kTokenTiles, class Store>
__device__ __forceinline__ void linear_split(const LinearParams& p, const SplitShape& shape, const Store& store) {
  constexpr int kTokens = 8 * kTokenTiles;
  extern __shared__ __align__(128) std::byte split_memory[];
  cluster_started();
  auto* sums = reinterpret_cast<float*>(split_memory);
  const int rank = static_cast<int>(blockIdx.x) % kSplitRanks, strip = static_cast<int>(blockIdx.x) / kSplitRanks;
  const int warp = threadIdx.x / 32, t0 = blockIdx.y * kTokens, count = min(kTokens, p.T - t0);
  const int num_segments = (p.k_fragments + p.segment - 1) / p.segment;
  const int first = min((rank * shape.per_rank + warp) * p.segment, p.k_fragments), end = min(first + p.segment, p.k_fragments);
  SegmentRing ring(split_memory + split_sum_bytes<kTokenTiles>(shape) + warp * SegmentRing::bytes(1), 1);
  if (first < end)
    ring.push(p.data + (static_cast<std::size_t>(strip) * p.k_fragments + first) * WeightFragment<false>::kBytes, 0, end - first);
  wait_for_previous();
  SegmentRows<kTokenTiles> rows;
  rows.load(p, t0, count, first);
  cluster_wait_started();
  if (first < end) {
    float acc[kTokenTiles][4];
    rows.multiply(ring.front(), end - first, acc);
    put_sums<kTokenTiles>(acc, count, first / p.segment, sums);
  }
  add_sums<kTokenTiles>(sums, num_segments, count, rank,
                        [&](int t, int n, float total) { store(t0 + t, strip * kFragmentRows + n, total); });
}

}  // namespace tetrad::cuda
