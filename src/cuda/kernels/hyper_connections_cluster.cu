// hc_down for few rows on Hopper (contract in hyper_connections.h): four blocks share 16 outputs and read the sums of each other's segments
// through distributed shared memory.
#include "cuda/kernels/hyper_connections.cuh"
#include "cuda/kernels/linear_few.cuh"
#include "cuda/runtime/launch.cuh"

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#include <cooperative_groups.h>
#endif

namespace tetrad::cuda {
namespace {

constexpr int kCluster = 4, kWarps = 8, kThreads = 32 * kWarps;  // a warp has one segment

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

// Grid (N/16, 4), in clusters of the four.
template <int kTokenTiles>
__global__ void __cluster_dims__(1, kCluster, 1) __launch_bounds__(kThreads)
    hc_down_kernel(const LinearParams p, const HcShape s, bf16* low, int ld_low, bf16* inject) {
#if defined(__CUDA_ARCH__)
  __shared__ float sums[kWarps][8 * kTokenTiles * kFragmentRows];
  const auto cluster = cooperative_groups::this_cluster();
  const int rank = blockIdx.y, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int num_segments = (p.k_fragments + p.segment - 1) / p.segment;
  const int begin = (rank * kWarps + warp) * p.segment, end = min(begin + p.segment, p.k_fragments);
  const std::byte* fragments = p.data + static_cast<std::size_t>(blockIdx.x) * p.k_fragments * WeightFragment<false>::kBytes;
  Batch<false> batch;
  batch.load(fragments, begin, end, lane);
  wait_for_previous();
  const bf16* rows[kTokenTiles];
  token_rows<kTokenTiles>(p, 0, p.T, rows);
  float acc[kTokenTiles][4];
  segment_sum<false, kTokenTiles>(fragments, rows, p.K, begin, end, 0, 0, batch, acc);
  store_sums<kTokenTiles>(acc, sums[warp]);
  cluster.sync();  // every block's sums are written
  const int i = rank * kThreads + static_cast<int>(threadIdx.x);
  if (i < p.T * kFragmentRows) {
    float sum[kCluster * kWarps];
#pragma unroll
    for (int j = 0; j < kCluster * kWarps; ++j)
      sum[j] = j < num_segments ? *cluster.map_shared_rank(&sums[j % kWarps][i], j / kWarps) : 0.0f;
    float total = sum[0];
#pragma unroll
    for (int j = 1; j < kCluster * kWarps; ++j)
      if (j < num_segments) total += sum[j];
    hc_store_low(s, total, i / kFragmentRows, static_cast<int>(blockIdx.x) * kFragmentRows + i % kFragmentRows, low, ld_low, inject);
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

bool hc_down(const HcShape& s, const DeviceLinear& down, int T, const bf16* normed, bf16* low, int ld_low, bf16* inject,
             const Stream& stream) {
  if (!stream.hopper() || linear_segments(down) > kCluster * kWarps || T > kFewLinearRows) return false;
  const LinearParams p = linear_params(down, {.T = T, .x = normed, .ldx = s.HC * s.D});
  launch("hc_down", T <= 8 ? hc_down_kernel<1> : hc_down_kernel<2>, {dim3(static_cast<unsigned>(p.n_fragments), kCluster), dim3(kThreads)},
         stream, p, s, low, ld_low, inject);
  return true;
}

}  // namespace tetrad::cuda
