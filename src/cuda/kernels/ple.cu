#include "cuda/kernels/ple.h"

#include "cuda/kernels/pieces.cuh"
#include "cuda/runtime/launch.cuh"

namespace tetrad::cuda {
namespace {

constexpr int kThreads = 256;
constexpr float kGateFloor = 1e-6f;  // of |t| before the root, as the reference's clamp

// The id `back` tokens before row t; end of text where the sequence had not begun (the cleared history says so).
__device__ int token_back(const PleShape& s, const StepRows& r, int t, int b, int back) {
  const int in_sequence = t - r.first_row[b] - back;
  const auto* history = reinterpret_cast<const int*>(slot_memory(r, r.slot[b]) + s.history_offset);
  const int id = in_sequence >= 0 ? r.token_ids[t - back] : history[in_sequence + s.ngram_size - 1];
  if (id < 0 && id != s.eos) __trap();  // a model without end of text has -1 for it
  return id;
}

// The multiplier of the id so far back, and how far back tap j looks.
__device__ __forceinline__ int multiplier_of(const PleShape& s, int back) {
  return mutant(Mutant::kPleMultiplierOrder) ? s.ngram_size - 1 - back : back;
}
__device__ __forceinline__ int rows_back(const PleShape& s, int j) {
  return (s.conv_width - 1 - j) * (mutant(Mutant::kPleConvUndilated) ? 1 : s.ngram_size);
}

__global__ void ple_row_ids_kernel(const PleShape s, const PleWeightsView w, std::int64_t* rows, const StepRows r) {
  wait_for_previous();
  const int i = blockIdx.x * kThreads + threadIdx.x;
  if (i >= r.T * s.NG) return;
  const int t = i / s.NG, j = i % s.NG, n = j / s.heads_per_ngram + 2;  // ids hashed
  const int b = sequence_of(r, t);
  auto mixed =
      static_cast<unsigned long long>(token_back(s, r, t, b, 0)) * static_cast<unsigned long long>(w.multipliers[multiplier_of(s, 0)]);
  bool cut = false;
  for (int back = 1; back < n; ++back) {
    const int id = token_back(s, r, t, b, back);
    cut = cut || (id == s.eos && !mutant(Mutant::kPleContextNotCut));
    mixed ^= static_cast<unsigned long long>(cut ? s.eos : id) * static_cast<unsigned long long>(w.multipliers[multiplier_of(s, back)]);
  }
  rows[i] = static_cast<std::int64_t>(mixed % static_cast<unsigned long long>(w.head_sizes[j])) + w.head_offsets[j];
}

__global__ void ple_gather_kernel(const PleShape s, const PleWeightsView w, const std::int64_t* rows, bf16* embedding, int ld, int T) {
  wait_for_previous();
  const std::size_t i = static_cast<std::size_t>(blockIdx.x) * kThreads + threadIdx.x;
  const std::size_t width = static_cast<std::size_t>(s.NG) * s.DE;
  if (i >= T * width) return;
  const std::size_t t = i / width, j = i % width / s.DE, d = i % s.DE;
  const std::size_t place = static_cast<std::size_t>(checked(rows[t * s.NG + j], s.table_rows)) * s.DE + d;
  bf16 value;
  if (w.fp8)
    value = to_b16(fp8_to_f32(static_cast<const std::uint8_t*>(w.table)[place]) * (mutant(Mutant::kPleScaleMissing) ? 1.0f : w.scale));
  else
    value = static_cast<const bf16*>(w.table)[place];
  embedding[t * ld + j * s.DE + d] = value;
}

__global__ void __launch_bounds__(kThreads)
    ple_gate_kernel(const PleShape s, const PleWeightsView w, const PleBuffers b, const bf16* streams) {
  wait_for_previous();
  __shared__ float scratch[kThreads / 32];
  const std::size_t t = blockIdx.x, first = static_cast<std::size_t>(blockIdx.y) * s.D, width = static_cast<std::size_t>(s.HC) * s.D;
  const bf16* key = b.key_value + t * b.ld_key_value + first;
  const bf16* value = b.key_value + t * b.ld_key_value + width;
  const bf16* query = streams + t * width + first;
  const auto dim = static_cast<float>(s.D);

  float key_squares = 0.0f, query_squares = 0.0f;
  for (int d = threadIdx.x; d < s.D; d += kThreads) {
    key_squares += to_f32(key[d]) * to_f32(key[d]);
    query_squares += to_f32(query[d]) * to_f32(query[d]);
  }
  const float key_inverse = 1.0f / sqrtf(block_sum<kThreads>(key_squares, scratch) / dim + norm_eps(s.eps));
  const float query_inverse = 1.0f / sqrtf(block_sum<kThreads>(query_squares, scratch) / dim + norm_eps(s.eps));
  float dot = 0.0f;
  for (int d = threadIdx.x; d < s.D; d += kThreads) {
    const float k = round_b16(to_f32(key[d]) * key_inverse * norm_scale(w.norm_key[first + d]));
    const float q = round_b16(to_f32(query[d]) * query_inverse * norm_scale(w.norm_query[first + d]));
    dot += round_b16(k * q);
  }
  const float score = round_b16(round_b16(block_sum<kThreads>(dot, scratch)) / sqrtf(dim));
  float gate = fabsf(score) < round_b16(kGateFloor) ? round_b16(kGateFloor) : fabsf(score);  // a NaN fails the comparison and stays
  gate = mutant(Mutant::kPleGateNoRoot) ? gate : round_b16(sqrtf(gate));
  gate = score > 0.0f ? gate : score < 0.0f ? -gate : score == 0.0f ? 0.0f : score;
  gate = round_b16(sigmoid_f32(gate));

  float squares = 0.0f;
  bf16* gated = b.gated + t * width + first;
  for (int d = threadIdx.x; d < s.D; d += kThreads) {
    const float g = round_b16(gate * to_f32(value[d]));
    gated[d] = to_b16(g);
    squares += g * g;
  }
  const float inverse = 1.0f / sqrtf(block_sum<kThreads>(squares, scratch) / dim + norm_eps(s.eps));
  for (int d = threadIdx.x; d < s.D; d += kThreads)
    b.normed[t * width + first + d] = to_b16(to_f32(gated[d]) * inverse * norm_scale(w.norm_conv[first + d]));
}

__global__ void ple_convolve_kernel(const PleShape s, const float* taps, const PleBuffers buffers, const StepRows r) {
  wait_for_previous();
  const int width = s.HC * s.D, ch = blockIdx.y * kThreads + threadIdx.x, t = blockIdx.x;
  if (ch >= width) return;
  const int b = sequence_of(r, t), in_sequence = t - r.first_row[b], history = s.window_rows;
  const auto* window = reinterpret_cast<const bf16*>(slot_memory(r, r.slot[b]) + s.window_offset);
  float sum = 0.0f;
  for (int j = 0; j < s.conv_width; ++j) {
    const int back = rows_back(s, j);
    const bf16 p = in_sequence >= back ? buffers.normed[static_cast<std::size_t>(t - back) * width + ch]
                                       : window[static_cast<std::size_t>(in_sequence - back + history) * width + ch];
    sum += taps[static_cast<std::size_t>(j) * width + ch] * to_f32(p);
  }
  const std::size_t place = static_cast<std::size_t>(t) * width + ch;
  buffers.out[place] =
      to_b16(to_f32((mutant(Mutant::kPleSkipNormed) ? buffers.normed : buffers.gated)[place]) + round_b16(silu_f32(round_b16(sum))));
}

// The same for eight channels to a thread.
__global__ void __launch_bounds__(kThreads)
    ple_convolve_pieces_kernel(const PleShape s, const float* taps, const PleBuffers buffers, const StepRows r) {
  wait_for_previous();
  const int width = s.HC * s.D, p = blockIdx.y * kThreads + threadIdx.x, t = blockIdx.x;
  if (8 * p >= width) return;
  const int b = sequence_of(r, t), in_sequence = t - r.first_row[b], history = s.window_rows;
  const auto* window = reinterpret_cast<const bf16*>(slot_memory(r, r.slot[b]) + s.window_offset);
  Eight sum = {};
#pragma unroll 4
  for (int j = 0; j < s.conv_width; ++j) {
    const int back = rows_back(s, j);
    const bf16* row = in_sequence >= back ? buffers.normed + static_cast<std::size_t>(t - back) * width
                                          : window + static_cast<std::size_t>(in_sequence - back + history) * width;
    const Eight x = expand(piece(row, p));
    const auto* tap = reinterpret_cast<const float4*>(taps + static_cast<std::size_t>(j) * width) + 2 * p;
    const float4 low = tap[0], high = tap[1];
    const float weights[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
    for (int e = 0; e < 8; ++e) sum.x[e] += weights[e] * x.x[e];
  }
  const std::size_t row = static_cast<std::size_t>(t) * width;
  const Eight gated = expand(piece((mutant(Mutant::kPleSkipNormed) ? buffers.normed : buffers.gated) + row, p));
#pragma unroll
  for (int e = 0; e < 8; ++e) sum.x[e] = round_b16(sum.x[e]);
  silu_all(sum.x);
#pragma unroll
  for (int e = 0; e < 8; ++e) sum.x[e] = gated.x[e] + round_b16(sum.x[e]);
  reinterpret_cast<uint4*>(buffers.out + row)[p] = round_eight(sum);
}

__global__ void ple_add_kernel(std::size_t count, const bf16* out, bf16* streams) {
  wait_for_previous();
  const std::size_t i = static_cast<std::size_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < count) streams[i] = to_b16(to_f32(streams[i]) + to_f32(out[i]));
}

__global__ void __launch_bounds__(kThreads) ple_add_pieces_kernel(std::size_t count, const bf16* out, bf16* streams) {
  wait_for_previous();
  const std::size_t i = static_cast<std::size_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= count) return;
  Eight sum = expand(reinterpret_cast<const uint4*>(streams)[i]);
  const Eight added = expand(reinterpret_cast<const uint4*>(out)[i]);
#pragma unroll
  for (int e = 0; e < 8; ++e) sum.x[e] += added.x[e];
  reinterpret_cast<uint4*>(streams)[i] = round_eight(sum);
}

// A block per sequence looks for rows that save; the history itself is a few ids, for one thread.
__global__ void __launch_bounds__(kThreads) move_history_kernel(int past, std::size_t offset, const StepRows r) {
  wait_for_previous();
  const int b = blockIdx.x, first = r.first_row[b], count = r.first_row[b + 1] - first;
  auto* history = reinterpret_cast<int*>(slot_memory(r, r.slot[b]) + offset);
  const auto write = [&](int* to, int rows) {  // ascending, so an id is read before it is overwritten
    for (int h = 0; h < past; ++h) to[h] = rows - past + h >= 0 ? r.token_ids[first + rows - past + h] : history[h + rows];
  };
  for (int t = threadIdx.x; t < count; t += kThreads)
    if (r.save_slot[first + t] >= 0) write(reinterpret_cast<int*>(slot_memory(r, r.save_slot[first + t]) + offset), t + 1);
  __syncthreads();  // every save has read the old history
  if (threadIdx.x == 0) write(history, count);
}

dim3 blocks_of(std::size_t count) { return dim3(static_cast<unsigned>((count + kThreads - 1) / kThreads)); }

}  // namespace

