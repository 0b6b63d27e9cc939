// hc_down for few rows on Hopper (contract in hyper_connections.h): four blocks share 16 outputs and read the sums of each other's segments
// through distributed shared memory.
#include <algorithm>

#include "cuda/kernels/hyper_connections.cuh"
#include "cuda/kernels/linear_few.cuh"
#include "cuda/runtime/launch.cuh"

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#include <cooperative_groups.h>
#endif

namespace tetrad::cuda {
namespace {

constexpr int kCluster = 4, kWarps = 8, kThreads = 32 * kWarps;
constexpr int kHcInjectRows = 4;
constexpr int kSlots = 2;  // a warp has one segment

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

#if defined(__CUDA_ARCH__)

// The sums of the cluster's blocks, per_block segments of each in order, added up and activated: the blocks share the outputs.
template <int kTokens>
__device__ __forceinline__ void store_low(const HcShape& s, float (*sums)[kTokens * kFragmentRows], int per_block, int num_segments, int t0,
                                          int count, bf16* low, int ld_low, bf16* inject) {
  const auto cluster = cooperative_groups::this_cluster();
  cluster.sync();  // every block's sums are written
  const int i = static_cast<int>(blockIdx.y) * kThreads + static_cast<int>(threadIdx.x);
  if (i < count * kFragmentRows) {
    float sum[kCluster * kWarps];
#pragma unroll
    for (int j = 0; j < kCluster * kWarps; ++j)
      sum[j] = j < num_segments ? *cluster.map_shared_rank(&sums[j % per_block][i], j / per_block) : 0.0f;
    float total = sum[0];
#pragma unroll
    for (int j = 1; j < kCluster * kWarps; ++j)
      if (j < num_segments) total += sum[j];
    hc_store_low(s, total, t0 + i / kFragmentRows, static_cast<int>(blockIdx.x) * kFragmentRows + i % kFragmentRows, low, ld_low, inject);
  }
  cluster.sync();  // nobody leaves while its sums are read
}

#endif

// Grid (N/16, 4, T/16), in clusters of the four. Shared: per warp its ring of weights and its columns of x.
template <int kTokenTiles>
__global__ void __cluster_dims__(1, kCluster, 1) __launch_bounds__(kThreads)
    hc_down_kernel(const LinearParams p, const HcShape s, bf16* low, int ld_low, bf16* inject) {
#if defined(__CUDA_ARCH__)
  constexpr int kTokens = 8 * kTokenTiles;
  extern __shared__ __align__(128) std::byte shared[];
  __shared__ float sums[kWarps][kTokens * kFragmentRows];
  const int rank = blockIdx.y, warp = threadIdx.x / 32, t0 = blockIdx.z * kTokens, count = min(kTokens, p.T - t0);
  const int num_segments = (p.k_fragments + p.segment - 1) / p.segment;
  const int first = min((rank * kWarps + warp) * p.segment, p.k_fragments), end = min(first + p.segment, p.k_fragments);
  const int tokens = min(p.T, kTokens);
  std::byte* memory = shared + warp * (WeightRing<false>::bytes(kSlots) + ColumnBuffers<false, kTokenTiles>::elements(tokens) * 2);
  WeightRing<false> ring(memory, kSlots);
  WeightRun run{p.data + (static_cast<std::size_t>(blockIdx.x) * p.k_fragments + first) * WeightFragment<false>::kBytes, 0, end - first, 1};
  fill_ring(run, ring);
  wait_for_previous();
  const auto row = [&](int t) { return x_row(p, t0 + t); };
  ColumnBuffers<false, kTokenTiles> buffers(reinterpret_cast<bf16*>(memory + WeightRing<false>::bytes(kSlots)), tokens, count);
  buffers.fetch_first(row, p.K, first, end);
  run_sums<false, 1, kTokenTiles>(row, p.K, p.segment, first, end, buffers.x, ring, run,
                                  [&](int, const auto& acc) { store_sums<kTokenTiles>(acc[0], count, sums[warp]); });
  store_low<kTokens>(s, sums, kWarps, num_segments, t0, count, low, ld_low, inject);
#endif
}

// The same with what comes before it, for very few rows: the block of rank r injects into stream r and norms it. h is read by all clusters
// and written elsewhere, by the first. Shared: the stream's normed rows, then per warp its ring of weights.
__global__ void __cluster_dims__(1, kCluster, 1) __launch_bounds__(kThreads)
    hc_inject_down_kernel(const LinearParams p, const HcShape s, const HcInjection a, bf16* low, int ld_low, bf16* inject) {
#if defined(__CUDA_ARCH__)
  extern __shared__ __align__(128) bf16 rows[];
  __shared__ float sums[kWarps][8 * kFragmentRows], scratch[kWarps];
  const int rank = blockIdx.y, warp = threadIdx.x / 32, stride = s.D + 8, columns = p.segment * kFragmentColumns;
  auto* memory = reinterpret_cast<std::byte*>(rows + (p.T + 1) * stride) + warp * WeightRing<false>::bytes(kSlots);
  WeightRing<false> ring(memory, kSlots);
  const int in_stream = s.D / columns, first = min((rank * in_stream + warp) * p.segment, p.k_fragments);
  const int end = warp < in_stream ? first + p.segment : first;
  WeightRun run{p.data + (static_cast<std::size_t>(blockIdx.x) * p.k_fragments + first) * WeightFragment<false>::kBytes, 0, end - first, 1};
  fill_ring(run, ring);
  float scale[kInjectKept];
#pragma unroll
  for (int i = 0; i < kInjectKept; ++i) {
    const int d = static_cast<int>(threadIdx.x) + i * kThreads;
    scale[i] = d < s.D ? a.scale[rank * s.D + d] : 0.0f;
  }
  wait_for_previous();
  for (int t = 0; t < p.T; ++t) {
    const std::size_t stream = (static_cast<std::size_t>(t) * s.HC + rank) * s.D;
    const float weight = a.inject == nullptr ? 0.0f : to_f32(a.inject[t * s.HC + rank]);
    float kept[kInjectKept], sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kInjectKept; ++i) {
      const int d = static_cast<int>(threadIdx.x) + i * kThreads;
      kept[i] = 0.0f;
      if (d < s.D)
        kept[i] = injected(to_f32(a.h[stream + d]), weight, a.inject == nullptr ? nullptr : a.y + static_cast<std::size_t>(t) * s.D + d);
    }
#pragma unroll
    for (int i = 0; i < kInjectKept; ++i) sum += kept[i] * kept[i];
    const float inverse = inverse_rms(block_sum<kThreads>(sum, scratch), s);
#pragma unroll
    for (int i = 0; i < kInjectKept; ++i) {
      const int d = static_cast<int>(threadIdx.x) + i * kThreads;
      if (d >= s.D) break;
      const bf16 normed = to_b16(kept[i] * inverse * norm_scale(scale[i]));
      rows[t * stride + d] = normed;
      if (blockIdx.x > 0) continue;
      a.h_out[stream + d] = to_b16(kept[i]);
      a.normed[stream + d] = normed;
    }
  }
  bf16* own = rows + warp * columns;
  ReadyColumns x[2] = {{own, stride, p.T}, {own + kSlotFragments<false> * kFragmentColumns, stride, p.T}};
  __syncthreads();  // the normed rows are written
  if (warp < in_stream)
    run_sums<false, 1, 1>(0, p.K, p.segment, first, end, x, ring, run,
                          [&](int, const auto& acc) { store_sums<1>(acc[0], p.T, sums[warp]); });
  store_low<8>(s, sums, in_stream, kCluster * in_stream, 0, p.T, low, ld_low, inject);
#endif
}

#else

__global__ void hc_inject_down_kernel(const LinearParams, const HcShape, const HcInjection, bf16*, int, bf16*) {
  wait_for_previous();
  __trap();  // never launched on this target
}

template <int kTokenTiles>
__global__ void hc_down_kernel(const LinearParams, const HcShape, bf16*, int, bf16*) {
  wait_for_previous();
  __trap();  // never launched on this target
}

#endif

}  // namespace

