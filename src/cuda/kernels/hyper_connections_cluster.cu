// hc_down for few rows on Hopper (contract in hyper_connections.h): the blocks of a cluster share strips of 16 outputs and divide the
// segments; a segment's sums go to the block that adds them up, through distributed shared memory.
#include <algorithm>

#include "cuda/kernels/cluster.cuh"
#include "cuda/kernels/hyper_connections.cuh"
#include "cuda/kernels/hyper_connections_few.cuh"
#include "cuda/kernels/pieces.cuh"
#include "cuda/kernels/pipeline.cuh"
#include "cuda/runtime/launch.cuh"

namespace tetrad::cuda {
namespace {

constexpr int kWarps = 8, kThreads = 32 * kWarps;
constexpr int kStreamRanks = 4;                                              // of hc_inject_down: a block has a stream
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

// The same with what comes before it, for one row: the block of rank r injects into stream r and norms it. h is read by all clusters and
// written elsewhere, by each a part. kWhole: D is the most, so that nobody asks where a stream ends.
template <bool kInject, bool kWhole>
__global__ void TETRAD_CLUSTER(kStreamRanks) __launch_bounds__(kThreads, 1)
    hc_inject_down_kernel(const LinearParams p, const HcShape s, const HcInjection a, bf16* low, int ld_low, bf16* inject) {
#if defined(__CUDA_ARCH__)
  constexpr int kMost = kWarps * kSegmentColumns, kKept = kMost / kThreads, kOwnPieces = (kMost / 8 + kThreads - 1) / kThreads;
  __shared__ __align__(16) bf16 stream_row[kMost], normed_row[kMost];
  __shared__ __align__(16) float4 sums[kStreamRanks * kWarps];
  __shared__ float scratch[kWarps];
  __shared__ Barrier arrived;
  const int D = kWhole ? kMost : s.D, in_stream = D / kSegmentColumns, pieces = D / 8;
  const int rank = static_cast<int>(blockIdx.x) % kStreamRanks, strip = static_cast<int>(blockIdx.x) / kStreamRanks;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, segment = rank * in_stream + warp;
  if (threadIdx.x == 0) {
    arrived.init(1);
    Barrier::publish_init();
    arrived.expect(kStreamRanks * in_stream * static_cast<int>(sizeof(float4)));
  }
  cluster_started();
  SegmentWeights w;
  if (kWhole || warp < in_stream) w.load_whole(p, strip, segment);
  const int first = rank * D;
  const auto place = [](int i) { return static_cast<int>(threadIdx.x) + i * kThreads; };
  float scales[kKept];
#pragma unroll
  for (int i = 0; i < kKept; ++i) scales[i] = kWhole || place(i) < D ? a.scale[first + place(i)] : 0.0f;
  const uint4 *h = reinterpret_cast<const uint4*>(a.h + first) + threadIdx.x, *y = reinterpret_cast<const uint4*>(a.y) + threadIdx.x;
  const bf16* weight_of = a.inject + rank;
  compute_early(h);
  if constexpr (kInject) {
    compute_early(y);
    compute_early(weight_of);
  }
  wait_for_previous();
  uint4 own[kOwnPieces], of_y[kOwnPieces];
#pragma unroll
  for (int i = 0; i < kOwnPieces; ++i)
    if (place(i) < pieces) {
      own[i] = h[i * kThreads];
      if constexpr (kInject) of_y[i] = y[i * kThreads];
    }
  const float weight = kInject ? to_f32(*weight_of) : 0.0f;
#pragma unroll
  for (int i = 0; i < kOwnPieces; ++i) {
    if (place(i) >= pieces) break;
    if constexpr (kInject) {
      Eight v = expand(own[i]);
      const Eight added = expand(of_y[i]);
#pragma unroll
      for (int e = 0; e < 8; ++e) v.x[e] += rounded(weight * added.x[e]);
      own[i] = round_eight(v);
    }
    reinterpret_cast<uint4*>(stream_row)[place(i)] = own[i];
  }
  __syncthreads();  // the stream is there
  float kept[kKept], sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kKept; ++i) {
    kept[i] = kWhole || place(i) < D ? to_f32(stream_row[place(i)]) : 0.0f;
    sum += kept[i] * kept[i];
  }
  // As block_sum, but nobody waits until everybody has read.
  sum = warp_sum(sum);
  if (lane == 0) scratch[warp] = sum;
  __syncthreads();  // every warp's sum is in scratch
  float total_squares = 0.0f;
#pragma unroll
  for (int i = 0; i < kWarps; ++i) total_squares += scratch[i];
  HcShape known = s;
  known.HC = kStreamRanks, known.D = D;
  const float inverse = inverse_rms(total_squares, known);
#pragma unroll
  for (int i = 0; i < kKept; ++i)
    if (kWhole || place(i) < D) normed_row[place(i)] = to_b16(kept[i] * inverse * norm_scale(scales[i]));
  __syncthreads();  // the normed row is written
  float acc[1][4] = {};
  if (kWhole || warp < in_stream) multiply_segment<0, kSegmentFragments>(w, normed_row + warp * kSegmentColumns, 0, 1, acc);
  cluster_wait_started();
  if (kWhole || warp < in_stream) {
    // The row's sums of outputs n and n + 8 are with lane 4 n; lane r of four sends those of block r.
    float four[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int from = 4 * (lane % 2 * 4 + i);
      const float upper = __shfl_sync(0xffffffffu, acc[0][0], from), lower = __shfl_sync(0xffffffffu, acc[0][2], from);
      four[i] = lane < 2 ? upper : lower;
    }
    if (lane < kStreamRanks) send_four(peer_place(sums + segment, lane), peer_place(&arrived, lane), {four[0], four[1], four[2], four[3]});
  }
  // While the sums are under way: the clusters write h and normed in turn, 256 elements each.
  if (warp >= kWarps - 2) {
    const uint4* from = reinterpret_cast<const uint4*>(warp % 2 == 0 ? stream_row : normed_row);
    uint4* to = reinterpret_cast<uint4*>((warp % 2 == 0 ? a.h_out : a.normed) + first);
    for (int i = strip * 32 + lane; i < pieces; i += p.n_fragments * 32) to[i] = from[i];
  }
  if (threadIdx.x >= kOwnOutputs) return;
  wait_for_peers(arrived.address());
  const float* mine = reinterpret_cast<const float*>(sums) + threadIdx.x;
  float total = -0.0f;  // plus the first sum is that sum, also for a zero of either sign
  if constexpr (kWhole) {
#pragma unroll
    for (int i = 0; i < kStreamRanks * kWarps; ++i) total += mine[4 * i];
  } else {
    for (int i = 0; i < kStreamRanks * in_stream; ++i) total += mine[4 * i];
  }
  hc_store_low(known, total, 0, strip * kFragmentRows + rank * kOwnOutputs + static_cast<int>(threadIdx.x), low, ld_low, inject);
#endif
}

#else

template <bool kInject, bool kWhole>
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
  if (!stream.hopper() || T != 1 || s.HC != kStreamRanks || s.D % kSegmentColumns != 0 || s.D > kWarps * kSegmentColumns) return false;
  const LinearParams p = linear_params(down, {.T = T, .x = a.normed, .ldx = s.HC * s.D});
  const LaunchShape shape{dim3(static_cast<unsigned>(kStreamRanks * p.n_fragments)), dim3(kThreads)};
  const bool whole = s.D == kWarps * kSegmentColumns;
  const auto kernel = a.inject == nullptr ? (whole ? hc_inject_down_kernel<false, true> : hc_inject_down_kernel<false, false>)
                                          : (whole ? hc_inject_down_kernel<true, true> : hc_inject_down_kernel<true, false>);
  launch(linear_tag("hc_inject_down", p, false, stream), kernel, shape, stream, p, s, a, low, ld_low, inject);
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
