// hyper_connections for few rows (contract in hyper_connections.h): launches are what costs there, so neighbours are one.
#include <algorithm>

#include "base/error.h"
#include "cuda/kernels/hyper_connections.cuh"
#include "cuda/kernels/linear_rows.cuh"
#include "cuda/runtime/launch.cuh"

namespace tetrad::cuda {
namespace {

constexpr int kKept = kInjectKept, kKeptStreams = 4;
constexpr int kNormThreads = 256, kActivateThreads = 64;

// A thread keeps up to kKept of its elements in registers between the two passes; wider streams are read again.
__global__ void __launch_bounds__(kNormThreads)
    hc_inject_norm_kernel(const HcShape s, const bf16* inject, const bf16* y, bf16* h, const float* scale, bf16* normed) {
  __shared__ float scratch[kNormThreads / 32];
  const std::size_t t = blockIdx.x, stream = blockIdx.y, first = (t * s.HC + stream) * s.D;
  float kept_scale[kKept];
#pragma unroll
  for (int i = 0; i < kKept; ++i) {
    const int d = threadIdx.x + i * kNormThreads;
    kept_scale[i] = d < s.D ? scale[stream * s.D + d] : 0.0f;
  }
  wait_for_previous();
  const float weight = inject == nullptr ? 0.0f : to_f32(inject[t * s.HC + stream]);
  const auto element = [&](int d) {
    return inject == nullptr ? to_f32(h[first + d]) : injected(to_f32(h[first + d]), weight, y[t * s.D + d]);
  };
  float kept[kKept], sum = 0.0f;
  load_injected<kNormThreads>(h + first, inject + t * s.HC + stream, inject == nullptr ? nullptr : y + t * s.D, s.D, kept);
#pragma unroll
  for (int i = 0; i < kKept; ++i) sum += kept[i] * kept[i];
  for (int d = threadIdx.x + kKept * kNormThreads; d < s.D; d += kNormThreads) {
    const float v = element(d);
    sum += v * v;
  }
  const float inverse = inverse_rms(block_sum<kNormThreads>(sum, scratch), s);
  const auto write = [&](int d, float v, float weight_scale) {
    if (inject != nullptr) h[first + d] = to_b16(v);
    normed[first + d] = to_b16(v * inverse * norm_scale(weight_scale));
  };
#pragma unroll
  for (int i = 0; i < kKept; ++i)
    if (threadIdx.x + i * kNormThreads < s.D) write(threadIdx.x + i * kNormThreads, kept[i], kept_scale[i]);
  for (int d = threadIdx.x + kKept * kNormThreads; d < s.D; d += kNormThreads) write(d, element(d), scale[stream * s.D + d]);
}

__global__ void hc_activate_sums_kernel(const HcShape s, int T, const float* sums, int segments, int ld, bf16* low, int ld_low,
                                        bf16* inject) {
  wait_for_previous();
  const int j = blockIdx.x * kActivateThreads + threadIdx.x, t = blockIdx.y;
  if (j >= s.LR + (inject == nullptr ? 0 : s.HC)) return;
  float total = sums[static_cast<std::size_t>(t) * ld + j];
#pragma unroll 8
  for (int i = 1; i < segments; ++i) total += sums[(static_cast<std::size_t>(i) * T + t) * ld + j];
  hc_store_low(s, total, t, j, low, ld_low, inject);
}

// Grid (D/16, T/(8 * kTiles)): a block owns 16 elements of x, a warp one stream's gates for them. Shared: [HC][8 * kTiles][16] gates, then
// per warp a segment of weights.
template <int kTiles>
__global__ void __launch_bounds__(32 * kHcFewStreams)
    hc_up_mean_kernel(const LinearParams p, const HcShape s, const bf16* normed, bf16* x) {
  constexpr int kTokens = 8 * kTiles;
  extern __shared__ __align__(128) float gates[];
  const int stream = threadIdx.x / 32, lane = threadIdx.x % 32, d0 = blockIdx.x * kFragmentRows;
  const int t0 = blockIdx.y * kTokens, count = min(kTokens, p.T - t0);
  SegmentRing ring(reinterpret_cast<std::byte*>(gates + s.HC * kTokens * kFragmentRows) + stream * SegmentRing::bytes(1), 1);
  const std::byte* weights =
      p.data + static_cast<std::size_t>((stream * s.D + d0) / kFragmentRows) * p.k_fragments * WeightFragment<false>::kBytes;
  const auto push = [&](int first) {
    if (first < p.k_fragments)
      ring.push(weights + static_cast<std::size_t>(first) * WeightFragment<false>::kBytes, 0,
                min(kSegmentFragments, p.k_fragments - first));
  };
  push(0);
  wait_for_previous();
  SegmentRows<kTiles> low;
  low.load(p, t0, count, 0);
  // What this thread multiplies its gates with comes meanwhile.
  const int first = threadIdx.x;
  float kept[kKeptStreams];
  if (s.HC <= kKeptStreams && first < count * kFragmentRows) {
#pragma unroll
    for (int h = 0; h < kKeptStreams; ++h)
      if (h < s.HC)
        kept[h] = to_f32(normed[(static_cast<std::size_t>(t0 + first / kFragmentRows) * s.HC + h) * s.D + d0 + first % kFragmentRows]);
  }
  float total[kTiles][4];
#pragma unroll 1
  for (int first = 0; first < p.k_fragments; first += kSegmentFragments) {
    if (first > 0) low.load(p, t0, count, first);
    float acc[kTiles][4];
    low.multiply(ring.front(), min(kSegmentFragments, p.k_fragments - first), acc);
    ring.pop();
    push(first + kSegmentFragments);
#pragma unroll
    for (int i = 0; i < kTiles; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) total[i][j] = add_segment<false>(first == 0, total[i][j], acc[i][j], 1.0f);
  }
#pragma unroll
  for (int i = 0; i < kTiles; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j)
      gates[(stream * kTokens + 8 * i + lane % 4 * 2 + j % 2) * kFragmentRows + lane / 4 + j / 2 * 8] =
          round_b16(sigmoid_f32(round_b16(total[i][j])));
  __syncthreads();  // every stream's gates are written
  for (int i = threadIdx.x; i < count * kFragmentRows; i += blockDim.x) {
    const int row = t0 + i / kFragmentRows, d = d0 + i % kFragmentRows;
    float sum = 0.0f;
    const auto add = [&](int h, float value) { sum += hc_product(gates[h * kTokens * kFragmentRows + i], value); };
    if (s.HC <= kKeptStreams && i == first) {
#pragma unroll
      for (int h = 0; h < kKeptStreams; ++h)
        if (h < s.HC) add(h, kept[h]);
    } else {
      for (int h = 0; h < s.HC; ++h) add(h, to_f32(normed[(static_cast<std::size_t>(row) * s.HC + h) * s.D + d]));
    }
    x[static_cast<std::size_t>(row) * s.D + d] = to_b16(hc_mean_of(s, sum));
  }
}

template <int kTiles>
void launch_up_mean(const LinearParams& p, const HcShape& s, const bf16* normed, bf16* x, const Stream& stream) {
  constexpr int kTokens = 8 * kTiles;
  const LaunchShape shape{dim3(static_cast<unsigned>(s.D / kFragmentRows), static_cast<unsigned>(ceil_div(p.T, kTokens))),
                          dim3(static_cast<unsigned>(32 * s.HC)),
                          static_cast<std::size_t>(s.HC) * static_cast<std::size_t>(kTokens * kFragmentRows * 4 + SegmentRing::bytes(1))};
  if (shape.shared_bytes > 48 * 1024) allow_shared("hc_up_mean", hc_up_mean_kernel<kTiles>, shape.shared_bytes);
  launch(linear_tag("hc_up_mean", p, false, stream), hc_up_mean_kernel<kTiles>, shape, stream, p, s, normed, x);
}

}  // namespace

void hc_inject_norm(const HcShape& s, int T, const bf16* inject, const bf16* y, bf16* h, const float* scale, bf16* normed,
                    const Stream& stream) {
  launch("hc_inject_norm", hc_inject_norm_kernel, {dim3(static_cast<unsigned>(T), static_cast<unsigned>(s.HC)), dim3(kNormThreads)}, stream,
         s, inject, y, h, scale, normed);
}

void hc_activate_sums(const HcShape& s, int T, const float* sums, int segments, int ld, bf16* low, int ld_low, bf16* inject,
                      const Stream& stream) {
  const int width = s.LR + (inject == nullptr ? 0 : s.HC);
  launch("hc_activate_sums", hc_activate_sums_kernel,
         {dim3(static_cast<unsigned>(ceil_div(width, kActivateThreads)), static_cast<unsigned>(T)), dim3(kActivateThreads)}, stream, s, T,
         sums, segments, ld, low, ld_low, inject);
}

void hc_up_mean(const HcShape& s, const DeviceLinear& up, int T, const bf16* low, int ld_low, const bf16* normed, bf16* x,
                const Stream& stream) {
  TETRAD_CHECK(s.D % kFragmentRows == 0 && !up.fp8 && s.HC <= kHcFewStreams, "hc_up_mean: D {}, {} streams", s.D, s.HC);
  const LinearParams p = linear_params(up, {.T = T, .x = low, .ldx = ld_low});
  T <= 8 ? launch_up_mean<1>(p, s, normed, x, stream) : launch_up_mean<2>(p, s, normed, x, stream);
}

}  // namespace tetrad::cuda