int hc_few_rows(const HcShape& s, const Stream& stream) {
  const DeviceLinear down{.N = s.LR, .K = s.HC * s.D};
  return stream.hopper() && linear_segments(down) <= kCluster * kWarps ? kHcFewRows : kFewLinearRows;
}

bool hc_inject_down(const HcShape& s, const DeviceLinear& down, int T, const HcInjection& a, bf16* low, int ld_low, bf16* inject,
                    const Stream& stream) {
  constexpr int kColumns = kSegmentFragments * kFragmentColumns;
  if (!stream.hopper() || T > kHcInjectRows || s.HC != kCluster || s.D % kColumns != 0 || s.D > kWarps * kColumns ||
      s.D > kInjectKept * kThreads)
    return false;
  const LinearParams p = linear_params(down, {.T = T, .x = a.normed, .ldx = s.HC * s.D});
  const LaunchShape shape{dim3(static_cast<unsigned>(p.n_fragments), kCluster), dim3(kThreads),
                          static_cast<std::size_t>((T + 1) * (s.D + 8) * 2 + kWarps * WeightRing<false>::bytes(kSlots))};
  allow_shared("hc_inject_down", hc_inject_down_kernel, shape.shared_bytes);
  launch(linear_tag("hc_inject_down", p, false, stream), hc_inject_down_kernel, shape, stream, p, s, a, low, ld_low, inject);
  return true;
}

bool hc_down(const HcShape& s, const DeviceLinear& down, int T, const bf16* normed, bf16* low, int ld_low, bf16* inject,
             const Stream& stream) {
  if (!stream.hopper() || linear_segments(down) > kCluster * kWarps || T > kHcFewRows) return false;
  const LinearParams p = linear_params(down, {.T = T, .x = normed, .ldx = s.HC * s.D});
  const int tiles = T <= 8 ? 1 : 2, tokens = std::min(T, 8 * tiles);
  const LaunchShape shape{
      dim3(static_cast<unsigned>(p.n_fragments), kCluster, static_cast<unsigned>(ceil_div(T, 8 * tiles))), dim3(kThreads),
      static_cast<std::size_t>(kWarps * (WeightRing<false>::bytes(kSlots) + ColumnBuffers<false, 1>::elements(tokens) * 2))};
  const auto kernel = tiles == 1 ? hc_down_kernel<1> : hc_down_kernel<2>;
  if (shape.shared_bytes > 40 * 1024) allow_shared("hc_down", kernel, shape.shared_bytes);
  launch(linear_tag("hc_down", p, false, stream), kernel, shape, stream, p, s, low, ld_low, inject);
  return true;
}

}  // namespace tetrad::cuda
