#include "cuda/kernels/hyper_connections.h"

#include "cuda/kernels/hyper_connections.cuh"
#include "cuda/kernels/pieces.cuh"
#include "cuda/runtime/launch.cuh"

namespace tetrad::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kPieces = 2;   // of eight elements, that a thread of a norm keeps: D up to 4096
constexpr int kStreams = 4;  // whose loads are under way together

__global__ void __launch_bounds__(kThreads) norm_rows_kernel(const NormRowsArgs a) {
  wait_for_previous();
  __shared__ float scratch[kThreads / 32];
  const std::size_t group = blockIdx.y;
  const bf16* x = a.x + static_cast<std::size_t>(blockIdx.x) * a.ldx + group * a.D;
  const float* scale = a.scale + (a.shared_scale ? 0 : group * a.D);
  bf16* out = a.out + static_cast<std::size_t>(blockIdx.x) * a.ldo + group * a.D;
  float sum = 0.0f;
  for (int d = threadIdx.x; d < a.D; d += kThreads) {
    const float v = to_f32(x[d]);
    sum += v * v;
  }
  const float inverse = 1.0f / sqrtf(block_sum<kThreads>(sum, scratch) / static_cast<float>(a.D) + norm_eps(a.eps));
  for (int d = threadIdx.x; d < a.D; d += kThreads) out[d] = to_b16(to_f32(x[d]) * inverse * norm_scale(scale[d]));
}

// The same in pieces of eight, each read once, and for an injection its sum with the stream written back. The sum of squares keeps its
// order, so the rounded elements go through shared memory.
template <bool kInject>
__global__ void __launch_bounds__(kThreads) norm_pieces_kernel(const NormRowsArgs a, const bf16* inject, const bf16* y, bf16* h) {
  wait_for_previous();
  __shared__ float scratch[kThreads / 32];
  __shared__ uint4 row[kPieces * kThreads];
  const std::size_t group = blockIdx.y, t = blockIdx.x;
  const bf16* x = a.x + t * a.ldx + group * a.D;
  const float* scale = a.scale + (a.shared_scale ? 0 : group * a.D);
  const int pieces = a.D / 8;
  uint4 kept[kPieces];
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    const int p = threadIdx.x + i * kThreads;
    if (p < pieces) kept[i] = piece(x, p);
  }
  if constexpr (kInject) {
    const float weight = to_f32(inject[t * a.groups + group]);
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const int p = threadIdx.x + i * kThreads;
      if (p >= pieces) break;
      Eight v = expand(kept[i]);
      const Eight added = expand(piece(y + t * a.D, p));
#pragma unroll
      for (int e = 0; e < 8; ++e) v.x[e] += round_b16(weight * added.x[e]);
      kept[i] = round_eight(v);
      reinterpret_cast<uint4*>(h + t * a.ldx + group * a.D)[p] = kept[i];
    }
  }
#pragma unroll
  for (int i = 0; i < kPieces; ++i)
    if (threadIdx.x + i * kThreads < pieces) row[threadIdx.x + i * kThreads] = kept[i];
  __syncthreads();  // the row is in shared memory
  float sum = 0.0f;
  for (int d = threadIdx.x; d < a.D; d += kThreads) {
    const float v = to_f32(bf16{reinterpret_cast<const std::uint16_t*>(row)[d]});
    sum += v * v;
  }
  const float inverse = 1.0f / sqrtf(block_sum<kThreads>(sum, scratch) / static_cast<float>(a.D) + norm_eps(a.eps));
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    const int p = threadIdx.x + i * kThreads;
    if (p >= pieces) break;
    const float4 low = reinterpret_cast<const float4*>(scale)[2 * p], high = reinterpret_cast<const float4*>(scale)[2 * p + 1];
    const float scales[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    Eight v = expand(kept[i]);
#pragma unroll
    for (int e = 0; e < 8; ++e) v.x[e] = v.x[e] * inverse * norm_scale(scales[e]);
    reinterpret_cast<uint4*>(a.out + t * a.ldo + group * a.D)[p] = round_eight(v);
  }
}

