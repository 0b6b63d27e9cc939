// gdn_recurrence (contract in gdn.h): the rows of a step one after another, S in registers all the while.
#include <type_traits>

#include "base/error.h"
#include "cuda/kernels/gdn.h"
#include "cuda/kernels/gdn_state.cuh"
#include "cuda/kernels/pieces.cuh"
#include "cuda/kernels/tensor_step.cuh"
#include "cuda/runtime/launch.cuh"

namespace tetrad::cuda {
namespace {

// Three value heads of 128 columns to a key head are eight blocks of 48 columns: 128 blocks for the 16 key heads of the published geometry,
// one on each multiprocessor of an H200, with three warps for each of its four schedulers.
constexpr int kWarps = 12, kThreads = 32 * kWarps, kWarpColumns = 4;

// Warps of a key head: each owns kWarpColumns columns of one of its value heads, a lane two of them.
__host__ __device__ int warps_of_head(const GdnShape& s) { return (s.V + kWarpColumns - 1) / kWarpColumns; }
__host__ __device__ int blocks_of_key_head(const GdnShape& s) { return (s.HV / s.HK * warps_of_head(s) + kWarps - 1) / kWarps; }

// The value heads of a key head.
__device__ __forceinline__ int value_head(const GdnShape& s, int hk, int which) {
  return mutant(Mutant::kGdnHeadOrder) ? which * s.HK + hk : hk * (s.HV / s.HK) + which;
}

// Bits of four elements of a row that is not aligned, zero past `width`.
__device__ __forceinline__ uint2 four_elements(const bf16* row, int width) {
  const auto element = [&](int i) { return i < width ? static_cast<unsigned>(row[i].bits) : 0u; };
  return {element(0) | element(1) << 16, element(2) | element(3) << 16};
}

// Tokens come in batches: while one is worked on, the next is on its way into registers and then into the other half of shared memory. o is
// summed over the lanes for kSummed tokens at a time.
template <int kPieces, int kBatch>
__global__ void __launch_bounds__(kThreads, 1) gdn_recurrence_kernel(const GdnShape s, const GdnBuffers buffers, const StepRows r) {
  wait_for_previous();
  constexpr int kKeys = kPieceRows * kPieces, kRows = 4 * kPieces, kSummed = kBatch < 8 ? kBatch : 8;
  constexpr int kParts = kKeys / 8, kBatchParts = 2 * kParts * kBatch, kLoads = (kBatchParts + kThreads - 1) / kThreads;
  static_assert(kBatch <= 16 && kBatch % kSummed == 0);
  struct Token {
    float key[kKeys], query[kKeys];
    float4 v[kWarps];
    float2 decay_beta[kWarps];
  };
  __shared__ Token tokens[2][kBatch];

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 2, b = blockIdx.y;
  const int hk = blockIdx.x / blocks_of_key_head(s), unit = blockIdx.x % blocks_of_key_head(s) * kWarps + warp;
  const bool owns = unit < s.HV / s.HK * warps_of_head(s);
  const int hv = owns ? value_head(s, hk, unit / warps_of_head(s)) : 0;
  const int warp_column = unit % warps_of_head(s) * kWarpColumns, column = warp_column + lane % 2 * 2, columns = owns ? s.V - column : 0;
  const int first = uniform(r.first_row[b]), end = uniform(r.first_row[b + 1]);

  // --- State ---
  const std::size_t place = static_cast<std::size_t>(hv) * s.K * s.V + column;
  auto* state = reinterpret_cast<float*>(slot_memory(r, r.slot[b]) + s.state_offset) + place;
  GdnState<kPieces, 2> S;
  const auto each = [&](auto visit) {
    const int V = opaque(s.V), rows = opaque(s.K), row0 = opaque(4 * g), width = opaque(columns);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int row = row0 + i / 4 * kPieceRows + i % 4;
#pragma unroll
      for (int c = 0; c < 2; ++c) visit(row < rows && c < width, row * V + c, S.S[i][c]);
    }
  };
  const auto store = [&](float* to) {
    each([&](bool real, int at, float x) {
      if (real) to[at] = x;
    });
  };
  each([&](bool real, int at, float& x) { x = real ? state[at] : 0.0f; });

