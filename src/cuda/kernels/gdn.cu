#include "cuda/kernels/gdn.h"

#include "base/error.h"
#include "cuda/kernels/device_math.cuh"
#include "cuda/kernels/gdn_state.cuh"
#include "cuda/kernels/pieces.cuh"
#include "cuda/runtime/launch.cuh"

namespace tetrad::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kConvWidth = 4, kConvRows = 16, kConvAhead = 4;  // of the vector path: rows of a block, rows on their way
constexpr int kScanned = 8;                                    // save slots a thread looks at, at a time
constexpr int kNormHeads = 4;                                  // of a warp

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
    sum += taps[static_cast<std::size_t>(tap_of(j, s.W)) * s.conv + ch] * to_f32(p);
  }
  out[static_cast<std::size_t>(t) * s.conv + ch] = to_b16(silu_f32(conv_sum(sum)));
}

// The same for a window of kConvWidth - 1 rows and channels in pieces of eight: a thread walks kConvRows rows with the window in registers.
__global__ void __launch_bounds__(kThreads)
    gdn_conv_pieces_kernel(const GdnShape s, const float* weights, const bf16* projected, bf16* out, const StepRows r) {
  wait_for_previous();
  constexpr int kHistory = kConvWidth - 1;
  const int ch = (blockIdx.y * kThreads + threadIdx.x) * 8, begin = blockIdx.x * kConvRows, end = min(begin + kConvRows, r.T);
  if (ch >= s.conv) return;
  float taps[kConvWidth][8];
#pragma unroll
  for (int j = 0; j < kConvWidth; ++j) {
    const auto* from = reinterpret_cast<const float4*>(weights + static_cast<std::size_t>(tap_of(j, kConvWidth)) * s.conv + ch);
    const float4 low = from[0], high = from[1];
    taps[j][0] = low.x, taps[j][1] = low.y, taps[j][2] = low.z, taps[j][3] = low.w;
    taps[j][4] = high.x, taps[j][5] = high.y, taps[j][6] = high.z, taps[j][7] = high.w;
  }
  const auto row = [&](int t) { return *reinterpret_cast<const uint4*>(projected + static_cast<std::size_t>(t) * s.row + ch); };
  uint4 past[kHistory] = {};
  int sequence_end = begin;
  for (int t0 = begin; t0 < end; t0 += kConvAhead) {
    uint4 ahead[kConvAhead];
#pragma unroll
    for (int i = 0; i < kConvAhead; ++i)
      if (t0 + i < end) ahead[i] = row(t0 + i);
#pragma unroll
    for (int i = 0; i < kConvAhead; ++i) {
      const int t = t0 + i;
      if (t >= end) break;
      if (t == sequence_end) {  // the first row here of a sequence
        const int b = sequence_of(r, t), first = r.first_row[b];
        const auto* window = reinterpret_cast<const bf16*>(slot_memory(r, r.slot[b]) + s.conv_offset);
        sequence_end = r.first_row[b + 1];
#pragma unroll
        for (int h = 0; h < kHistory; ++h) {
          const int source = t - first - kHistory + h;
          past[h] = source >= 0 ? row(first + source)
                                : *reinterpret_cast<const uint4*>(window + static_cast<std::size_t>(source + kHistory) * s.conv + ch);
        }
      }
      Eight sum = {};
#pragma unroll
      for (int h = 0; h < kConvWidth; ++h) {
        const Eight x = expand(h < kHistory ? past[h] : ahead[i]);
#pragma unroll
        for (int e = 0; e < 8; ++e) sum.x[e] += taps[h][e] * x.x[e];
      }
#pragma unroll
      for (int e = 0; e < 8; ++e) sum.x[e] = conv_sum(sum.x[e]);
      silu_all(sum.x);
      *reinterpret_cast<uint4*>(out + static_cast<std::size_t>(t) * s.conv + ch) = round_eight(sum);
#pragma unroll
      for (int h = 1; h < kHistory; ++h) past[h - 1] = past[h];
      past[kHistory - 1] = ahead[i];
    }
  }
}

// A thread owns one channel of one sequence, so what it overwrites nobody else reads. Saves first: they read the old window. Few rows save,
// so a block looks for them with all its threads.
__global__ void __launch_bounds__(kThreads) move_window_kernel(const MoveWindowArgs a, const StepRows r) {
  wait_for_previous();
  const int ch = blockIdx.y * kThreads + threadIdx.x, b = blockIdx.x;
  const int first = r.first_row[b], count = r.first_row[b + 1] - first;
  auto* window = reinterpret_cast<bf16*>(slot_memory(r, r.slot[b]) + a.offset);
  const auto write = [&](bf16* to, int rows) {  // ascending, so an element is read before it is overwritten
    if (ch >= a.width) return;
    for (int h = 0; h < a.history; ++h) {
      const int source = rows - a.history + h - (mutant(Mutant::kWindowTooFar) && rows > a.history ? 1 : 0);
      to[static_cast<std::size_t>(h) * a.width + ch] = source >= 0 ? a.rows[static_cast<std::size_t>(first + source) * a.ld + ch]
                                                                   : window[static_cast<std::size_t>(h + rows) * a.width + ch];
    }
  };
  for (int t0 = 0; t0 < count; t0 += kThreads * kScanned) {
    int saves = 0;
#pragma unroll
    for (int i = 0; i < kScanned; ++i) {
      const int t = t0 + i * kThreads + threadIdx.x;
      if (t < count && r.save_slot[first + t] >= 0) saves = 1;
    }
    if (__syncthreads_or(saves) == 0) continue;
    for (int t = t0; t < min(count, t0 + kThreads * kScanned); ++t)
      if (r.save_slot[first + t] >= 0) write(reinterpret_cast<bf16*>(slot_memory(r, r.save_slot[first + t]) + a.offset), t + 1);
  }
  write(window, count);
}

