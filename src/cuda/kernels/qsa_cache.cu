// The first half of qsa (contract in qsa.h): norms, rotations, what is written to the caches.
#include "cuda/kernels/device_math.cuh"
#include "cuda/kernels/qsa.h"
#include "cuda/runtime/launch.cuh"

namespace tetrad::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;

__device__ float rope_value(bool sine, int position, float frequency, float factor) {
  const float angle = static_cast<float>(position) * frequency;  // the reference rounds the angle to float32
  // In double, so that no rounding of ours meets the rounding to bf16.
  return round_b16(static_cast<float>(sine ? sin(static_cast<double>(angle)) : cos(static_cast<double>(angle))) * factor);
}

__global__ void rope_angles_kernel(int T, int half, const int* position, const float* frequencies, float factor, float* cosines,
                                   float* sines) {
  wait_for_previous();
  const int i = blockIdx.x * kThreads + threadIdx.x;
  if (i >= T * half) return;
  cosines[i] = rope_value(false, position[i / half], frequencies[i % half], factor);
  sines[i] = rope_value(true, position[i / half], frequencies[i % half], factor);
}

// One warp: out = bf(x * inverse rms * scale), all bf16; x and out may be the same.
__device__ void norm_head(const bf16* x, const float* scale, int n, float eps, bf16* out, int lane) {
  float sum = 0.0f;
  for (int i = lane; i < n; i += 32) sum += to_f32(x[i]) * to_f32(x[i]);
  const float inverse = 1.0f / sqrtf(warp_sum(sum) / static_cast<float>(n) + eps);
  for (int i = lane; i < n; i += 32) out[i] = to_b16(to_f32(x[i]) * inverse * scale[i]);
  __syncwarp();  // what a lane wrote, other lanes rotate
}

// One warp: rotates the first 2 * half elements into out and copies the rest.
__device__ void rotate_head(const bf16* x, const float* cosines, const float* sines, int half, int n, bf16* out, int lane) {
  for (int i = lane; i < half; i += 32) {
    const float a = to_f32(x[i]), b = to_f32(x[i + half]);
    out[i] = to_b16(round_b16(a * cosines[i]) - round_b16(b * sines[i]));
    out[i + half] = to_b16(round_b16(b * cosines[i]) + round_b16(a * sines[i]));
  }
  if (x != out)
    for (int i = 2 * half + lane; i < n; i += 32) out[i] = x[i];
}

__global__ void qsa_norm_kernel(const QsaShape s, const QsaWeightsView w, bf16* projected) {
  wait_for_previous();
  bf16* row = projected + static_cast<std::size_t>(blockIdx.x) * s.row;
  const int lane = threadIdx.x % 32;
  for (int h = threadIdx.x / 32; h < s.HQ + s.HKV; h += kWarps) {
    bf16* x = h < s.HQ ? row + h * 2 * s.DH : row + s.k + (h - s.HQ) * s.DH;
    norm_head(x, h < s.HQ ? w.q_norm : w.k_norm, s.DH, s.eps, x, lane);
  }
}

__global__ void qsa_rotate_kernel(const QsaShape s, const QsaWeightsView w, bf16* projected, const float* cosines, const float* sines,
                                  const StepRows r) {
  wait_for_previous();
  const int t = blockIdx.x, lane = threadIdx.x % 32, half = s.DR / 2;
  bf16* row = projected + static_cast<std::size_t>(t) * s.row;
  const float* c = cosines + static_cast<std::size_t>(t) * half;
  const float* n = sines + static_cast<std::size_t>(t) * half;
  const int b = sequence_of(r, t), position = r.position[t];
  std::byte* page = page_of(r, b, position, r.page_tokens);
  const std::size_t in_page = static_cast<std::size_t>(position % r.page_tokens) * s.HKV * s.DH;
  bf16* keys = reinterpret_cast<bf16*>(page + s.k_offset) + in_page;
  bf16* values = reinterpret_cast<bf16*>(page + s.v_offset) + in_page;
  for (int h = threadIdx.x / 32; h < s.HQ + s.HKV + s.HI; h += kWarps) {
    if (h < s.HQ) {
      rotate_head(row + h * 2 * s.DH, c, n, half, s.DH, row + h * 2 * s.DH, lane);
    } else if (h < s.HQ + s.HKV) {
      rotate_head(row + s.k + (h - s.HQ) * s.DH, c, n, half, s.DH, keys + (h - s.HQ) * s.DH, lane);
    } else {
      bf16* x = row + s.index_q + (h - s.HQ - s.HKV) * s.DI;
      norm_head(x, w.index_q_norm, s.DI, s.eps, x, lane);
      rotate_head(x, c, n, half, s.DI, x, lane);
    }
  }
  for (int i = threadIdx.x; i < s.HKV * s.DH; i += kThreads) values[i] = row[s.v + i];
}

// Raw index key of position p >= the start of row t's block: of this step, or pending from before.
__device__ bf16 raw_key(const QsaShape& s, const bf16* projected, const bf16* pending, const StepRows& r, int b, int p, int i) {
  if (p >= r.start[b]) return projected[static_cast<std::size_t>(r.first_row[b] + p - r.start[b]) * s.row + s.index_k + i];
  return pending[p % s.R * s.DI + i];
}

