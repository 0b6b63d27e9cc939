// gdn_step (contract in gdn.h): everything between the projections in one launch, for steps of few rows per sequence.
#include "base/error.h"
#include "cuda/kernels/gdn.h"
#include "cuda/kernels/gdn_state.cuh"
#include "cuda/runtime/launch.cuh"

namespace tetrad::cuda {
namespace {

constexpr int kThreads = 256, kMostKeys = 128, kMostColumns = 128, kMostWidth = 4, kHistory = kMostWidth - 1;
constexpr int kLaneColumns = 8, kWarpColumns = 2 * kLaneColumns;
constexpr int kMostChannels = 2 * kMostKeys + kMostColumns;
static_assert(kThreads / 32 * kWarpColumns == kMostColumns && kMostColumns <= kThreads);

// A block owns a value head of a sequence: S in registers, eight columns to a lane. State, window and weights are fetched before the wait:
// nothing in the step before this kernel writes this layer's state. The window's channels of a key head are read by all value heads that
// share it; the last to have read them moves them on. kK and kV: K and V where they are known, else 0.
template <int kPieces, int kK, int kV>
__global__ void __launch_bounds__(kThreads, 2)
    gdn_step_kernel(const GdnShape s, const GdnWeightsView w, const GdnBuffers buffers, const StepRows r) {
  constexpr int kRows = 4 * kPieces, kKeys = kPieceRows * kPieces;
  struct Memory {
    float query[kKeys], key[kKeys], v[kMostColumns], o[kMostColumns], gate[kMostColumns];
    float decay, beta;
    float taps[kMostWidth][kMostChannels], norm[kMostColumns];  // what a thread keeps for itself
    std::uint16_t past[kHistory][kMostChannels];                // bits of the last rows of its channels, newest last
  };
  __shared__ __align__(16) Memory shared;
  const int K = kK > 0 ? kK : s.K, V = kV > 0 ? kV : s.V;
  const int hv = blockIdx.x, b = blockIdx.y, ratio = s.HV / s.HK, hk = hv / ratio, lane = threadIdx.x % 32, g = lane / 2;
  const int first = uniform(r.first_row[b]), end = uniform(r.first_row[b + 1]);
  std::byte* slot = slot_memory(r, r.slot[b]);

  // --- State: two times four columns ---
  const int warp_column = threadIdx.x / 32 * kWarpColumns, column = warp_column + lane % 2 * 4;
  GdnState<kPieces, kLaneColumns> S;
  const auto each_four = [&](std::byte* of_slot, auto visit) {
    auto* memory = reinterpret_cast<float*>(of_slot + s.state_offset) + static_cast<std::size_t>(hv) * K * V + column;
    const int row0 = opaque(4 * g);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int row = row0 + i / 4 * kPieceRows + i % 4;
#pragma unroll
      for (int c = 0; c < kLaneColumns; c += 4) {
        const bool real = (kV > 0 || column + 2 * c < V) && (kK > 0 || row < K);
        visit(real, reinterpret_cast<float4*>(memory + row * V + 2 * c), S.S[i][c], S.S[i][c + 1], S.S[i][c + 2], S.S[i][c + 3]);
      }
    }
  };
  const auto store = [&](std::byte* to_slot) {
    each_four(to_slot, [](bool real, float4* to, float x0, float x1, float x2, float x3) {
      if (real) *to = {x0, x1, x2, x3};
    });
  };
  each_four(slot, [](bool real, const float4* from, float& x0, float& x1, float& x2, float& x3) {
    const float4 four = real ? *from : float4{};
    x0 = four.x, x1 = four.y, x2 = four.z, x3 = four.w;
  });

  // --- Channels: q, k of the key head, v of this head ---
  const int channels = 2 * K + V, history = s.W - 1;
  const auto each_channel = [&](auto visit) {
#pragma unroll
    for (int pass = 0; pass < (kMostChannels + kThreads - 1) / kThreads; ++pass) {
      const int i = pass * kThreads + threadIdx.x;
      if (i < channels) visit(i, i < K ? hk * K + i : i < 2 * K ? (s.HK + hk) * K + i - K : 2 * s.HK * K + hv * V + i - 2 * K);
    }
  };
  const auto window_row = [&](std::byte* of_slot, int j, int channel) {  // of past[j], where the window has it
    return reinterpret_cast<std::uint16_t*>(of_slot + s.conv_offset) + static_cast<std::size_t>(j - (kHistory - history)) * s.conv +
           channel;
  };
  const auto write_window = [&](std::byte* to_slot, bool keys) {
    each_channel([&](int i, int channel) {
#pragma unroll
      for (int j = 0; j < kHistory; ++j)
        if (j >= kHistory - history && (keys || i >= 2 * K)) *window_row(to_slot, j, channel) = shared.past[j][i];
    });
  };
  each_channel([&](int i, int channel) {
    float taps[kMostWidth];
    std::uint16_t past[kHistory];
#pragma unroll
    for (int j = 0; j < kMostWidth; ++j)
      if (j >= kHistory - history) taps[j] = w.conv[static_cast<std::size_t>(j - (kHistory - history)) * s.conv + channel];
#pragma unroll
    for (int j = 0; j < kHistory; ++j)
      if (j >= kHistory - history) past[j] = *window_row(slot, j, channel);
#pragma unroll
    for (int j = 0; j < kMostWidth; ++j)
      if (j >= kHistory - history) shared.taps[j][i] = taps[j];
#pragma unroll
    for (int j = 0; j < kHistory; ++j)
      if (j >= kHistory - history) shared.past[j][i] = past[j];
  });
  const int i = threadIdx.x;
  if (i < V) shared.norm[i] = w.norm[i];
  for (int pad = K + i; pad < kKeys; pad += kThreads) shared.query[pad] = 0.0f, shared.key[pad] = 0.0f;
  for (int pad = V + i; pad < kMostColumns; pad += kThreads) shared.v[pad] = 0.0f, shared.o[pad] = 0.0f;
  unsigned arrived = 0;  // of the heads that share the key head, those that have read its window before this one
  wait_for_previous();

