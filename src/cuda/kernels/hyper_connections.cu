#include "cuda/kernels/hyper_connections.h"

#include "cuda/kernels/device_math.cuh"
#include "cuda/runtime/launch.cuh"

namespace tetrad::cuda {
namespace {

constexpr int kThreads = 256;

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
  const float inverse = 1.0f / sqrtf(block_sum<kThreads>(sum, scratch) / static_cast<float>(a.D) + a.eps);
  for (int d = threadIdx.x; d < a.D; d += kThreads) out[d] = to_b16(to_f32(x[d]) * inverse * scale[d]);
}

__global__ void hc_activate_kernel(const HcShape s, int T, const bf16* logits, int ld, bf16* low, int ld_low, bf16* inject) {
  wait_for_previous();
  const int width = s.LR + (inject == nullptr ? 0 : s.HC);
  const int i = blockIdx.x * kThreads + threadIdx.x;
  if (i >= T * width) return;
  const int t = i / width, j = i % width;
  const float v = round_b16(to_f32(logits[static_cast<std::size_t>(t) * ld + j]) / static_cast<float>(s.HC));
  if (j < s.LR)
    low[static_cast<std::size_t>(t) * ld_low + j] = to_b16(silu_f32(v));
  else
    inject[t * s.HC + j - s.LR] = to_b16(2.0f * round_b16(sigmoid_f32(v)));  // exact
}

__global__ void hc_mean_kernel(const HcShape s, int T, const bf16* gate, const bf16* normed, bf16* x) {
  wait_for_previous();
  const std::size_t i = static_cast<std::size_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= static_cast<std::size_t>(T) * s.D) return;
  const std::size_t row = i / s.D * s.D * s.HC + i % s.D;
  float sum = 0.0f;
  for (int h = 0; h < s.HC; ++h) {
    const std::size_t place = row + static_cast<std::size_t>(h) * s.D;
    sum += round_b16(round_b16(sigmoid_f32(to_f32(gate[place]))) * to_f32(normed[place]));
  }
  x[i] = to_b16(sum / static_cast<float>(s.HC));
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

LaunchShape elements(std::size_t count) { return {dim3(static_cast<unsigned>((count + kThreads - 1) / kThreads)), dim3(kThreads)}; }

}  // namespace

void norm_rows(const NormRowsArgs& a, const Stream& stream) {
  launch("norm_rows", norm_rows_kernel, {dim3(static_cast<unsigned>(a.T), static_cast<unsigned>(a.groups)), dim3(kThreads)}, stream, a);
}

void hc_activate(const HcShape& s, int T, const bf16* low_logits, int ld, bf16* low, int ld_low, bf16* inject, const Stream& stream) {
  const int width = s.LR + (inject == nullptr ? 0 : s.HC);
  launch("hc_activate", hc_activate_kernel, elements(static_cast<std::size_t>(T) * width), stream, s, T, low_logits, ld, low, ld_low,
         inject);
}

void hc_mean(const HcShape& s, int T, const bf16* gate_logits, const bf16* normed, bf16* x, const Stream& stream) {
  launch("hc_mean", hc_mean_kernel, elements(static_cast<std::size_t>(T) * s.D), stream, s, T, gate_logits, normed, x);
}

void hc_inject(const HcShape& s, int T, const bf16* inject, const bf16* y, bf16* h, const Stream& stream) {
  launch("hc_inject", hc_inject_kernel, elements(static_cast<std::size_t>(T) * s.HC * s.D), stream, s, T, inject, y, h);
}

}  // namespace tetrad::cuda