// A block per row; only a row that completes a block of tokens works. Shared: [DI] pooled.
__global__ void qsa_pool_kernel(const QsaShape s, const QsaWeightsView w, const bf16* projected, const StepRows r) {
  wait_for_previous();
  extern __shared__ unsigned char memory[];
  auto* pooled = reinterpret_cast<bf16*>(memory);
  float* cosines = reinterpret_cast<float*>(memory + (s.DI * sizeof(bf16) + 15) / 16 * 16);
  float* sines = cosines + s.DR / 2;
  const int t = blockIdx.x, position = r.position[t];
  if ((position + 1) % s.R != 0) return;
  const int b = sequence_of(r, t), block = position / s.R;
  const auto* pending = reinterpret_cast<const bf16*>(slot_memory(r, r.slot[b]) + s.pending_offset);
  for (int i = threadIdx.x; i < s.DI; i += kThreads) {
    float sum = 0.0f;
    for (int j = 0; j < s.R; ++j) sum += to_f32(raw_key(s, projected, pending, r, b, block * s.R + j, i));
    pooled[i] = to_b16(sum / static_cast<float>(s.R));
  }
  for (int i = threadIdx.x; i < s.DR; i += kThreads)
    cosines[i] = rope_value(i >= s.DR / 2, block * s.R, w.frequencies[i % (s.DR / 2)], s.rope_factor);
  __syncthreads();  // the pooled key and the angles are written
  if (threadIdx.x >= 32) return;
  std::byte* page = page_of(r, b, block, r.page_tokens / s.R);
  bf16* key = reinterpret_cast<bf16*>(page + s.keys_offset) + static_cast<std::size_t>(block % (r.page_tokens / s.R)) * s.DI;
  norm_head(pooled, w.index_k_norm, s.DI, s.eps, pooled, static_cast<int>(threadIdx.x));
  rotate_head(pooled, cosines, sines, s.DR / 2, s.DI, key, static_cast<int>(threadIdx.x));
}

// A thread owns one element of the pending keys of one sequence: saves first, they read what was pending before the step.
__global__ void qsa_move_pending_kernel(const QsaShape s, const bf16* projected, const StepRows r) {
  wait_for_previous();
  const int e = blockIdx.y * kThreads + threadIdx.x, b = blockIdx.x;
  if (e >= (s.R - 1) * s.DI) return;
  const int j = e / s.DI, first = r.first_row[b], count = r.first_row[b + 1] - first;
  auto* pending = reinterpret_cast<bf16*>(slot_memory(r, r.slot[b]) + s.pending_offset);
  const auto write = [&](bf16* to, int rows) {
    const int length = r.start[b] + rows, p = length / s.R * s.R + j;  // nothing pending has one representation, zero
    to[e] = p < length ? raw_key(s, projected, pending, r, b, p, e % s.DI) : bf16{};
  };
  for (int i = 0; i < count; ++i)
    if (r.save_slot[first + i] >= 0) write(reinterpret_cast<bf16*>(slot_memory(r, r.save_slot[first + i]) + s.pending_offset), i + 1);
  write(pending, count);
}

}  // namespace

void rope_angles(int T, int half, const int* position, const float* frequencies, float factor, float* cos, float* sin,
                 const Stream& stream) {
  launch("rope_angles", rope_angles_kernel, {dim3(static_cast<unsigned>(ceil_div(T * half, kThreads))), dim3(kThreads)}, stream, T, half,
         position, frequencies, factor, cos, sin);
}

void qsa_norm(const QsaShape& s, const QsaWeightsView& w, bf16* projected, int T, const Stream& stream) {
  launch("qsa_norm", qsa_norm_kernel, {dim3(static_cast<unsigned>(T)), dim3(kThreads)}, stream, s, w, projected);
}

void qsa_rotate(const QsaShape& s, const QsaWeightsView& w, bf16* projected, const float* cos, const float* sin, const StepRows& r,
                const Stream& stream) {
  launch("qsa_rotate", qsa_rotate_kernel, {dim3(static_cast<unsigned>(r.T)), dim3(kThreads)}, stream, s, w, projected, cos, sin, r);
}

void qsa_pool(const QsaShape& s, const QsaWeightsView& w, const bf16* projected, const StepRows& r, const Stream& stream) {
  const std::size_t shared = (s.DI * sizeof(bf16) + 15) / 16 * 16 + static_cast<std::size_t>(s.DR) * sizeof(float);
  launch("qsa_pool", qsa_pool_kernel, {dim3(static_cast<unsigned>(r.T)), dim3(kThreads), shared}, stream, s, w, projected, r);
}

void qsa_move_pending(const QsaShape& s, const bf16* projected, const StepRows& r, const Stream& stream) {
  launch("qsa_move_pending", qsa_move_pending_kernel,
         {dim3(static_cast<unsigned>(r.B), static_cast<unsigned>(ceil_div((s.R - 1) * s.DI, kThreads))), dim3(kThreads)}, stream, s,
         projected, r);
}

}  // namespace tetrad::cuda
