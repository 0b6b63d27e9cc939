// hc_down for few rows on Hopper (contract in hyper_connections.h): the blocks of a cluster share strips of 16 outputs and divide the
// segments; a segment's sums go to the block that adds them up, through distributed shared memory.
#include <algorithm>

#include "cuda/kernels/cluster.cuh"
#include "cuda/kernels/hyper_connections.cuh"
#include "cuda/kernels/hyper_connections_few.cuh"
#include "cuda/kernels/pipeline.cuh"
#include "cuda/runtime/launch.cuh"

namespace tetrad::cuda {
namespace {

constexpr int kWarps = 8, kThreads = 32 * kWarps;
constexpr int kHcInjectRows = 4, kStreamRanks = 4;                           // of hc_inject_down: a block has a stream
constexpr int kStrips = 2, kBlockSegments = kWarps / kStrips;                // of hc_down: a warp has a segment of a strip
constexpr int kSegments = kClusterBlocks * kBlockSegments, kOwnOutputs = 4;  // of a cluster at most; that a block adds up
constexpr int kSegmentColumns = kSegmentFragments * kFragmentColumns;

// Rows of shared memory of so many columns: eight rows of a column fall into different banks.
__host__ __device__ constexpr int row_stride(int columns) { return columns + 8; }

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

constexpr int kHalf = kSegmentFragments / 2;  // of a segment's fragments: their columns come in two parts

// The sums of all segments for the four outputs that a block adds up: [segments][kOwnOutputs][kStride].
template <int kTokenTiles>
struct OwnSums {
  static constexpr int kStride = 8 * kTokenTiles + 8, kSegmentFloats = kOwnOutputs * kStride;  // four outputs in different banks
  float* sums;
  Barrier* arrived;