void ple_row_ids(const PleShape& s, const PleWeightsView& w, const PleBuffers& b, const StepRows& r, const Stream& stream) {
  launch("ple_row_ids", ple_row_ids_kernel, {blocks_of(static_cast<std::size_t>(r.T) * s.NG), dim3(kThreads)}, stream, s, w, b.rows, r);
}

void ple_gather(const PleShape& s, const PleWeightsView& w, const PleBuffers& b, int T, const Stream& stream) {
  launch("ple_gather", ple_gather_kernel, {blocks_of(static_cast<std::size_t>(T) * s.NG * s.DE), dim3(kThreads)}, stream, s, w, b.rows,
         b.embedding, b.ld_embedding, T);
}

void ple_gate(const PleShape& s, const PleWeightsView& w, const PleBuffers& b, const bf16* streams, int T, const Stream& stream) {
  launch("ple_gate", ple_gate_kernel, {dim3(static_cast<unsigned>(T), static_cast<unsigned>(s.HC)), dim3(kThreads)}, stream, s, w, b,
         streams);
}

void ple_convolve(const PleShape& s, const PleWeightsView& w, const PleBuffers& b, const StepRows& r, const Stream& stream) {
  if (s.HC * s.D % 8 == 0 && s.window_offset % 16 == 0 && r.slot_bytes % 16 == 0)
    return launch("ple_convolve", ple_convolve_pieces_kernel,
                  {dim3(static_cast<unsigned>(r.T), static_cast<unsigned>(ceil_div(s.HC * s.D, 8 * kThreads))), dim3(kThreads)}, stream, s,
                  w.conv, b, r);
  launch("ple_convolve", ple_convolve_kernel,
         {dim3(static_cast<unsigned>(r.T), static_cast<unsigned>(ceil_div(s.HC * s.D, kThreads))), dim3(kThreads)}, stream, s, w.conv, b,
         r);
}

void ple_add(const PleShape& s, const bf16* out, bf16* streams, int T, const Stream& stream) {
  const std::size_t count = static_cast<std::size_t>(T) * s.HC * s.D;
  if (count % 8 == 0)
    return launch("ple_add", ple_add_pieces_kernel, {blocks_of(count / 8), dim3(kThreads)}, stream, count / 8, out, streams);
  launch("ple_add", ple_add_kernel, {blocks_of(count), dim3(kThreads)}, stream, count, out, streams);
}

void move_history(int ngram_size, std::size_t history_offset, const StepRows& r, const Stream& stream) {
  launch("move_history", move_history_kernel, {dim3(static_cast<unsigned>(r.B)), dim3(kThreads)}, stream, ngram_size - 1, history_offset,
         r);
}

}  // namespace tetrad::cuda
