#include "cuda/kernels/gdn.h"

#include "base/error.h"
#include "cuda/kernels/device_math.cuh"
#include "cuda/runtime/launch.cuh"

namespace tetrad::cuda {
namespace {

constexpr int kThreads = 256;
constexpr float kL2Eps = 1e-6f;
constexpr int kColumns = 128, kTokenBatch = 8;  // of the recurrence
constexpr int kChains = 4;                      // sums side by side, so that one does not wait on itself; a piece of shared memory

__global__ void gdn_conv_kernel(const GdnShape s, const float* taps, const bf16* projected, bf16* out, const StepRows r) {
  wait_for_previous();
  const int ch = blockIdx.y * kThreads + threadIdx.x;
  if (ch >= s.conv) return;
  const int t = blockIdx.x, b = sequence_of(r, t), history = s.W - 1;
  const int in_sequence = t - r.first_row[b];
  const auto* window = reinterpret_cast<const bf16*>(slot_memory(r, r.slot[b]) + s.conv_offset);
  float sum = 0.0f;
  for (int j = 0; j < s.W; ++j) {
    const int back = history - j;
    const bf16 p = in_sequence >= back ? projected[static_cast<std::size_t>(t - back) * s.row + ch]
                                       : window[static_cast<std::size_t>(in_sequence - back + history) * s.conv + ch];
    sum += taps[static_cast<std::size_t>(j) * s.conv + ch] * to_f32(p);
  }
  out[static_cast<std::size_t>(t) * s.conv + ch] = to_b16(silu_f32(round_b16(sum)));
}

// A thread owns one channel of one sequence, so what it overwrites nobody else reads. Saves first: they read the old window.
__global__ void move_window_kernel(const MoveWindowArgs a, const StepRows r) {
  wait_for_previous();
  const int ch = blockIdx.y * kThreads + threadIdx.x, b = blockIdx.x;
  if (ch >= a.width) return;
  const int first = r.first_row[b], count = r.first_row[b + 1] - first;
  auto* window = reinterpret_cast<bf16*>(slot_memory(r, r.slot[b]) + a.offset);
  const auto write = [&](bf16* to, int rows) {  // ascending, so an element is read before it is overwritten
    for (int h = 0; h < a.history; ++h) {
      const int source = rows - a.history + h;
      to[static_cast<std::size_t>(h) * a.width + ch] = source >= 0 ? a.rows[static_cast<std::size_t>(first + source) * a.ld + ch]
                                                                   : window[static_cast<std::size_t>(h + rows) * a.width + ch];
    }
  };
  for (int t = 0; t < count; ++t)
    if (r.save_slot[first + t] >= 0) write(reinterpret_cast<bf16*>(slot_memory(r, r.save_slot[first + t]) + a.offset), t + 1);
  write(window, count);
}

// A warp per head of q and k for its norm, then the value heads' gates, one lane each.
__global__ void gdn_gates_kernel(const GdnShape s, const GdnWeightsView w, const GdnBuffers buffers) {
  wait_for_previous();
  const std::size_t t = blockIdx.x;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (int head = warp; head < 2 * s.HK; head += kThreads / 32) {
    const bf16* x = buffers.conv + t * s.conv + static_cast<std::size_t>(head) * s.K;
    float sum = 0.0f;
    for (int i = lane; i < s.K; i += 32) sum += to_f32(x[i]) * to_f32(x[i]);
    sum = warp_sum(sum);
    if (lane == 0) buffers.inverse_norms[t * 2 * s.HK + head] = 1.0f / sqrtf(sum + kL2Eps);
  }
  const bf16* row = buffers.projected + t * s.row;
  for (int hv = threadIdx.x; hv < s.HV; hv += kThreads) {
    buffers.beta[t * s.HV + hv] = round_b16(sigmoid_f32(to_f32(row[s.b + hv])));
    buffers.decay[t * s.HV + hv] = expf(w.neg_exp_a[hv] * softplus_f32(to_f32(row[s.a + hv]) + w.dt_bias[hv]));
  }
}

// A thread owns one column of S in registers, four rows to a piece, and needs no other: keys and queries of kTokenBatch tokens at a time
// come through shared memory.
template <int kKeys>
__global__ void __launch_bounds__(kColumns, 1) gdn_recurrence_kernel(const GdnShape s, const GdnBuffers buffers, const StepRows r) {
  wait_for_previous();
  constexpr int kPieces = kKeys / kChains;
  struct Token {
    float4 key[kPieces], query[kPieces];
    float decay, beta;
  };
  __shared__ Token tokens[kTokenBatch];
  const int column_blocks = (s.V + kColumns - 1) / kColumns;
  const int hv = blockIdx.x / column_blocks, b = blockIdx.y, column = blockIdx.x % column_blocks * kColumns + static_cast<int>(threadIdx.x);
  const int hk = hv / (s.HV / s.HK);
  const bool real = column < s.V;
  const float query_scale = 1.0f / sqrtf(static_cast<float>(s.K));
  const int first = r.first_row[b], end = r.first_row[b + 1];
  const std::size_t head = static_cast<std::size_t>(hv) * s.K * s.V + column;
  auto* state = reinterpret_cast<float*>(slot_memory(r, r.slot[b]) + s.state_offset) + head;

  float4 S[kPieces];
  // Sizes behind an asm: else the compiler keeps an address and a comparison for every row of S all through the loop.
  const auto opaque = [](int size) {
    asm volatile("" : "+r"(size));
    return size;
  };
  {
    const int V = opaque(s.V), rows = real ? opaque(s.K) : 0;
    const auto element = [&](int i) { return i < rows ? state[static_cast<std::size_t>(i) * V] : 0.0f; };
#pragma unroll
    for (int i = 0; i < kPieces; ++i) S[i] = {element(4 * i), element(4 * i + 1), element(4 * i + 2), element(4 * i + 3)};
  }
  const auto store = [&](float* to) {
    const int V = opaque(s.V), rows = real ? opaque(s.K) : 0;
    const auto put = [&](int i, float x) {
      if (i < rows) to[static_cast<std::size_t>(i) * V] = x;
    };
#pragma unroll
    for (int i = 0; i < kPieces; ++i) put(4 * i, S[i].x), put(4 * i + 1, S[i].y), put(4 * i + 2, S[i].z), put(4 * i + 3, S[i].w);
  };
  for (int t0 = first; t0 < end; t0 += kTokenBatch) {
    const int count = min(kTokenBatch, end - t0);
    __syncthreads();  // the last batch has been read
    for (int e = threadIdx.x; e < count * kKeys; e += kColumns) {
      const int i = e % kKeys, t = t0 + e / kKeys;
      const bf16* row = buffers.conv + static_cast<std::size_t>(t) * s.conv;
      const float* inverse = buffers.inverse_norms + static_cast<std::size_t>(t) * 2 * s.HK;
      Token& token = tokens[e / kKeys];
      reinterpret_cast<float*>(token.query)[i] = i < s.K ? query_scale * (inverse[hk] * to_f32(row[hk * s.K + i])) : 0.0f;
      reinterpret_cast<float*>(token.key)[i] = i < s.K ? inverse[s.HK + hk] * to_f32(row[(s.HK + hk) * s.K + i]) : 0.0f;
      if (i == 0) {
        token.decay = buffers.decay[static_cast<std::size_t>(t) * s.HV + hv];
        token.beta = buffers.beta[static_cast<std::size_t>(t) * s.HV + hv];
      }
    }
    __syncthreads();  // the batch's keys, queries and gates are in shared memory
    for (int j = 0; j < count; ++j) {
      const Token& token = tokens[j];
      const int t = t0 + j;
      const float v = real ? to_f32(buffers.conv[static_cast<std::size_t>(t) * s.conv + 2 * s.HK * s.K + hv * s.V + column]) : 0.0f;
      float4 sum = {};
#pragma unroll
      for (int i = 0; i < kPieces; ++i) {
        const float4 k = token.key[i];
        sum = {fmaf(k.x, S[i].x, sum.x), fmaf(k.y, S[i].y, sum.y), fmaf(k.z, S[i].z, sum.z), fmaf(k.w, S[i].w, sum.w)};
      }
      const float decay = token.decay, u = token.beta * (v - decay * ((sum.x + sum.y) + (sum.z + sum.w)));
      float4 out = {};
#pragma unroll
      for (int i = 0; i < kPieces; ++i) {
        const float4 k = token.key[i], q = token.query[i];
        S[i] = {fmaf(k.x, u, decay * S[i].x), fmaf(k.y, u, decay * S[i].y), fmaf(k.z, u, decay * S[i].z), fmaf(k.w, u, decay * S[i].w)};
        out = {fmaf(q.x, S[i].x, out.x), fmaf(q.y, S[i].y, out.y), fmaf(q.z, S[i].z, out.z), fmaf(q.w, S[i].w, out.w)};
      }
      if (real) buffers.core[(static_cast<std::size_t>(t) * s.HV + hv) * s.V + column] = to_b16((out.x + out.y) + (out.z + out.w));
      if (r.save_slot[t] >= 0) store(reinterpret_cast<float*>(slot_memory(r, r.save_slot[t]) + s.state_offset) + head);
    }
  }
  store(state);
}

__global__ void gdn_gated_norm_kernel(const GdnShape s, const float* weight, const bf16* projected, bf16* core, int T) {
  wait_for_previous();
  const int warp = blockIdx.x * (kThreads / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (warp >= T * s.HV) return;
  const int t = warp / s.HV, hv = warp % s.HV;
  const bf16* z = projected + static_cast<std::size_t>(t) * s.row + s.z + hv * s.V;
  bf16* o = core + static_cast<std::size_t>(warp) * s.V;
  float sum = 0.0f;
  for (int i = lane; i < s.V; i += 32) sum += to_f32(o[i]) * to_f32(o[i]);
  const float inverse = 1.0f / sqrtf(warp_sum(sum) / static_cast<float>(s.V) + s.eps);
  for (int i = lane; i < s.V; i += 32) {
    const float gate = s.sigmoid_gate ? sigmoid_f32(to_f32(z[i])) : silu_f32(to_f32(z[i]));
    o[i] = to_b16(round_b16(weight[i] * round_b16(to_f32(o[i]) * inverse)) * gate);
  }
}

template <int kKeys>
void launch_recurrence(const GdnShape& s, const GdnBuffers& b, const StepRows& r, const Stream& stream) {
  const int blocks = s.HV * ceil_div(s.V, kColumns);
  launch("gdn_recurrence", gdn_recurrence_kernel<kKeys>, {dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(r.B)), dim3(kColumns)},
         stream, s, b, r);
}

}  // namespace

void gdn_conv(const GdnShape& s, const GdnWeightsView& w, const GdnBuffers& b, const StepRows& r, const Stream& stream) {
  launch("gdn_conv", gdn_conv_kernel, {dim3(static_cast<unsigned>(r.T), static_cast<unsigned>(ceil_div(s.conv, kThreads))), dim3(kThreads)},
         stream, s, w.conv, b.projected, b.conv, r);
}

void gdn_move_window(const GdnShape& s, const GdnBuffers& b, const StepRows& r, const Stream& stream) {
  move_window({.width = s.conv, .history = s.W - 1, .rows = b.projected, .ld = s.row, .offset = s.conv_offset}, r, stream);
}

void move_window(const MoveWindowArgs& a, const StepRows& r, const Stream& stream) {
  launch("move_window", move_window_kernel,
         {dim3(static_cast<unsigned>(r.B), static_cast<unsigned>(ceil_div(a.width, kThreads))), dim3(kThreads)}, stream, a, r);
}

void gdn_gates(const GdnShape& s, const GdnWeightsView& w, const GdnBuffers& b, int T, const Stream& stream) {
  launch("gdn_gates", gdn_gates_kernel, {dim3(static_cast<unsigned>(T)), dim3(kThreads)}, stream, s, w, b);
}

void gdn_recurrence(const GdnShape& s, const GdnBuffers& b, const StepRows& r, const Stream& stream) {
  TETRAD_CHECK(s.K <= kGdnMaxKey, "gdn: keys of {} elements, at most {}", s.K, kGdnMaxKey);
  if (s.K <= 32) return launch_recurrence<32>(s, b, r, stream);
  if (s.K <= 128) return launch_recurrence<128>(s, b, r, stream);
  launch_recurrence<kGdnMaxKey>(s, b, r, stream);
}

void gdn_gated_norm(const GdnShape& s, const GdnWeightsView& w, const GdnBuffers& b, int T, const Stream& stream) {
  launch("gdn_gated_norm", gdn_gated_norm_kernel, {dim3(static_cast<unsigned>(ceil_div(T * s.HV, kThreads / 32))), dim3(kThreads)}, stream,
         s, w.norm, b.projected, b.core, T);
}

}  // namespace tetrad::cuda