  // --- Batches of tokens: a thread brings eight elements of a query or key, a lane the v or a gate of its warp's columns ---
  const bool aligned = s.conv % 8 == 0 && s.K % 8 == 0;
  const bf16* source[kLoads];  // of row 0
  int source_head[kLoads], rows_end[kLoads];
#pragma unroll
  for (int i = 0; i < kLoads; ++i) {
    const int part = i * kThreads + threadIdx.x, token = part / (2 * kParts), element = part % kParts * 8;
    const bool real = part < kBatchParts && element < s.K;
    source_head[i] = part % (2 * kParts) < kParts ? hk : s.HK + hk;
    source[i] = buffers.conv + static_cast<std::size_t>(token) * s.conv + source_head[i] * s.K + element;
    source_head[i] += token * 2 * s.HK;
    rows_end[i] = real ? end - token : 0;
  }
  const bool aligned_v = aligned && s.V % 4 == 0;
  const int lane_token = lane % 16, gates_end = owns && lane_token < kBatch ? end - lane_token : 0;
  const bf16* v_source = buffers.conv + static_cast<std::size_t>(lane_token) * s.conv + 2 * s.HK * s.K + hv * s.V + warp_column;
  const float* gate_source = (lane < 16 ? buffers.decay : buffers.beta) + static_cast<std::size_t>(lane_token) * s.HV + hv;
  uint4 raw[kLoads];
  float scale[kLoads], gate = 0.0f;
  uint2 v = {0, 0};  // four bf16; like all that is fetched, not looked at before the batch in work is done
  int save = -1;
  const auto fetch = [&](int t0) {
    const std::size_t t = t0;
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      raw[i] = {0, 0, 0, 0};
      scale[i] = 0.0f;
      if (t0 >= rows_end[i]) continue;
      const bf16* from = source[i] + t * s.conv;
      const int element = (i * kThreads + threadIdx.x) % kParts * 8;
      raw[i] = aligned ? *reinterpret_cast<const uint4*>(from) : load_piece(from - element, element, s.K);
      scale[i] = buffers.unit_scales[t * 2 * s.HK + source_head[i]];
    }
    save = -1;
    if (t0 >= gates_end) return;
    gate = gate_source[t * s.HV];
    if (lane < 16)
      v = aligned_v ? *reinterpret_cast<const uint2*>(v_source + t * s.conv) : four_elements(v_source + t * s.conv, s.V - warp_column);
    else if (warp == 0)
      save = r.save_slot[t + lane_token];
  };
  const auto place_batch = [&](Token* batch) {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int part = i * kThreads + threadIdx.x;
      if (part >= kBatchParts) continue;
      Token& token = batch[part / (2 * kParts)];
      auto* to = reinterpret_cast<float4*>(part % (2 * kParts) < kParts ? token.query : token.key) + part % kParts * 2;
      const Eight x = expand(raw[i]);
      const float f = scale[i];
      to[0] = {f * x.x[0], f * x.x[1], f * x.x[2], f * x.x[3]};
      to[1] = {f * x.x[4], f * x.x[5], f * x.x[6], f * x.x[7]};
    }
    if (lane_token >= kBatch) return;
    if (lane < 16) batch[lane_token].v[warp] = {low_half(v.x), high_half(v.x), low_half(v.y), high_half(v.y)};
    (lane < 16 ? batch[lane_token].decay_beta[warp].x : batch[lane_token].decay_beta[warp].y) = gate;
  };

  // --- One token. While its sum over the lanes is under way, the lane's shares of the o of the token before, `last`, are summed. Left to
  // itself the compiler puts the shuffles side by side and waits; so two of them are made to depend on what is to be done meanwhile. ---
  const int zero = r.T >> 31;  // which the compiler does not know
  const auto after = [&](float x, float other) { return __int_as_float(__float_as_int(x) | (__float_as_int(other) & zero)); };
  const auto take = [&](const float* vector, float(&x)[kRows]) {
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const float4 four = reinterpret_cast<const float4*>(vector)[i * kRowLanes + g];
      x[4 * i] = four.x, x[4 * i + 1] = four.y, x[4 * i + 2] = four.z, x[4 * i + 3] = four.w;
    }
  };
  const auto step = [&]<bool kAfterAnother>(std::bool_constant<kAfterAnother>, const Token& token, const Token& last, float* last_o) {
    float k[kRows], q[kRows], sum[2], decayed[kRows][2], o[2] = {};
    const float2 gates = token.decay_beta[warp], v = reinterpret_cast<const float2*>(&token.v[warp])[lane % 2];
    take(token.key, k);
    S.recall(k, sum);
    if (kAfterAnother) take(last.query, q);
#pragma unroll
    for (int level = 0; level < 4; ++level) {
      float other[2];
#pragma unroll
      for (int c = 0; c < 2; ++c) other[c] = __shfl_xor_sync(0xffffffffu, sum[c], 2 << level);
      if (kAfterAnother && (level == 1 || level == 2)) {
#pragma unroll
        for (int i = kRows / 2 * (level - 1); i < kRows / 2 * level; ++i)
#pragma unroll
          for (int c = 0; c < 2; ++c) o[c] = fmaf(q[i], S.S[i][c], o[c]);
      }
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        sum[c] += other[c];
        if (kAfterAnother && (level == 1 || level == 2)) sum[c] = after(sum[c], o[c]);
      }
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i)
#pragma unroll
      for (int c = 0; c < 2; ++c) decayed[i][c] = gates.x * S.S[i][c];
    const float u[2] = {gdn_correction(gates.y, v.x, gates.x, sum[0]), gdn_correction(gates.y, v.y, gates.x, sum[1])};
