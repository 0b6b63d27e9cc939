// hc_down for few rows on Hopper (contract in hyper_connections.h): four blocks share 16 outputs and read the sums of each other's segments
// through distributed shared memory.
#include <algorithm>

#include "cuda/kernels/hyper_connections.cuh"
#include "cuda/kernels/linear_split.cuh"
#include "cuda/runtime/launch.cuh"

namespace tetrad::cuda {
namespace {

constexpr int kWarps = 8, kThreads = 32 * kWarps;
constexpr int kHcInjectRows = 4;
constexpr int kSlots = 2;  // a warp has one segment

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

template <int kTokenTiles>
__global__ void TETRAD_CLUSTER(kSplitRanks) __launch_bounds__(kThreads)
    hc_down_kernel(const LinearParams p, const SplitShape split, const HcShape s, bf16* low, int ld_low, bf16* inject) {
#if defined(__CUDA_ARCH__)
  linear_split<kTokenTiles>(p, split, [&](int t, int n, float total) { hc_store_low(s, total, t, n, low, ld_low, inject); });
#endif
}

// The same with what comes before it, for very few rows: the block of rank r injects into stream r and norms it. h is read by all clusters
// and written elsewhere, by the first. Shared: the stream's normed rows, then per warp its ring of weights.
__global__ void TETRAD_CLUSTER(kSplitRanks) __launch_bounds__(kThreads)
    hc_inject_down_kernel(const LinearParams p, const HcShape s, const HcInjection a, bf16* low, int ld_low, bf16* inject) {
#if defined(__CUDA_ARCH__)
  extern __shared__ __align__(128) bf16 rows[];
  __shared__ float sums[kSplitSegments * 8 * kOwnOutputs], scratch[kWarps];
  cluster_started();
  const int rank = static_cast<int>(blockIdx.x) % kSplitRanks, strip = static_cast<int>(blockIdx.x) / kSplitRanks, warp = threadIdx.x / 32,
            stride = s.D + 8, columns = p.segment * kFragmentColumns;
  auto* memory = reinterpret_cast<std::byte*>(rows + (p.T + 1) * stride) + warp * WeightRing<false>::bytes(kSlots);
  WeightRing<false> ring(memory, kSlots);
  const int in_stream = s.D / columns, first = min((rank * in_stream + warp) * p.segment, p.k_fragments);
  const int end = warp < in_stream ? first + p.segment : first;
  WeightRun run{p.data + (static_cast<std::size_t>(strip) * p.k_fragments + first) * WeightFragment<false>::kBytes, 0, end - first, 1};
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
    float kept[kInjectKept], sum = 0.0f;
    load_injected<kThreads>(a.h + stream, a.inject + t * s.HC + rank,
                            a.inject == nullptr ? nullptr : a.y + static_cast<std::size_t>(t) * s.D, s.D, kept);
#pragma unroll
    for (int i = 0; i < kInjectKept; ++i) sum += kept[i] * kept[i];
    const float inverse = inverse_rms(block_sum<kThreads>(sum, scratch), s);
#pragma unroll
    for (int i = 0; i < kInjectKept; ++i) {
      const int d = static_cast<int>(threadIdx.x) + i * kThreads;
      if (d >= s.D) break;
      const bf16 normed = to_b16(kept[i] * inverse * norm_scale(scale[i]));
      rows[t * stride + d] = normed;
      if (strip > 0) continue;
      a.h_out[stream + d] = to_b16(kept[i]);
      a.normed[stream + d] = normed;
    }
  }
  cluster_wait_started();
  __syncthreads();  // the normed rows are written
  if (warp < in_stream) {
    bf16* own = rows + warp * columns;
    ReadyColumns x[2] = {{own, stride, p.T}, {own + kSlotFragments<false> * kFragmentColumns, stride, p.T}};
    __syncwarp();  // the chunks of zeros are written
    run_sums<false, 1, 1>(0, p.K, p.segment, first, end, x, ring, run,
                          [&](int segment, const auto& acc) { put_sums<1>(acc[0], p.T, segment, sums); });
  }
  add_sums<1>(sums, kSplitRanks * in_stream, p.T, rank,
              [&](int t, int n, float total) { hc_store_low(s, total, t, strip * kFragmentRows + n, low, ld_low, inject); });
#endif
}

#else

__global__ void hc_inject_down_kernel(const LinearParams, const HcShape, const HcInjection, bf16*, int, bf16*) {
  wait_for_previous();
  __trap();  // never launched on this target
}

template <int kTokenTiles>
__global__ void hc_down_kernel(const LinearParams, const SplitShape, const HcShape, bf16*, int, bf16*) {
  wait_for_previous();
  __trap();  // never launched on this target
}

#endif

template <int kTokenTiles>
void launch_down(const LinearParams& p, const HcShape& s, bf16* low, int ld_low, bf16* inject, const Stream& stream) {
  const int tokens = 8 * kTokenTiles;
  const SplitShape split{ceil_div(ceil_div(p.k_fragments, p.segment), kSplitRanks)};
  const LaunchShape shape{dim3(static_cast<unsigned>(kSplitRanks * p.n_fragments), static_cast<unsigned>(ceil_div(p.T, tokens))),
                          dim3(static_cast<unsigned>(32 * split.per_rank)),
                          static_cast<std::size_t>(split_shared_bytes<kTokenTiles>(split))};
  const auto kernel = hc_down_kernel<kTokenTiles>;
  if (shape.shared_bytes > 48 * 1024) allow_shared("hc_down", kernel, shape.shared_bytes);
  launch(linear_tag("hc_down", p, false, stream), kernel, shape, stream, p, split, s, low, ld_low, inject);
}

}  // namespace

