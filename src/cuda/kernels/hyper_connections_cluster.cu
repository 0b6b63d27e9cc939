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
constexpr int kSlots = 2;  // a warp has one segment

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

// Grid (N/16, 4, T/16), in clusters of the four. Shared: per warp its ring of weights and its columns of x.
template <int kTokenTiles>
__global__ void __cluster_dims__(1, kCluster, 1) __launch_bounds__(kThreads)
    hc_down_kernel(const LinearParams p, const HcShape s, bf16* low, int ld_low, bf16* inject) {
#if defined(__CUDA_ARCH__)
  constexpr int kTokens = 8 * kTokenTiles;
  extern __shared__ __align__(128) std::byte shared[];
  __shared__ float sums[kWarps][kTokens * kFragmentRows];
  const auto cluster = cooperative_groups::this_cluster();
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
                                  [&](int, const auto& acc) { store_sums<kTokenTiles>(acc[0], sums[warp]); });
  cluster.sync();  // every block's sums are written
  const int i = rank * kThreads + static_cast<int>(threadIdx.x);
  if (i < count * kFragmentRows) {
    float sum[kCluster * kWarps];
#pragma unroll
    for (int j = 0; j < kCluster * kWarps; ++j)
      sum[j] = j < num_segments ? *cluster.map_shared_rank(&sums[j % kWarps][i], j / kWarps) : 0.0f;
    float total = sum[0];
#pragma unroll
    for (int j = 1; j < kCluster * kWarps; ++j)
      if (j < num_segments) total += sum[j];
    hc_store_low(s, total, t0 + i / kFragmentRows, static_cast<int>(blockIdx.x) * kFragmentRows + i % kFragmentRows, low, ld_low, inject);
  }
  cluster.sync();  // nobody leaves while its sums are read
#endif
}

#else

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
  launch("hc_down", kernel, shape, stream, p, s, low, ld_low, inject);
  return true;
}

}  // namespace tetrad::cuda
