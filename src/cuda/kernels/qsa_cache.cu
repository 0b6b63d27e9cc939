// The first half of qsa (contract in qsa.h): norms, rotations, what is written to the caches.
#include "cuda/kernels/device_math.cuh"
#include "cuda/kernels/qsa.h"
#include "cuda/runtime/launch.cuh"

namespace tetrad::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kPrepareThreads = 768;  // compiled for 1,024: the tools that check memory need registers of their own

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
  const float inverse = 1.0f / sqrtf(warp_sum(sum) / static_cast<float>(n) + norm_eps(eps));
  for (int i = lane; i < n; i += 32) out[i] = to_b16(to_f32(x[i]) * inverse * norm_scale(scale[i]));
  __syncwarp();  // what a lane wrote, other lanes rotate
}

// One warp: rotates the first 2 * half elements into out and copies the rest.
__device__ void rotate_head(const bf16* x, const float* cosines, const float* sines, int half, int n, bf16* out, int lane) {
  const auto product = [](float a, float b) { return mutant(Mutant::kRopeUnrounded) ? a * b : round_b16(a * b); };
  for (int i = lane; i < half; i += 32) {
    const bool interleaved = mutant(Mutant::kRopeInterleaved);
    const int first = interleaved ? 2 * i : i, second = interleaved ? 2 * i + 1 : i + half;
    const float a = to_f32(x[first]), b = to_f32(x[second]);
    out[first] = to_b16(product(a, cosines[i]) - product(b, sines[i]));
    out[second] = to_b16(product(b, cosines[i]) + product(a, sines[i]));
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

// Raw index key of position p >= the start of row t's block: of this step, or pending from before.
__device__ bf16 raw_key(const QsaShape& s, const bf16* projected, const bf16* pending, const StepRows& r, int b, int p, int i) {
  if (p >= r.start[b]) return projected[static_cast<std::size_t>(r.first_row[b] + p - r.start[b]) * s.row + s.index_k + i];
  return pending[p % s.R * s.DI + i];
}

// One warp: mean [DI] of the raw keys of a block, and the angles [DR / 2] of its first token.
__device__ void pool_block(const QsaShape& s, const QsaWeightsView& w, const bf16* projected, const bf16* pending, const StepRows& r, int b,
                           int block, bf16* pooled, float* cosines, float* sines, int lane) {
#pragma unroll 1
  for (int i = lane; i < s.DR; i += 32) {
    const bool sine = i >= s.DR / 2;
    (sine ? sines - s.DR / 2 : cosines)[i] = rope_value(sine, block * s.R + (mutant(Mutant::kRopeAtBlockEnd) ? s.R - 1 : 0),
                                                        w.frequencies[sine ? i - s.DR / 2 : i], s.rope_factor);
  }
#pragma unroll 1
  for (int i = lane; i < s.DI; i += 32) {
    float sum = 0.0f;
    for (int j = 0; j < s.R; ++j) sum += to_f32(raw_key(s, projected, pending, r, b, block * s.R + j, i));
    const float mean = sum / static_cast<float>(s.R);
    pooled[i] = mutant(Mutant::kPoolTruncated) ? cut_b16(mean) : to_b16(mean);
  }
  __syncwarp();  // the pooled key and the angles are written
}

// The block's threads: element e of the pending keys belongs to one of them. Saves first, they read what was pending before the step.
__device__ void move_pending(const QsaShape& s, const bf16* projected, bf16* pending, const StepRows& r, int b) {
  const int first = r.first_row[b], count = r.first_row[b + 1] - first;
  for (int e = threadIdx.x; e < (s.R - 1) * s.DI; e += kPrepareThreads) {
    const auto write = [&](bf16* to, int rows) {
      const int length = r.start[b] + rows, p = length / s.R * s.R + e / s.DI;  // nothing pending has one representation, zero
      to[e] = p < length ? raw_key(s, projected, pending, r, b, p, e % s.DI) : bf16{};
    };
    for (int i = 0; i < count; ++i)
      if (r.save_slot[first + i] >= 0) write(reinterpret_cast<bf16*>(slot_memory(r, r.save_slot[first + i]) + s.pending_offset), i + 1);
    write(pending, count);
  }
}

// A block per row, a warp per head. The one row of a sequence that may pool keys pending from before the step, the row that completes their
// block, or else the last, moves the pending keys: so the order of blocks does not matter.
__global__ void __launch_bounds__(1024) qsa_prepare_kernel(const QsaShape s, const QsaWeightsView w, bf16* projected, const float* cosines,
                                                           const float* sines, bool normed, const StepRows r) {
  wait_for_previous();
  extern __shared__ float memory[];
  const int t = blockIdx.x, lane = threadIdx.x % 32, half = s.DR / 2;
  bf16* row = projected + static_cast<std::size_t>(t) * s.row;
  const float* c = cosines + static_cast<std::size_t>(t) * half;
  const float* n = sines + static_cast<std::size_t>(t) * half;
  const int b = sequence_of(r, t), position = r.position[t], heads = s.HQ + s.HKV + s.HI;
  auto* pending = reinterpret_cast<bf16*>(slot_memory(r, r.slot[b]) + s.pending_offset);
  std::byte* page = page_of(r, b, position, r.page_tokens);
  const std::size_t in_page = static_cast<std::size_t>(position % r.page_tokens) * s.HKV * s.DH;
  bf16* keys = reinterpret_cast<bf16*>(page + s.k_offset) + in_page;
  bf16* values = reinterpret_cast<bf16*>(page + s.v_offset) + in_page;
  const int pool_task = min(kPrepareThreads / 32, heads + 2) - 1;  // the longest: its warp has the fewest others
#pragma unroll 1
  for (int task = threadIdx.x / 32; task < heads + 2; task += kPrepareThreads / 32) {
    if (task == 0) {
      for (int i = lane; i < s.HKV * s.DH; i += 32) values[i] = row[s.v + i];
      continue;
    }
    // One norm and one rotation for all of them: what a step of few rows waits for is mostly its instructions.
    const bool pools = task == pool_task;
    const int h = task < pool_task ? task - 1 : task - 2;
    const bool index_query = !pools && h >= s.HQ + s.HKV;
    bf16* x = h < s.HQ ? row + h * 2 * s.DH : row + s.k + (h - s.HQ) * s.DH;
    bf16* out = h < s.HQ ? x : keys + (h - s.HQ) * s.DH;
    const float *scale = h < s.HQ ? w.q_norm : w.k_norm, *head_cosines = c, *head_sines = n;
    if (mutant(Mutant::kRopeQueriesBehind) && h < s.HQ && t > 0) head_cosines -= half, head_sines -= half;
    if (index_query) x = out = row + s.index_q + (h - s.HQ - s.HKV) * s.DI, scale = w.index_q_norm;
    if (pools) {
      if ((position + 1) % s.R != 0) continue;
      const int block = position / s.R, per_page = r.page_tokens / s.R;
      auto* pooled = reinterpret_cast<bf16*>(memory + s.DR);
      pool_block(s, w, projected, pending, r, b, block, pooled, memory, memory + half, lane);
      x = pooled, scale = w.index_k_norm, head_cosines = memory, head_sines = memory + half;
      out = reinterpret_cast<bf16*>(page_of(r, b, block, per_page) + s.keys_offset) + static_cast<std::size_t>(block % per_page) * s.DI;
    }
    const bool of_index = pools || index_query;
    const int width = of_index ? s.DI : s.DH;
    if (!normed || of_index) norm_head(x, scale, width, s.eps, x, lane);
    rotate_head(x, head_cosines, head_sines, half, width, out, lane);
  }
  const int first = r.first_row[b], count = r.first_row[b + 1] - first;
  if (t - first != min(count - 1, s.R - 1 - r.start[b] % s.R)) return;
  __syncthreads();  // what was pending has been pooled
  move_pending(s, projected, pending, r, b);
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

void qsa_prepare(const QsaShape& s, const QsaWeightsView& w, bf16* projected, const float* cos, const float* sin, bool normed,
                 const StepRows& r, const Stream& stream) {
  const std::size_t shared = static_cast<std::size_t>(s.DR) * sizeof(float) + static_cast<std::size_t>(s.DI) * sizeof(bf16);
  launch("qsa_prepare", qsa_prepare_kernel, {dim3(static_cast<unsigned>(r.T)), dim3(kPrepareThreads), shared}, stream, s, w, projected, cos,
         sin, normed, r);
}

}  // namespace tetrad::cuda
