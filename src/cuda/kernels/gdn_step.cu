// gdn_step (contract in gdn.h): everything between the projections in one launch, for steps of few rows per sequence.
#include "base/error.h"
#include "cuda/kernels/gdn.h"
#include "cuda/kernels/gdn_state.cuh"
#include "cuda/runtime/launch.cuh"

namespace tetrad::cuda {
namespace {

constexpr int kThreads = 512, kMostKeys = 128, kMostColumns = 128, kMostWidth = 4;
static_assert(2 * kMostKeys + kMostColumns <= kThreads);  // a thread per channel

// A block owns a value head of a sequence: S in registers, four columns to a lane, a channel of q, k or v to a thread. State and weights
// are fetched before the wait: nothing in the step before this kernel writes this layer's state. The window's channels of a key head are
// read by all value heads that share it; the last to have read them moves them on.
template <int kPieces>
__global__ void __launch_bounds__(kThreads, 2)
    gdn_step_kernel(const GdnShape s, const GdnWeightsView w, const GdnBuffers buffers, const StepRows r) {
  constexpr int kRows = 4 * kPieces, kKeys = kPieceRows * kPieces, kHistory = kMostWidth - 1;
  struct Row {
    float query[kKeys], key[kKeys], v[kMostColumns], o[kMostColumns], z[kMostColumns];
    float decay, beta;
    float taps[kMostWidth][kThreads], norm[kMostColumns];  // what a thread keeps for itself
    std::uint16_t past[kHistory][kThreads];                // the last rows of its channel, newest last
  };
  __shared__ __align__(16) Row shared;
  const int hv = blockIdx.x, b = blockIdx.y, ratio = s.HV / s.HK, hk = hv / ratio, lane = threadIdx.x % 32, g = lane / 2;
  const int first = r.first_row[b], end = r.first_row[b + 1];
  std::byte* slot = slot_memory(r, r.slot[b]);

  // --- State ---
  const int column = (threadIdx.x / 32 * 2 + lane % 2) * 4;
  const bool real = column < s.V;
  const std::size_t place = static_cast<std::size_t>(hv) * s.K * s.V + column;
  GdnState<kPieces, 4> S;
  const auto each_row = [&](auto visit) {
    const int V = opaque(s.V), rows = real ? opaque(s.K) : 0, row0 = opaque(4 * g);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int row = row0 + i / 4 * kPieceRows + i % 4;
      visit(row < rows, row * V, S.S[i]);
    }
  };
  const auto store = [&](std::byte* to_slot) {
    float* to = reinterpret_cast<float*>(to_slot + s.state_offset) + place;
    each_row([&](bool valid, int at, const float(&x)[4]) {
      if (valid) *reinterpret_cast<float4*>(to + at) = {x[0], x[1], x[2], x[3]};
    });
  };
  const float* state = reinterpret_cast<const float*>(slot + s.state_offset) + place;
  each_row([&](bool valid, int at, float(&x)[4]) {
    const float4 four = valid ? *reinterpret_cast<const float4*>(state + at) : float4{};
    x[0] = four.x, x[1] = four.y, x[2] = four.z, x[3] = four.w;
  });

  // --- The thread's channel: q, k of the key head, v of this head ---
  const int i = threadIdx.x, history = s.W - 1;
  const bool has_channel = i < 2 * s.K + s.V, is_key = i < 2 * s.K;
  const int channel = i < s.K ? hk * s.K + i : is_key ? (s.HK + hk) * s.K + i - s.K : 2 * s.HK * s.K + hv * s.V + i - 2 * s.K;
  float* conv_out = i < s.K ? shared.query + i : is_key ? shared.key + i - s.K : shared.v + i - 2 * s.K;
#pragma unroll
  for (int j = 0; j < kMostWidth; ++j)
    if (has_channel && j >= kMostWidth - s.W)
      shared.taps[j][i] = w.conv[static_cast<std::size_t>(j - (kMostWidth - s.W)) * s.conv + channel];
  const auto window_row = [&](std::byte* of_slot, int j) {  // of past[j], where the window has it
    return reinterpret_cast<std::uint16_t*>(of_slot + s.conv_offset) + static_cast<std::size_t>(j - (kHistory - history)) * s.conv +
           channel;
  };
#pragma unroll
  for (int j = 0; j < kHistory; ++j)
    if (has_channel && j >= kHistory - history) shared.past[j][i] = *window_row(slot, j);
  const auto write_window = [&](std::byte* to_slot, bool keys) {
    if (!has_channel || (is_key && !keys)) return;
#pragma unroll
    for (int j = 0; j < kHistory; ++j)
      if (j >= kHistory - history) *window_row(to_slot, j) = shared.past[j][i];
  };
  if (i < s.V) shared.norm[i] = w.norm[i];
  for (int pad = s.K + i; pad < kKeys; pad += kThreads) shared.query[pad] = 0.0f, shared.key[pad] = 0.0f;
  for (int pad = s.V + i; pad < kMostColumns; pad += kThreads) shared.v[pad] = 0.0f, shared.o[pad] = 0.0f;
  unsigned arrived = 0;  // of the heads that share the key head, those that have read its window before this one
  wait_for_previous();