  // One thread, before cluster_started.
  __device__ __forceinline__ void expect(int segments, int tokens) const {
#if defined(__CUDA_ARCH__)
    arrived->init(1);
    Barrier::publish_init();
    arrived->expect(segments * kOwnOutputs * ((tokens + 1) / 2) * 8);
#endif
  }
  // A warp's sums of a segment, each to the block that it belongs to; those of the strip's first outputs to block `first_rank`. Two tokens
  // go together.
  __device__ __forceinline__ void send(const float (&acc)[kTokenTiles][4], int segment, int tokens, int first_rank) const {
    const int lane = threadIdx.x % 32, t = lane % 4 * 2;
    const float* place = sums + segment * kSegmentFloats + lane / 4 % kOwnOutputs * kStride + t;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int rank = first_rank + (lane / 4 + 8 * half) / kOwnOutputs;
      const unsigned there = peer_place(place, rank), barrier = peer_place(arrived, rank);
#pragma unroll
      for (int i = 0; i < kTokenTiles; ++i)
        if (8 * i + t < tokens) send_pair(there + 8 * i * static_cast<int>(sizeof(float)), barrier, acc[i][2 * half], acc[i][2 * half + 1]);
    }
  }
  // Once all are there: store(token, own output, total).
  template <class Store>
  __device__ __forceinline__ void add(int segments, int tokens, const Store& store) const {
#if defined(__CUDA_ARCH__)
    wait_for_peers(arrived->address());
    for (int i = threadIdx.x; i < tokens * kOwnOutputs; i += static_cast<int>(blockDim.x)) {
      const int t = i / kOwnOutputs, own = i % kOwnOutputs;
      const float* from = sums + own * kStride + t;
      float total = -0.0f;  // plus the first sum is that sum, also for a zero of either sign
#pragma unroll 16
      for (int s = 0; s < segments; ++s) total += from[s * kSegmentFloats];
      store(t, own, total);
    }
#endif
  }
};

// Grid (8 * strips/2, T/(8 * kTokenTiles)), in clusters of eight: a warp has one segment of one strip. Shared: the sums, then the rows'
// columns of the block's segments.
template <int kTokenTiles>
__global__ void TETRAD_CLUSTER(kClusterBlocks) __launch_bounds__(kThreads, 2)
    hc_down_kernel(const LinearParams p, int per_block, const HcShape s, bf16* low, int ld_low, bf16* inject) {
#if defined(__CUDA_ARCH__)
  constexpr int kTokens = 8 * kTokenTiles, kPairThreads = 32 * kStrips, kRanksOfStrip = kFragmentRows / kOwnOutputs;
  extern __shared__ __align__(128) float shared_sums[];
  __shared__ Barrier arrived;
  const OwnSums<kTokenTiles> own_sums{shared_sums, &arrived};
  const int rank = static_cast<int>(blockIdx.x) % kClusterBlocks, first_strip = static_cast<int>(blockIdx.x) / kClusterBlocks * kStrips;
  const int warp = threadIdx.x / 32, t0 = blockIdx.y * kTokens, count = min(kTokens, p.T - t0);
  const int segments = (p.k_fragments + kSegmentFragments - 1) / kSegmentFragments;
  const int strip = first_strip + warp % kStrips, in_block = warp / kStrips, segment = rank * per_block + in_block;
  const int own_strip = first_strip + rank / kRanksOfStrip;  // whose outputs the block adds up
  const bool multiplies = segment < segments && strip < p.n_fragments, adds = own_strip < p.n_fragments;
  if (threadIdx.x == 0) own_sums.expect(adds ? segments : 0, count);
  cluster_started();
  SegmentWeights w;
  if (multiplies) w.load(p, strip, segment);
  const int stride = row_stride(per_block * kSegmentColumns), k0 = segment * kSegmentColumns;
  bf16* rows = reinterpret_cast<bf16*>(shared_sums + segments * own_sums.kSegmentFloats) + in_block * kSegmentColumns;
  // The warps of a segment fetch its columns together, half of them at a time.
  const int thread = threadIdx.x % kPairThreads;
  const auto fetch = [&](int first_column) {
    constexpr int kPieces = kHalf * kFragmentColumns / 8;
#pragma unroll
    for (int c = thread; c < kTokens * kPieces; c += kPairThreads) {
      const int t = c / kPieces, column = first_column + c % kPieces * 8, bytes = max(0, min(16, 2 * (p.K - k0 - column)));
      const bf16* from = x_row(p, t0 + min(t, count - 1));
      if (t < count) copy_async_some(rows + t * stride + column, bytes > 0 ? from + k0 + column : from, bytes);
    }
    commit_copies();
  };
  wait_for_previous();
  fetch(0);
  fetch(kHalf * kFragmentColumns);
  const auto together = [&] { asm volatile("bar.sync %0, %1;" ::"r"(1 + in_block), "n"(kPairThreads) : "memory"); };
  float acc[kTokenTiles][4] = {};
  wait_copies<1>();
  together();  // the first half is there
  if (multiplies) multiply_segment<0, kHalf>(w, rows, stride, count, acc);
  wait_copies<0>();
  together();  // the second half is there
  if (multiplies) multiply_segment<kHalf, kSegmentFragments>(w, rows, stride, count, acc);
  cluster_wait_started();
  if (multiplies) own_sums.send(acc, segment, count, warp % kStrips * kRanksOfStrip);
  if (adds)
    own_sums.add(segments, count, [&](int t, int own, float total) {
      hc_store_low(s, total, t0 + t, own_strip * kFragmentRows + rank % kRanksOfStrip * kOwnOutputs + own, low, ld_low, inject);
    });
#endif
}

// The same with what comes before it, for very few rows: the block of rank r injects into stream r and norms it. h is read by all clusters
// and written elsewhere, by each a part.
__global__ void TETRAD_CLUSTER(kStreamRanks) __launch_bounds__(kThreads, 1)
    hc_inject_down_kernel(const LinearParams p, const HcShape s, const HcInjection a, bf16* low, int ld_low, bf16* inject) {
#if defined(__CUDA_ARCH__)
  extern __shared__ __align__(128) bf16 rows[];
  __shared__ float sums[kStreamRanks * kWarps * OwnSums<1>::kSegmentFloats], scratch[kWarps];
  __shared__ Barrier arrived;
  const OwnSums<1> own_sums{sums, &arrived};
  const int rank = static_cast<int>(blockIdx.x) % kStreamRanks, strip = static_cast<int>(blockIdx.x) / kStreamRanks,
            warp = threadIdx.x / 32;
  const int stride = row_stride(s.D), in_stream = s.D / kSegmentColumns, segment = rank * in_stream + warp;
  if (threadIdx.x == 0) own_sums.expect(kStreamRanks * in_stream, p.T);
  cluster_started();
  SegmentWeights w;
  if (warp < in_stream) w.load(p, strip, segment);
  float scale[kInjectKept];
#pragma unroll
  for (int i = 0; i < kInjectKept; ++i) {
    const int d = static_cast<int>(threadIdx.x) + i * kThreads;
    scale[i] = d < s.D ? a.scale[rank * s.D + d] : 0.0f;
  }
  wait_for_previous();
  for (int t = 0; t < p.T; ++t) {
    const std::size_t stream = (static_cast<std::size_t>(t) * s.HC + rank) * s.D;
    float kept[kInjectKept], sum = 0.0f;
    load_injected<kThreads>(a.h + stream, a.inject + t * s.HC + rank,
                            a.inject == nullptr ? nullptr : a.y + static_cast<std::size_t>(t) * s.D, s.D, kept);
#pragma unroll
    for (int i = 0; i < kInjectKept; ++i) sum += kept[i] * kept[i];
    const float inverse = inverse_rms(block_sum<kThreads>(sum, scratch), s);
    int turn = strip;  // of the clusters, to write
#pragma unroll
    for (int i = 0; i < kInjectKept; ++i) {
      const int d = static_cast<int>(threadIdx.x) + i * kThreads;
      const bool writes = turn == 0;
      turn = writes ? p.n_fragments - 1 : turn - 1;
      if (d >= s.D) break;
      const bf16 normed = to_b16(kept[i] * inverse * norm_scale(scale[i]));
      rows[t * stride + d] = normed;
      if (!writes) continue;
      a.h_out[stream + d] = to_b16(kept[i]);
      a.normed[stream + d] = normed;
    }
  }
  __syncthreads();  // the normed rows are written
  float acc[1][4] = {};
  if (warp < in_stream) multiply_segment<0, kSegmentFragments>(w, rows + warp * kSegmentColumns, stride, p.T, acc);
  cluster_wait_started();
  if (warp < in_stream) own_sums.send(acc, segment, p.T, 0);
  own_sums.add(kStreamRanks * in_stream, p.T, [&](int t, int own, float total) {
    hc_store_low(s, total, t, strip * kFragmentRows + rank * kOwnOutputs + own, low, ld_low, inject);
  });
#endif
}

#else

__global__ void hc_inject_down_kernel(const LinearParams, const HcShape, const HcInjection, bf16*, int, bf16*) {
  wait_for_previous();
  __trap();  // never launched on this target
}

template <int kTokenTiles>
__global__ void hc_down_kernel(const LinearParams, int, const HcShape, bf16*, int, bf16*) {
  wait_for_previous();
  __trap();  // never launched on this target
}

#endif

template <int kTokenTiles>
void launch_down(const LinearParams& p, const HcShape& s, bf16* low, int ld_low, bf16* inject, const Stream& stream) {
  const int tokens = 8 * kTokenTiles, segments = ceil_div(p.k_fragments, kSegmentFragments), per_block = ceil_div(segments, kClusterBlocks);
  const int sum_bytes = segments * kOwnOutputs * (tokens + 8) * static_cast<int>(sizeof(float));
  const LaunchShape shape{
      dim3(static_cast<unsigned>(kClusterBlocks * ceil_div(p.n_fragments, kStrips)), static_cast<unsigned>(ceil_div(p.T, tokens))),
      dim3(static_cast<unsigned>(32 * kStrips * per_block)),
      static_cast<std::size_t>(sum_bytes + std::min(p.T, tokens) * row_stride(per_block * kSegmentColumns) * 2)};
  const auto kernel = hc_down_kernel<kTokenTiles>;
  if (shape.shared_bytes > 48 * 1024) allow_shared("hc_down", kernel, shape.shared_bytes);
  launch(linear_tag("hc_down", p, false, stream), kernel, shape, stream, p, per_block, s, low, ld_low, inject);
}

}  // namespace

