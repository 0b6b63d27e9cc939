// hyper_connections for few rows (contract in hyper_connections.h): launches are what costs there, so neighbours are one.
#include <algorithm>

#include "base/error.h"
#include "cuda/kernels/hyper_connections.cuh"
#include "cuda/kernels/hyper_connections_few.cuh"
#include "cuda/kernels/pieces.cuh"
#include "cuda/runtime/launch.cuh"

namespace tetrad::cuda {
namespace {

constexpr int kKept = kInjectKept;
constexpr int kNormThreads = 256, kActivateThreads = 64;
constexpr int kUpStreams = 4;                     // of hc_up_mean, whose gates are under way together
constexpr int kGateStride = kFragmentRows + 4;    // eight tokens of an output in different banks
constexpr std::size_t kUpSharedBytes = 96 << 10;  // of a block that still leaves room for another

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

// Grid (D/16, T/tokens), tokens = 8 * kTokenTiles * kTokenWarps: a block owns 16 elements of x, a warp one stream's gates for them of
// 8 * kTokenTiles rows, then the next streams'. Shared: gates [HC][tokens][kGateStride], then the rows of low.
template <int kTokenTiles, int kTokenWarps>
__global__ void __launch_bounds__(32 * kUpStreams * kTokenWarps, 2)
    hc_up_mean_kernel(const LinearParams p, const HcShape s, const bf16* normed, bf16* x) {
  constexpr int kWarps = kUpStreams * kTokenWarps, kWarpTokens = 8 * kTokenTiles, kTokens = kWarpTokens * kTokenWarps;
  extern __shared__ __align__(128) float gates[];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, d0 = blockIdx.x * kFragmentRows, t0 = blockIdx.y * kTokens;
  const int count = min(kTokens, p.T - t0), first_stream = warp / kTokenWarps, warp_token = warp % kTokenWarps * kWarpTokens;
  const int segments = (p.k_fragments + kSegmentFragments - 1) / kSegmentFragments, stride = p.k_fragments * kFragmentColumns + 8;
  bf16* low = reinterpret_cast<bf16*>(gates + s.HC * kTokens * kGateStride);
  SegmentWeights w;
  if (first_stream < s.HC) w.load(p, (first_stream * s.D + d0) / kFragmentRows, 0);
  wait_for_previous();
  for (int t = warp; t < count; t += kWarps) {
    const bf16* from = x_row(p, t0 + t);
    for (int c = lane * 8; c < p.k_fragments * kFragmentColumns; c += 32 * 8) {
      const int bytes = max(0, min(16, 2 * (p.K - c)));
      copy_async_some(low + t * stride + c, bytes > 0 ? from + c : from, bytes);
    }
  }
  commit_copies();
  // Two neighbours of a row: what this thread multiplies its gates with comes meanwhile.
  const auto streams_of = [&](int i, int h) {
    const std::size_t row = static_cast<std::size_t>(t0 + i / (kFragmentRows / 2)) * s.HC + h;
    return *reinterpret_cast<const unsigned*>(normed + row * s.D + d0 + i % (kFragmentRows / 2) * 2);
  };
  const int pairs = count * kFragmentRows / 2, first = threadIdx.x;
  unsigned kept[kUpStreams] = {};
  if (first < pairs) {
#pragma unroll
    for (int h = 0; h < kUpStreams; ++h)
      if (h < s.HC) kept[h] = streams_of(first, h);
  }
  wait_copies<0>();
  __syncthreads();  // the rows of low are there
  if (warp_token < count) {
    for (int h = first_stream; h < s.HC; h += kUpStreams) {
      float total[4 * kTokenTiles] = {};
      for (int segment = 0; segment < segments; ++segment) {
        if (h != first_stream || segment > 0) w.load(p, (h * s.D + d0) / kFragmentRows, segment);
        float acc[kTokenTiles][4] = {};
        multiply_segment<0, kSegmentFragments>(w, low + warp_token * stride + segment * kSegmentFragments * kFragmentColumns, stride,
                                               count - warp_token, acc);
#pragma unroll
        for (int i = 0; i < kTokenTiles; ++i)
#pragma unroll
          for (int j = 0; j < 4; ++j) total[4 * i + j] = add_segment<false>(segment == 0, total[4 * i + j], acc[i][j], 1.0f);
      }
#pragma unroll
      for (int i = 0; i < 4 * kTokenTiles; ++i) total[i] = round_b16(total[i]);
      sigmoid_all(total);
      float* to = gates + (h * kTokens + warp_token + lane % 4 * 2) * kGateStride + lane / 4;
#pragma unroll
      for (int i = 0; i < kTokenTiles; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) to[(8 * i + j % 2) * kGateStride + j / 2 * 8] = round_b16(total[4 * i + j]);
    }
  }
  __syncthreads();  // every stream's gates are written
  for (int i = first; i < pairs; i += 32 * kWarps) {
    const int t = i / (kFragmentRows / 2), d = i % (kFragmentRows / 2) * 2;
    float low_sum = 0.0f, high_sum = 0.0f;
    const auto add = [&](int h, unsigned values) {
      const float2 gate = *reinterpret_cast<const float2*>(gates + (h * kTokens + t) * kGateStride + d);
      low_sum += hc_product(gate.x, low_half(values));
      high_sum += hc_product(gate.y, high_half(values));
    };
    if (i == first && s.HC <= kUpStreams) {
#pragma unroll
      for (int h = 0; h < kUpStreams; ++h)
        if (h < s.HC) add(h, kept[h]);
    } else {
      for (int h = 0; h < s.HC; ++h) add(h, streams_of(i, h));
    }
    const unsigned both = to_b16(hc_mean_of(s, low_sum)).bits | static_cast<unsigned>(to_b16(hc_mean_of(s, high_sum)).bits) << 16;
    *reinterpret_cast<unsigned*>(x + static_cast<std::size_t>(t0 + t) * s.D + d0 + d) = both;
  }
}

template <int kTokenTiles, int kTokenWarps>
std::size_t up_shared_bytes(const LinearParams& p, const HcShape& s) {
  const int tokens = 8 * kTokenTiles * kTokenWarps;
  return static_cast<std::size_t>(s.HC * tokens) * kGateStride * sizeof(float) +
         static_cast<std::size_t>(std::min(p.T, tokens)) * static_cast<std::size_t>(p.k_fragments * kFragmentColumns + 8) * sizeof(bf16);
}

template <int kTokenTiles, int kTokenWarps>
void launch_up(const LinearParams& p, const HcShape& s, const bf16* normed, bf16* x, const Stream& stream) {
  const int tokens = 8 * kTokenTiles * kTokenWarps;
  const LaunchShape shape{dim3(static_cast<unsigned>(s.D / kFragmentRows), static_cast<unsigned>(ceil_div(p.T, tokens))),
                          dim3(static_cast<unsigned>(32 * kUpStreams * kTokenWarps)), up_shared_bytes<kTokenTiles, kTokenWarps>(p, s)};
  const auto kernel = hc_up_mean_kernel<kTokenTiles, kTokenWarps>;
  if (shape.shared_bytes > 48 * 1024) allow_shared("hc_up_mean", kernel, shape.shared_bytes);
  launch(linear_tag("hc_up_mean", p, false, stream), kernel, shape, stream, p, s, normed, x);
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
  TETRAD_CHECK(s.D % kFragmentRows == 0 && !up.fp8, "hc_up_mean: D {}", s.D);
  const LinearParams p = linear_params(up, {.T = T, .x = low, .ldx = ld_low});
  if (T <= 8 || up_shared_bytes<2, 2>(p, s) > kUpSharedBytes) return launch_up<1, 1>(p, s, normed, x, stream);
  if (T <= 16) return launch_up<1, 2>(p, s, normed, x, stream);
  if (T <= 32 || up_shared_bytes<4, 2>(p, s) > kUpSharedBytes) return launch_up<2, 2>(p, s, normed, x, stream);
  launch_up<4, 2>(p, s, normed, x, stream);
}

}  // namespace tetrad::cuda