  for (int t = first; t < end; ++t) {
    // --- Convolution and gates ---
    const bf16* row = buffers.projected + static_cast<std::size_t>(t) * s.row;
    if (i < s.V) shared.z[i] = to_f32(row[s.z + hv * s.V + i]);
    if (has_channel) {
      const std::uint16_t newest = row[channel].bits;
      float sum = 0.0f;
#pragma unroll
      for (int j = 0; j < kHistory; ++j)
        if (j >= kHistory - history) sum += shared.taps[j][i] * to_f32(bf16{shared.past[j][i]});
      sum += shared.taps[kHistory][i] * to_f32(bf16{newest});
      *conv_out = round_b16(silu_f32(round_b16(sum)));
#pragma unroll
      for (int j = 1; j < kHistory; ++j) shared.past[j - 1][i] = shared.past[j][i];
      shared.past[kHistory - 1][i] = newest;
    } else if (i == kThreads - 1) {
      shared.decay = gdn_decay(w.neg_exp_a[hv], to_f32(row[s.a + hv]), w.dt_bias[hv]);
      shared.beta = gdn_beta(to_f32(row[s.b + hv]));
    }
    __syncthreads();  // the row's q, k, v and gates are in shared memory, and the last row's o has been read

    // --- Unit vectors ---
    if (t == first && i == 0) arrived = atomicInc(buffers.arrivals + b * s.HK + hk, ratio - 1u);
    float query_squares = 0.0f, key_squares = 0.0f;
    if (4 * lane < kKeys) {
      query_squares = add_squares(0.0f, reinterpret_cast<const float4*>(shared.query)[lane]);
      key_squares = add_squares(0.0f, reinterpret_cast<const float4*>(shared.key)[lane]);
    }
    const float of_query = query_scale(query_squares, s.K), of_key = key_scale(key_squares);
    float k[kRows], q[kRows];
#pragma unroll
    for (int j = 0; j < kRows; ++j) {
      const int at = j / 4 * kPieceRows + 4 * g + j % 4;
      k[j] = of_key * shared.key[at];
      q[j] = of_query * shared.query[at];
    }

    // --- r = k^T S;  u = beta (v - decay r);  S <- decay S + k u;  o = q^T S ---
    float sum[4], u[4];
    const int mine = column + value_of_lane<4>(lane);
    S.recall(k, sum);
    const float recalled = sum_row_lanes<4>(sum, lane);
    spread_row_lanes<4>(gdn_correction(shared.beta, real ? shared.v[mine] : 0.0f, shared.decay, recalled), u, lane);
    S.update(k, q, shared.decay, u, sum);
    const float o = sum_row_lanes<4>(sum, lane);
    if (real && g < 4) shared.o[mine] = round_b16(o);
    __syncthreads();  // the row's o is in shared memory, and its q, k, v have been read

    // --- Gated norm ---
    const float inverse = inverse_rms(add_squares(0.0f, reinterpret_cast<const float4*>(shared.o)[lane]), s.V, s.eps);
    if (i < s.V)
      buffers.core[(static_cast<std::size_t>(t) * s.HV + hv) * s.V + i] =
          gated_output(shared.o[i], inverse, shared.norm[i], shared.z[i], s.sigmoid_gate);

    if (r.save_slot[t] >= 0) {
      std::byte* saved = slot_memory(r, r.save_slot[t]);
      store(saved);
      write_window(saved, hv % ratio == 0);
    }
  }
  store(slot);
  write_window(slot, __syncthreads_or(i == 0 && arrived == ratio - 1u) != 0);
}

}  // namespace

bool takes_gdn_step(const GdnShape& s, const StepRows& r) {
  return s.K <= kMostKeys && s.V <= kMostColumns && s.V % 4 == 0 && s.W <= kMostWidth && r.T <= kGdnStepRows * r.B;
}

void gdn_step(const GdnShape& s, const GdnWeightsView& w, const GdnBuffers& b, const StepRows& r, const Stream& stream) {
  TETRAD_CHECK(takes_gdn_step(s, r), "gdn_step: K {}, V {}, W {}, {} rows of {} sequences", s.K, s.V, s.W, r.T, r.B);
  const LaunchShape shape{dim3(static_cast<unsigned>(s.HV), static_cast<unsigned>(r.B)), dim3(kThreads)};
  if (s.K <= kPieceRows) return launch("gdn_step", gdn_step_kernel<1>, shape, stream, s, w, b, r);
  launch("gdn_step", gdn_step_kernel<2>, shape, stream, s, w, b, r);
}

}  // namespace tetrad::cuda