// A warp per head of q and k for its norm, then the value heads' gates, one lane each.
__global__ void __launch_bounds__(kThreads) gdn_gates_kernel(const GdnShape s, const GdnWeightsView w, const GdnBuffers buffers) {
  wait_for_previous();
  const std::size_t t = blockIdx.x;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll 4
  for (int head = warp; head < 2 * s.HK; head += kThreads / 32) {
    const bf16* x = buffers.conv + t * s.conv + static_cast<std::size_t>(head) * s.K;
    float sum = 0.0f;
    for (int i = 4 * lane; i < s.K; i += 128) sum = add_squares(sum, load_four(x, i, s.K));
    const float scale = head < s.HK ? query_scale(sum, s.K) : key_scale(sum);
    if (lane == 0) buffers.unit_scales[t * 2 * s.HK + head] = scale;
  }
  const bf16* row = buffers.projected + t * s.row;
  for (int hv = threadIdx.x; hv < s.HV; hv += kThreads) {
    buffers.beta[t * s.HV + hv] = gdn_beta(to_f32(row[s.b + hv]));
    buffers.decay[t * s.HV + hv] = gdn_decay(w.neg_exp_a[hv], to_f32(row[s.a + hv]), w.dt_bias[hv]);
  }
}

// A warp per kNormHeads heads of o; the first 128 elements of each are kept in registers between the two passes.
__global__ void __launch_bounds__(kThreads)
    gdn_gated_norm_kernel(const GdnShape s, const float* weight, const bf16* projected, bf16* core, int T) {
  wait_for_previous();
  const int lane = threadIdx.x % 32, first = (blockIdx.x * (kThreads / 32) + threadIdx.x / 32) * kNormHeads;
  const auto z_of = [&](int unit) { return projected + static_cast<std::size_t>(unit / s.HV) * s.row + s.z + unit % s.HV * s.V; };
  const auto weights = [&](int e) {
    const auto element = [&](int j) { return e + j < s.V ? weight[e + j] : 0.0f; };
    return float4{element(0), element(1), element(2), element(3)};
  };
  float4 o[kNormHeads];
  float gate[4 * kNormHeads];
#pragma unroll
  for (int i = 0; i < kNormHeads; ++i) {
    const int unit = min(first + i, T * s.HV - 1);
    o[i] = load_four(core + static_cast<std::size_t>(unit) * s.V, 4 * lane, s.V);
    const float4 z = load_four(z_of(unit), 4 * lane, s.V);
    gate[4 * i] = z.x, gate[4 * i + 1] = z.y, gate[4 * i + 2] = z.z, gate[4 * i + 3] = z.w;
  }
  const float4 first_weights = weights(4 * lane);
  if (takes_sigmoid(s.sigmoid_gate))
    sigmoid_all(gate);
  else
    silu_all(gate);
#pragma unroll
  for (int i = 0; i < kNormHeads; ++i) {
    if (first + i >= T * s.HV) break;
    bf16* row = core + static_cast<std::size_t>(first + i) * s.V;
    float sum = add_squares(0.0f, o[i]);
    for (int e = 4 * lane + 128; e < s.V; e += 128) sum = add_squares(sum, load_four(row, e, s.V));
    const float inverse = inverse_rms(sum, s.V, s.eps);
    const auto write = [&](int e, const float4& x, const float4& w, const float* g) {
      const bf16 y[4] = {gated_output(x.x, inverse, w.x, g[0]), gated_output(x.y, inverse, w.y, g[1]),
                         gated_output(x.z, inverse, w.z, g[2]), gated_output(x.w, inverse, w.w, g[3])};
      store_four(row, e, s.V, y);
    };
    write(4 * lane, o[i], first_weights, gate + 4 * i);
    for (int e = 4 * lane + 128; e < s.V; e += 128) {
      const float4 z = load_four(z_of(first + i), e, s.V);
      const float g[4] = {gate_f32(z.x, s.sigmoid_gate), gate_f32(z.y, s.sigmoid_gate), gate_f32(z.z, s.sigmoid_gate),
                          gate_f32(z.w, s.sigmoid_gate)};
      write(e, load_four(row, e, s.V), weights(e), g);
    }
  }
}

}  // namespace

void gdn_conv(const GdnShape& s, const GdnWeightsView& w, const GdnBuffers& b, const StepRows& r, const Stream& stream) {
  const auto grid = [&](int rows, int channels) {
    return dim3(static_cast<unsigned>(ceil_div(r.T, rows)), static_cast<unsigned>(ceil_div(s.conv, channels * kThreads)));
  };
  if (s.W == kConvWidth && s.conv % 8 == 0 && s.row % 8 == 0 && s.conv_offset % 16 == 0 && r.slot_bytes % 16 == 0)
    return launch("gdn_conv", gdn_conv_pieces_kernel, {grid(kConvRows, 8), dim3(kThreads)}, stream, s, w.conv, b.projected, b.conv, r);
  launch("gdn_conv", gdn_conv_kernel, {grid(1, 1), dim3(kThreads)}, stream, s, w.conv, b.projected, b.conv, r);
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

void gdn_gated_norm(const GdnShape& s, const GdnWeightsView& w, const GdnBuffers& b, int T, const Stream& stream) {
  launch("gdn_gated_norm", gdn_gated_norm_kernel,
         {dim3(static_cast<unsigned>(ceil_div(T * s.HV, kThreads / 32 * kNormHeads))), dim3(kThreads)}, stream, s, w.norm, b.projected,
         b.core, T);
}

}  // namespace tetrad::cuda