__global__ void hc_activate_kernel(const HcShape s, int T, const bf16* logits, int ld, bf16* low, int ld_low, bf16* inject) {
  wait_for_previous();
  const int width = s.LR + (inject == nullptr ? 0 : s.HC);
  const int i = blockIdx.x * kThreads + threadIdx.x;
  if (i >= T * width) return;
  const int t = i / width, j = i % width;
  const float logit = to_f32(logits[static_cast<std::size_t>(t) * ld + j]), v = round_b16(logit / static_cast<float>(s.HC));
  if (j < s.LR)
    low[static_cast<std::size_t>(t) * ld_low + j] = hc_low(s, logit, v);
  else
    inject[t * s.HC + j - s.LR] = hc_injection(v);
}

__global__ void hc_mean_kernel(const HcShape s, int T, const bf16* gate, const bf16* normed, bf16* x) {
  wait_for_previous();
  const std::size_t i = static_cast<std::size_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= static_cast<std::size_t>(T) * s.D) return;
  const std::size_t row = i / s.D * s.D * s.HC + i % s.D;
  float sum = 0.0f;
  for (int h = 0; h < s.HC; ++h) {
    const std::size_t place = row + static_cast<std::size_t>(h) * s.D;
    sum += hc_product(round_b16(sigmoid_f32(to_f32(gate[place]))), to_f32(normed[place]));
  }
  x[i] = to_b16(hc_mean_of(s, sum));
}

// Eight elements of x to a thread.
__global__ void __launch_bounds__(kThreads) hc_mean_pieces_kernel(const HcShape s, int T, const bf16* gate, const bf16* normed, bf16* x) {
  wait_for_previous();
  const int i = blockIdx.x * kThreads + threadIdx.x, pieces = s.D / 8;
  if (i >= T * pieces) return;
  const std::size_t row = static_cast<std::size_t>(i / pieces) * s.HC * s.D;
  const int p = i % pieces;
  Eight sum = {};
#pragma unroll kStreams
  for (int h = 0; h < s.HC; ++h) {
    Eight g = expand(piece(gate + row + static_cast<std::size_t>(h) * s.D, p));
    const Eight n = expand(piece(normed + row + static_cast<std::size_t>(h) * s.D, p));
    sigmoid_all(g.x);
#pragma unroll
    for (int e = 0; e < 8; ++e) sum.x[e] += hc_product(round_b16(g.x[e]), n.x[e]);
  }
#pragma unroll
  for (int e = 0; e < 8; ++e) sum.x[e] = hc_mean_of(s, sum.x[e]);
  reinterpret_cast<uint4*>(x)[i] = round_eight(sum);
}

__global__ void hc_inject_kernel(const HcShape s, int T, const bf16* inject, const bf16* y, bf16* h) {
  wait_for_previous();
  const std::size_t i = static_cast<std::size_t>(blockIdx.x) * kThreads + threadIdx.x;
  const std::size_t width = static_cast<std::size_t>(s.HC) * s.D;
  if (i >= T * width) return;
  const std::size_t t = i / width, stream = i % width / s.D, d = i % s.D;
  const float product = round_b16(to_f32(inject[t * s.HC + stream]) * to_f32(y[t * s.D + d]));
  h[i] = to_b16(to_f32(h[i]) + product);
}

