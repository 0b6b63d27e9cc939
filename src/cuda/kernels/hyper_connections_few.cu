// hyper_connections for few rows (contract in hyper_connections.h): launches are what costs there, so neighbours are one.
#include "base/error.h"
#include "cuda/kernels/hyper_connections.cuh"
#include "cuda/kernels/linear_few.cuh"
#include "cuda/runtime/launch.cuh"

namespace tetrad::cuda {
namespace {

constexpr int kKept = 12;
constexpr int kNormThreads = 256, kActivateThreads = 64, kTokens = 8;

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
  const auto injected = [&](int d) {
    const float v = to_f32(h[first + d]);
    return inject == nullptr ? v : round_b16(v + round_b16(weight * to_f32(y[t * s.D + d])));
  };
  float kept[kKept], sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kKept; ++i) {
    const int d = threadIdx.x + i * kNormThreads;
    kept[i] = d < s.D ? injected(d) : 0.0f;
  }
#pragma unroll
  for (int i = 0; i < kKept; ++i) sum += kept[i] * kept[i];
  for (int d = threadIdx.x + kKept * kNormThreads; d < s.D; d += kNormThreads) {
    const float v = injected(d);
    sum += v * v;
  }
  const float inverse = 1.0f / sqrtf(block_sum<kNormThreads>(sum, scratch) / static_cast<float>(s.D) + s.eps);
  const auto write = [&](int d, float v, float weight_scale) {
    if (inject != nullptr) h[first + d] = to_b16(v);
    normed[first + d] = to_b16(v * inverse * weight_scale);
  };
#pragma unroll
  for (int i = 0; i < kKept; ++i)
    if (threadIdx.x + i * kNormThreads < s.D) write(threadIdx.x + i * kNormThreads, kept[i], kept_scale[i]);
  for (int d = threadIdx.x + kKept * kNormThreads; d < s.D; d += kNormThreads) write(d, injected(d), scale[stream * s.D + d]);
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

// A block owns 16 elements of x, a warp one stream's gates for them. Shared: [HC][kTokens][16] gates.
__global__ void hc_up_mean_kernel(const LinearParams p, const HcShape s, const bf16* normed, bf16* x) {
  extern __shared__ float gates[];
  const int stream = threadIdx.x / 32, lane = threadIdx.x % 32, d0 = blockIdx.x * kFragmentRows;
  const std::byte* fragments =
      p.data + static_cast<std::size_t>((stream * s.D + d0) / kFragmentRows) * p.k_fragments * WeightFragment<false>::kBytes;
  Batch<false> batch;
  batch.load(fragments, 0, min(p.segment, p.k_fragments), lane);
  wait_for_previous();
  for (int t0 = 0; t0 < p.T; t0 += kTokens) {
    const bf16* row[1];
    token_rows<1>(p, t0, p.T, row);
    float total[4];
    for (int begin = 0; begin < p.k_fragments; begin += p.segment) {
      const int end = min(begin + p.segment, p.k_fragments), next = end < p.k_fragments ? end : 0;
      float acc[1][4];
      segment_sum<false, 1>(fragments, row, p.K, begin, end, next, min(next + p.segment, p.k_fragments), batch, acc);
#pragma unroll
      for (int j = 0; j < 4; ++j) total[j] = begin == 0 ? acc[0][j] : total[j] + acc[0][j];
    }
    __syncthreads();  // the last tokens' gates have been read
#pragma unroll
    for (int j = 0; j < 4; ++j)
      gates[(stream * kTokens + lane % 4 * 2 + j % 2) * kFragmentRows + lane / 4 + j / 2 * 8] = round_b16(sigmoid_f32(round_b16(total[j])));
    __syncthreads();  // every stream's gates are written
    for (int i = threadIdx.x; i < kTokens * kFragmentRows; i += blockDim.x) {
      const int t = t0 + i / kFragmentRows, d = d0 + i % kFragmentRows;
      if (t >= p.T) break;
      float sum = 0.0f;
      for (int h = 0; h < s.HC; ++h)
        sum += round_b16(gates[h * kTokens * kFragmentRows + i] * to_f32(normed[(static_cast<std::size_t>(t) * s.HC + h) * s.D + d]));
      x[static_cast<std::size_t>(t) * s.D + d] = to_b16(sum / static_cast<float>(s.HC));
    }
  }
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
  TETRAD_CHECK(s.D % kFragmentRows == 0 && !up.fp8 && s.HC <= 32, "hc_up_mean: D {}, {} streams", s.D, s.HC);
  const LinearParams p = linear_params(up, {.T = T, .x = low, .ldx = ld_low});
  launch("hc_up_mean", hc_up_mean_kernel,
         {dim3(static_cast<unsigned>(s.D / kFragmentRows)), dim3(static_cast<unsigned>(32 * s.HC)),
          static_cast<std::size_t>(s.HC) * kTokens * kFragmentRows * sizeof(float)},
         stream, p, s, normed, x);
}

}  // namespace tetrad::cuda
