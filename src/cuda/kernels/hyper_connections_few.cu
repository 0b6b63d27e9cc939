// hyper_connections for few rows (contract in hyper_connections.h): launches are what costs there, so neighbours are one.
#include <algorithm>

#include "base/error.h"
#include "cuda/kernels/hyper_connections.cuh"
#include "cuda/kernels/hyper_connections_few.cuh"
#include "cuda/kernels/pieces.cuh"
#include "cuda/runtime/launch.cuh"

namespace tetrad::cuda {
namespace {

constexpr int kActivateThreads = 64;
constexpr int kUpStreams = 4;  // of hc_up_mean, whose gates are under way together
constexpr int kFewestRows = 8, kUpGroups = 4;
constexpr int kGateStride = kFragmentRows + 4;    // eight tokens of an output in different banks
constexpr std::size_t kUpSharedBytes = 96 << 10;  // of a block that still leaves room for another

// A thread keeps up to kKept of its elements in registers between the two passes; wider streams are read again.
template <bool kInject, int kKept>
__global__ void __launch_bounds__(kInjectThreads)
    hc_inject_norm_kernel(const HcShape s, const bf16* inject, const bf16* y, bf16* h, const float* scale, bf16* normed) {
  constexpr bool kWhole = kKept == kInjectWhole;
  __shared__ float scratch[kInjectThreads / 32];
  const std::size_t t = blockIdx.x, stream = blockIdx.y, first = (t * s.HC + stream) * s.D;
  const auto place = [](int i) { return static_cast<int>(threadIdx.x) + i * kInjectThreads; };
  float kept_scale[kKept];
#pragma unroll
  for (int i = 0; i < kKept; ++i) kept_scale[i] = kWhole || place(i) < s.D ? scale[stream * s.D + place(i)] : 0.0f;
  wait_for_previous();
  float kept[kKept], sum = 0.0f;
  load_injected<kInject>(h + first, inject + t * s.HC + stream, y + t * s.D, s.D, kept);
#pragma unroll
  for (int i = 0; i < kKept; ++i) sum += kept[i] * kept[i];
  const auto element = [&](int d) {
    return kInject ? injected(to_f32(h[first + d]), to_f32(inject[t * s.HC + stream]), y[t * s.D + d]) : to_f32(h[first + d]);
  };
  if constexpr (!kWhole)
    for (int d = place(kKept); d < s.D; d += kInjectThreads) {
      const float v = element(d);
      sum += v * v;
    }
  const float inverse = inverse_rms(block_sum<kInjectThreads>(sum, scratch), s);
  const auto write = [&](int d, float v, float weight_scale) {
    if constexpr (kInject) h[first + d] = to_b16(v);
    normed[first + d] = to_b16(v * inverse * norm_scale(weight_scale));
  };
#pragma unroll
  for (int i = 0; i < kKept; ++i)
    if (kWhole || place(i) < s.D) write(place(i), kept[i], kept_scale[i]);
  if constexpr (!kWhole)
    for (int d = place(kKept); d < s.D; d += kInjectThreads) write(d, element(d), scale[stream * s.D + d]);
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
      for (int i = 0; i < 4 * kTokenTiles; ++i) total[i] = rounded(total[i]);
      sigmoid_all(total);
      float* to = gates + (h * kTokens + warp_token + lane % 4 * 2) * kGateStride + lane / 4;
#pragma unroll
      for (int i = 0; i < kTokenTiles; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) to[(8 * i + j % 2) * kGateStride + j / 2 * 8] = rounded(total[4 * i + j]);
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

// The same for up to kRows rows, at most eight, where there are four streams and LR is a whole segment. Between the kernels before and
// after every instruction counts: addresses are computed before the wait, and a lane multiplies its gates with what it has fetched itself.
// A block has kUpGroups groups of 16 elements: all blocks ask for the same few lines of low at once, so the fewer the shorter the wait.
template <int kRows>
__global__ void __launch_bounds__(32 * kUpStreams * kUpGroups)
    hc_up_mean_few_kernel(const LinearParams p, const HcShape s, const bf16* normed, bf16* x) {
  constexpr int kGroupThreads = 32 * kUpStreams, kThreads = kGroupThreads * kUpGroups;
  constexpr int kColumns = kSegmentFragments * kFragmentColumns, kStride = kColumns + 8, kPieces = kColumns / 8;
  constexpr int kOwnPieces = (kRows * kPieces + kThreads - 1) / kThreads;
  __shared__ __align__(16) bf16 low[kRows * kStride];
  __shared__ float products[kUpGroups][kUpStreams][kRows][kGateStride];
  const int group = threadIdx.x / kGroupThreads, in_group = threadIdx.x % kGroupThreads, stream = in_group / 32, lane = threadIdx.x % 32;
  const int d0 = (blockIdx.x * kUpGroups + group) * kFragmentRows, count = kRows == 1 ? 1 : p.T;
  SegmentWeights w;
  w.load_whole(p, (stream * s.D + d0) / kFragmentRows, 0);
  const bf16* from[kOwnPieces];
  bf16* to[kOwnPieces];
#pragma unroll
  for (int i = 0; i < kOwnPieces; ++i) {
    const int c = threadIdx.x + i * kThreads, t = c / kPieces, column = c % kPieces * 8;
    from[i] = t < count ? p.x + static_cast<std::ptrdiff_t>(t) * p.ldx + column : nullptr;
    to[i] = low + t * kStride + column;
  }
  // Of a lane's two outputs, for its two rows: what the gates are for.
  const int row = lane % 4 * 2;
  const bf16* own = normed + (static_cast<std::size_t>(row) * kUpStreams + stream) * s.D + d0 + lane / 4;
  const bf16* next = own + static_cast<std::size_t>(kUpStreams) * s.D;
  const int mean_row = in_group / kFragmentRows, mean_d = in_group % kFragmentRows;
  bf16* mean = x + static_cast<std::size_t>(mean_row) * s.D + d0 + mean_d;
  compute_early(from[0] == nullptr ? p.x : from[0]);
  compute_early(row < count ? own : normed);
  compute_early(mean_row < count ? mean : x);
  wait_for_previous();
  uint4 pieces[kOwnPieces];
#pragma unroll
  for (int i = 0; i < kOwnPieces; ++i)
    if (from[i] != nullptr) pieces[i] = *reinterpret_cast<const uint4*>(from[i]);
  bf16 kept[4] = {};
#pragma unroll
  for (int j = 0; j < 4; ++j)
    if (row + j % 2 < count) kept[j] = (j % 2 == 0 ? own : next)[j / 2 * 8];
#pragma unroll
  for (int i = 0; i < kOwnPieces; ++i)
    if (from[i] != nullptr) *reinterpret_cast<uint4*>(to[i]) = pieces[i];
  __syncthreads();  // the rows of low are there
  float acc[1][4] = {};
  multiply_segment<0, kSegmentFragments>(w, low, kStride, count, acc);
  float gates[4];
#pragma unroll
  for (int j = 0; j < 4; ++j) gates[j] = rounded(acc[0][j]);
  sigmoid_all(gates);
#pragma unroll
  for (int j = 0; j < 4; ++j)
    if (row + j % 2 < count)
      products[group][stream][kRows == 1 ? 0 : row + j % 2][lane / 4 + j / 2 * 8] = hc_product(rounded(gates[j]), to_f32(kept[j]));
  __syncthreads();  // every stream's products are written
  if (mean_row >= count) return;
  float sum = 0.0f;
#pragma unroll
  for (int h = 0; h < kUpStreams; ++h) sum += products[group][h][kRows == 1 ? 0 : mean_row][mean_d];
  HcShape known = s;
  known.HC = kUpStreams;
  *mean = to_b16(hc_mean_of(known, sum));
}

template <int kTokenTiles, int kTokenWarps>
std::size_t up_shared_bytes(const LinearParams& p, const HcShape& s) {
  const int tokens = 8 * kTokenTiles * kTokenWarps;
  return static_cast<std::size_t>(s.HC * tokens) * kGateStride * sizeof(float) +
         static_cast<std::size_t>(std::min(p.T, tokens)) * static_cast<std::size_t>(p.k_fragments * kFragmentColumns + 8) * sizeof(bf16);
}

template <int kRows>
void launch_up_few(const LinearParams& p, const HcShape& s, const bf16* normed, bf16* x, const Stream& stream) {
  const LaunchShape shape{dim3(static_cast<unsigned>(s.D / kFragmentRows / kUpGroups)), dim3(32 * kUpStreams * kUpGroups)};
  launch(linear_tag("hc_up_mean", p, false, stream), hc_up_mean_few_kernel<kRows>, shape, stream, p, s, normed, x);
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
  const bool whole = s.D == kInjectWhole * kInjectThreads;
  const auto kernel = inject == nullptr ? (whole ? hc_inject_norm_kernel<false, kInjectWhole> : hc_inject_norm_kernel<false, kInjectKept>)
                                        : (whole ? hc_inject_norm_kernel<true, kInjectWhole> : hc_inject_norm_kernel<true, kInjectKept>);
  launch("hc_inject_norm", kernel, {dim3(static_cast<unsigned>(T), static_cast<unsigned>(s.HC)), dim3(kInjectThreads)}, stream, s, inject,
         y, h, scale, normed);
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
  if (T <= kFewestRows && s.HC == kUpStreams && s.LR == kSegmentFragments * kFragmentColumns && s.D % (kUpGroups * kFragmentRows) == 0)
    return (T == 1 ? launch_up_few<1> : launch_up_few<kFewestRows>)(p, s, normed, x, stream);
  if (T <= 8 || up_shared_bytes<2, 2>(p, s) > kUpSharedBytes) return launch_up<1, 1>(p, s, normed, x, stream);
  if (T <= 16) return launch_up<1, 2>(p, s, normed, x, stream);
  if (T <= 32 || up_shared_bytes<4, 2>(p, s) > kUpSharedBytes) return launch_up<2, 2>(p, s, normed, x, stream);
  launch_up<4, 2>(p, s, normed, x, stream);
}

}  // namespace tetrad::cuda