// Eight elements of y to a thread, into all streams.
__global__ void __launch_bounds__(kThreads) hc_inject_pieces_kernel(const HcShape s, int T, const bf16* inject, const bf16* y, bf16* h) {
  wait_for_previous();
  const int i = blockIdx.x * kThreads + threadIdx.x, pieces = s.D / 8;
  if (i >= T * pieces) return;
  const int t = i / pieces, p = i % pieces;
  const Eight added = expand(reinterpret_cast<const uint4*>(y)[i]);
  bf16* row = h + static_cast<std::size_t>(t) * s.HC * s.D;
  for (int first = 0; first < s.HC; first += kStreams) {
    uint4 before[kStreams];
#pragma unroll
    for (int j = 0; j < kStreams; ++j)
      if (first + j < s.HC) before[j] = piece(row + static_cast<std::size_t>(first + j) * s.D, p);
#pragma unroll
    for (int j = 0; j < kStreams; ++j) {
      if (first + j >= s.HC) break;
      const float weight = to_f32(inject[t * s.HC + first + j]);
      Eight v = expand(before[j]);
#pragma unroll
      for (int e = 0; e < 8; ++e) v.x[e] += round_b16(weight * added.x[e]);
      reinterpret_cast<uint4*>(row + static_cast<std::size_t>(first + j) * s.D)[p] = round_eight(v);
    }
  }
}

LaunchShape elements(std::size_t count) { return {dim3(static_cast<unsigned>((count + kThreads - 1) / kThreads)), dim3(kThreads)}; }

}  // namespace

void norm_rows(const NormRowsArgs& a, const Stream& stream) {
  const LaunchShape shape{dim3(static_cast<unsigned>(a.T), static_cast<unsigned>(a.groups)), dim3(kThreads)};
  if (a.D % 8 == 0 && a.ldx % 8 == 0 && a.ldo % 8 == 0 && a.D <= 8 * kPieces * kThreads)
    return launch("norm_rows", norm_pieces_kernel<false>, shape, stream, a, nullptr, nullptr, nullptr);
  launch("norm_rows", norm_rows_kernel, shape, stream, a);
}

void hc_inject_norm_rows(const HcShape& s, int T, const bf16* inject, const bf16* y, bf16* h, const float* scale, bf16* normed,
                         const Stream& stream) {
  const int width = s.HC * s.D;
  const NormRowsArgs a{.T = T,
                       .groups = s.HC,
                       .D = s.D,
                       .eps = s.eps,
                       .x = h,
                       .ldx = width,
                       .scale = scale,
                       .shared_scale = false,
                       .out = normed,
                       .ldo = width};
  if (s.D % 8 == 0 && s.D <= 8 * kPieces * kThreads)
    return launch("hc_inject_norm_rows", norm_pieces_kernel<true>,
                  {dim3(static_cast<unsigned>(T), static_cast<unsigned>(s.HC)), dim3(kThreads)}, stream, a, inject, y, h);
  hc_inject(s, T, inject, y, h, stream);
  norm_rows(a, stream);
}

void hc_activate(const HcShape& s, int T, const bf16* low_logits, int ld, bf16* low, int ld_low, bf16* inject, const Stream& stream) {
  const int width = s.LR + (inject == nullptr ? 0 : s.HC);
  launch("hc_activate", hc_activate_kernel, elements(static_cast<std::size_t>(T) * width), stream, s, T, low_logits, ld, low, ld_low,
         inject);
}

void hc_mean(const HcShape& s, int T, const bf16* gate_logits, const bf16* normed, bf16* x, const Stream& stream) {
  if (s.D % 8 == 0)
    return launch("hc_mean", hc_mean_pieces_kernel, elements(static_cast<std::size_t>(T) * s.D / 8), stream, s, T, gate_logits, normed, x);
  launch("hc_mean", hc_mean_kernel, elements(static_cast<std::size_t>(T) * s.D), stream, s, T, gate_logits, normed, x);
}

void hc_inject(const HcShape& s, int T, const bf16* inject, const bf16* y, bf16* h, const Stream& stream) {
  if (s.D % 8 == 0)
    return launch("hc_inject", hc_inject_pieces_kernel, elements(static_cast<std::size_t>(T) * s.D / 8), stream, s, T, inject, y, h);
  launch("hc_inject", hc_inject_kernel, elements(static_cast<std::size_t>(T) * s.HC * s.D), stream, s, T, inject, y, h);
}

}  // namespace tetrad::cuda