int hc_few_rows(const HcShape& s, const Stream& stream) {
  if (s.HC > kHcFewStreams) return 0;
  const DeviceLinear down{.N = s.LR, .K = s.HC * s.D};
  return stream.hopper() && linear_segments(down) <= kSplitSegments ? kHcFewRows : kFewLinearRows;
}

bool hc_inject_down(const HcShape& s, const DeviceLinear& down, int T, const HcInjection& a, bf16* low, int ld_low, bf16* inject,
                    const Stream& stream) {
  constexpr int kColumns = kSegmentFragments * kFragmentColumns;
  if (!stream.hopper() || T > kHcInjectRows || s.HC != kSplitRanks || s.D % kColumns != 0 || s.D > kWarps * kColumns ||
      s.D > kInjectKept * kThreads)
    return false;
  const LinearParams p = linear_params(down, {.T = T, .x = a.normed, .ldx = s.HC * s.D});
  const LaunchShape shape{dim3(static_cast<unsigned>(kSplitRanks * p.n_fragments)), dim3(kThreads),
                          static_cast<std::size_t>((T + 1) * (s.D + 8) * 2 + kWarps * WeightRing<false>::bytes(kSlots))};
  allow_shared("hc_inject_down", hc_inject_down_kernel, shape.shared_bytes);
  launch(linear_tag("hc_inject_down", p, false, stream), hc_inject_down_kernel, shape, stream, p, s, a, low, ld_low, inject);
  return true;
}

bool hc_down(const HcShape& s, const DeviceLinear& down, int T, const bf16* normed, bf16* low, int ld_low, bf16* inject,
             const Stream& stream) {
  if (!stream.hopper() || linear_segments(down) > kSplitSegments || T > kHcFewRows) return false;
  const LinearParams p = linear_params(down, {.T = T, .x = normed, .ldx = s.HC * s.D});
  T <= 8 ? launch_down<1>(p, s, low, ld_low, inject, stream) : launch_down<2>(p, s, low, ld_low, inject, stream);
  return true;
}

}  // namespace tetrad::cuda