int hc_few_rows(const HcShape& s, const Stream& stream) {
  const DeviceLinear down{.N = s.LR, .K = s.HC * s.D};
  return stream.hopper() && linear_segments(down) <= kSegments ? kHcFewRows : kFewLinearRows;
}

bool hc_inject_down(const HcShape& s, const DeviceLinear& down, int T, const HcInjection& a, bf16* low, int ld_low, bf16* inject,
                    const Stream& stream) {
  if (!stream.hopper() || T > kHcInjectRows || s.HC != kStreamRanks || s.D % kSegmentColumns != 0 || s.D > kWarps * kSegmentColumns ||
      s.D > kInjectKept * kThreads)
    return false;
  const LinearParams p = linear_params(down, {.T = T, .x = a.normed, .ldx = s.HC * s.D});
  const LaunchShape shape{dim3(static_cast<unsigned>(kStreamRanks * p.n_fragments)), dim3(kThreads),
                          static_cast<std::size_t>(T * row_stride(s.D) * 2)};
  launch(linear_tag("hc_inject_down", p, false, stream), hc_inject_down_kernel, shape, stream, p, s, a, low, ld_low, inject);
  return true;
}

bool hc_down(const HcShape& s, const DeviceLinear& down, int T, const bf16* normed, bf16* low, int ld_low, bf16* inject,
             const Stream& stream) {
  if (!stream.hopper() || linear_segments(down) > kSegments || T > kHcFewRows) return false;
  const LinearParams p = linear_params(down, {.T = T, .x = normed, .ldx = s.HC * s.D});
  (T <= 8 ? launch_down<1> : T <= 16 ? launch_down<2> : launch_down<4>)(p, s, low, ld_low, inject, stream);
  return true;
}

}  // namespace tetrad::cuda