  for (int t = first; t < end; ++t) {
    // --- Convolution and gates ---
    const bf16* row = buffers.projected + static_cast<std::size_t>(t) * s.row;
    if (i < V) shared.gate[i] = gate_f32(to_f32(row[s.z + hv * V + i]), s.sigmoid_gate);
    if (i == kThreads - 1) {
      shared.decay = gdn_decay(w.neg_exp_a[hv], to_f32(row[s.a + hv]), w.dt_bias[hv]);
      shared.beta = gdn_beta(to_f32(row[s.b + hv]));
    }
    each_channel([&](int c, int channel) {
      const std::uint16_t newest = row[channel].bits;
      float sum = 0.0f;
#pragma unroll
      for (int j = 0; j < kHistory; ++j)
        if (j >= kHistory - history)
          sum += (mutant(Mutant::kConvTapOrder) ? shared.taps[kHistory - (j - (kHistory - history))][c] : shared.taps[j][c]) *
                 to_f32(bf16{shared.past[j][c]});
      sum += (mutant(Mutant::kConvTapOrder) ? shared.taps[kHistory - history][c] : shared.taps[kHistory][c]) * to_f32(bf16{newest});
      *(c < K ? shared.query + c : c < 2 * K ? shared.key + c - K : shared.v + c - 2 * K) = round_b16(silu_f32(conv_sum(sum)));
#pragma unroll
      for (int j = 1; j < kHistory; ++j) shared.past[j - 1][c] = shared.past[j][c];
      shared.past[kHistory - 1][c] = newest;
    });
    __syncthreads();  // the row's q, k, v and gates are in shared memory, and the last row's o has been read
    if (t == first && i == 0) arrived = atomicInc(buffers.arrivals + b * s.HK + hk, ratio - 1u);

    // --- Unit vectors ---
    float query_squares = 0.0f, key_squares = 0.0f;
    if (4 * lane < kKeys) {
      query_squares = add_squares(0.0f, reinterpret_cast<const float4*>(shared.query)[lane]);
      key_squares = add_squares(0.0f, reinterpret_cast<const float4*>(shared.key)[lane]);
    }
    const float of_query = query_scale(query_squares, K), of_key = key_scale(key_squares);
    const auto take = [&](const float* vector, float scale, float(&x)[kRows]) {
#pragma unroll
      for (int j = 0; j < kPieces; ++j) {
        const float4 four = reinterpret_cast<const float4*>(vector)[j * kRowLanes + g];
        x[4 * j] = scale * four.x, x[4 * j + 1] = scale * four.y, x[4 * j + 2] = scale * four.z, x[4 * j + 3] = scale * four.w;
      }
    };

    // --- r = k^T S;  u = beta (v - decay r);  S <- decay S + k u;  o = q^T S ---
    const int value = value_of_lane<kLaneColumns>(lane), mine = column + value + value / 4 * 4;  // the second four lie eight further
    float k[kRows], q[kRows], sum[kLaneColumns], u[kLaneColumns];
    take(shared.key, of_key, k);
    S.recall(k, sum);
    spread_row_lanes(gdn_correction(shared.beta, shared.v[mine], shared.decay, sum_row_lanes(sum, lane)), u, lane);
    take(shared.query, of_query, q);
    S.update(k, shared.decay, u);
    S.recall(q, sum);
    const float o = sum_row_lanes(sum, lane);
    if (mine < V && g < kLaneColumns) shared.o[mine] = round_b16(o);
    __syncthreads();  // the row's o is in shared memory, and its q, k, v have been read

    // --- Gated norm ---
    const float inverse = inverse_rms(add_squares(0.0f, reinterpret_cast<const float4*>(shared.o)[lane]), V, s.eps);
    if (i < V)
      buffers.core[(static_cast<std::size_t>(t) * s.HV + hv) * V + i] = gated_output(shared.o[i], inverse, shared.norm[i], shared.gate[i]);

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
  const auto start = [&](auto kernel) {
    launch("gdn_step", kernel, {dim3(static_cast<unsigned>(s.HV), static_cast<unsigned>(r.B)), dim3(kThreads)}, stream, s, w, b, r);
  };
  if (s.K == 128 && s.V == 128) return start(gdn_step_kernel<2, 128, 128>);
  if (s.K <= kPieceRows) return start(gdn_step_kernel<1, 0, 0>);
  start(gdn_step_kernel<2, 0, 0>);
}

}  // namespace tetrad::cuda