#pragma unroll
    for (int i = 0; i < kRows; ++i)
#pragma unroll
      for (int c = 0; c < 2; ++c)
        S.S[i][c] = mutant(Mutant::kGdnDecayAfterUpdate) ? gates.x * fmaf(k[i], u[c], S.S[i][c]) : fmaf(k[i], u[c], decayed[i][c]);
    if (kAfterAnother) last_o[0] = o[0], last_o[1] = o[1];
  };
  const auto read_out = [&](const Token& token, float* o) {
    float q[kRows], sum[2];
    take(token.query, q);
    S.recall(q, sum);
    o[0] = sum[0], o[1] = sum[1];
  };
  const auto write = [&](int t, int c, float o) {
    if (c < columns) buffers.core[(static_cast<std::size_t>(t) * s.HV + hv) * s.V + column + c] = to_b16(o);
  };

  fetch(first);
  place_batch(tokens[0]);
  int half = 0;
  for (int t0 = first; t0 < end; t0 += kBatch, half ^= 1) {
    const bool any_saves = uniform(__syncthreads_or(save >= 0)) != 0;  // this batch is in shared memory, and the other half has been read
    const Token* batch = tokens[half];
    if (t0 + kBatch < end) fetch(t0 + kBatch);
    if (t0 + kBatch <= end && !any_saves) {
#pragma unroll 1
      for (int j0 = 0; j0 < kBatch; j0 += kSummed) {
        float o[2 * kSummed];
        step(std::false_type(), batch[j0], batch[j0], o);
#pragma unroll
        for (int j = 1; j < kSummed; ++j) step(std::true_type(), batch[j0 + j], batch[j0 + j - 1], o + 2 * (j - 1));
        read_out(batch[j0 + kSummed - 1], o + 2 * (kSummed - 1));
        const float total = sum_row_lanes(o, lane);
        const int value = value_of_lane<2 * kSummed>(lane);
        if (g < 2 * kSummed) write(t0 + j0 + value / 2, value % 2, total);
      }
    } else {
      for (int t = t0; t < min(end, t0 + kBatch); ++t) {
        float o[2];
        step(std::false_type(), batch[t - t0], batch[t - t0], o);
        read_out(batch[t - t0], o);
        const float total = sum_row_lanes(o, lane);
        if (g < 2) write(t, value_of_lane<2>(lane), total);
        if (r.save_slot[t] >= 0) store(reinterpret_cast<float*>(slot_memory(r, r.save_slot[t]) + s.state_offset) + place);
      }
    }
    if (t0 + kBatch < end) place_batch(tokens[half ^ 1]);
  }
  store(state);
}

template <int kPieces, int kBatch>
void launch_recurrence(const GdnShape& s, const GdnBuffers& b, const StepRows& r, const Stream& stream) {
  const dim3 grid(static_cast<unsigned>(s.HK * blocks_of_key_head(s)), static_cast<unsigned>(r.B));
  launch("gdn_recurrence", gdn_recurrence_kernel<kPieces, kBatch>, {grid, dim3(kThreads)}, stream, s, b, r);
}

}  // namespace

void gdn_recurrence(const GdnShape& s, const GdnBuffers& b, const StepRows& r, const Stream& stream) {
  TETRAD_CHECK(s.K <= kGdnMaxKey, "gdn: keys of {} elements, at most {}", s.K, kGdnMaxKey);
  if (s.K <= kPieceRows) return launch_recurrence<1, 16>(s, b, r, stream);
  if (s.K <= 2 * kPieceRows) return launch_recurrence<2, 16>(s, b, r, stream);
  launch_recurrence<kGdnMaxKey / kPieceRows, 4>(s, b, r, stream);
}

}  // namespace tetrad::cuda
