// Attention of qsa for many rows (contract in qsa.h): a block takes a row and the query heads of a key head from scores to gated sums.
#include <algorithm>
#include <cmath>

#include "cuda/kernels/qsa_attend.cuh"
#include "cuda/runtime/launch.cuh"

namespace tetrad::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kBlocksPerMultiprocessor = 2;  // one sums while the other scores
constexpr int kStages = 4;                   // steps of V on their way or in use

// Shared: steps of V [kStages, 16, kValueLd], key rows [padded], scores and later probabilities [tile heads, ld].
constexpr std::size_t kRingBytes = sizeof(bf16) * kStages * kStep * kValueLd;
constexpr std::size_t kSharedLimit = 100 * 1024 - 1024;  // two blocks on a Hopper multiprocessor, one on the smallest target
__host__ __device__ constexpr int padded_positions(int attended) { return (attended + kStep - 1) / kStep * kStep; }
__host__ __device__ constexpr int score_ld(int attended) { return padded_positions(attended) + 8; }  // odd in units of 16 bytes

template <int kWidth>
__global__ void __launch_bounds__(kThreads, kBlocksPerMultiprocessor)
    attend_many_kernel(const QsaShape s, const bf16* projected, const QsaGroup g, float scale, int tile_heads, bf16* y, const StepRows r) {
  wait_for_previous();
  extern __shared__ uint4 memory[];
  const AttendUnit u = attend_unit(s, g, r, static_cast<int>(blockIdx.x), static_cast<int>(blockIdx.y), tile_heads);
  const int ld = score_ld(s.attended), warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  auto* ring = reinterpret_cast<bf16*>(memory);
  auto** keys = reinterpret_cast<const bf16**>(ring + kStages * kStep * kValueLd);
  auto* scores = reinterpret_cast<bf16*>(keys + padded_positions(s.attended));
  const int b = sequence_of(r, u.t), steps = padded_positions(u.count) / kStep;
  const int* positions = g.positions + static_cast<std::size_t>(u.i) * s.attended;
  for (int n = threadIdx.x; n < padded_positions(u.count); n += kThreads)
    keys[n] = key_row(s, r, u, b, positions[n < u.count ? n : (u.count - 1) / kAttendChunk * kAttendChunk]);
  __syncthreads();  // the rows are known
  {
    const Queries<kWidth> q = load_queries<kWidth>(s, u, projected);
#pragma unroll 1
    for (int first = warp * 8; first < steps * kStep; first += kWarps * 8)
      score_positions<kWidth>(q, keys, first, u.heads, s.DH, scale, scores, ld);
  }
  __syncthreads();  // the scores are written
  const std::ptrdiff_t to_value = value_distance(s);
  const auto stage = [&](int step, int column) {
    if (step < steps)
      for (int i = threadIdx.x; i < kStep * kValueColumns / 8; i += kThreads) {
        const int n = i / (kValueColumns / 8), piece = i % (kValueColumns / 8) * 8;
        stage_piece<kWidth>(keys[step * kStep + n] + to_value, column + piece, s.DH,
                            ring + (step % kStages * kStep + n) * kValueLd + piece);
      }
    commit_copies();  // a group for each step, be it empty
  };
  for (int step = 0; step < kStages - 1; ++step) stage(step, 0);
  if (warp < u.heads) {
    constexpr int kHeads = kHeadTile / kWarps;  // of a warp, side by side: one alone would wait for itself
    float best[kHeads], sum[kHeads] = {}, inverse[kHeads];
    const auto chunk = [&](int j, int c) {
      return scores + (warp + j * kWarps < u.heads ? warp + j * kWarps : warp) * ld + c * kAttendChunk;
    };
#pragma unroll
    for (int j = 0; j < kHeads; ++j) best[j] = -INFINITY;
#pragma unroll 1
    for (int c = 0; c < u.chunks; ++c)
#pragma unroll
      for (int j = 0; j < kHeads; ++j) best[j] = max_or_nan(best[j], lane_max(chunk(j, c), u.count - c * kAttendChunk));
#pragma unroll
    for (int j = 0; j < kHeads; ++j) best[j] = warp_max(best[j]);
#pragma unroll 1
    for (int c = 0; c < u.chunks; ++c)
#pragma unroll
      for (int j = 0; j < kHeads; ++j) sum[j] += warp_sum(lane_sum(chunk(j, c), u.count - c * kAttendChunk, best[j]));
#pragma unroll
    for (int j = 0; j < kHeads; ++j) inverse[j] = 1.0f / sum[j];
#pragma unroll 1
    for (int c = 0; c < u.chunks; ++c)
#pragma unroll
      for (int j = 0; j < kHeads; ++j)
        if (warp + j * kWarps < u.heads) chunk_probabilities(chunk(j, c), u.count - c * kAttendChunk, best[j], sum[j], inverse[j]);
  }
  __syncthreads();  // the probabilities are written
#pragma unroll 1
  for (int first = 0; first < s.DH; first += kValueColumns) {
    if (first > 0)
      for (int step = 0; step < kStages - 1; ++step) stage(step, first);
    const int column = warp * kColumnTile;
    float total[kColumnTile / 8][4], acc[kColumnTile / 8][4] = {};
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      wait_for_copies<kStages - 2>();
      __syncthreads();  // the step's rows are in shared memory, and the last step's have been read
      stage(step + kStages - 1, first);
      weighted_step(scores + step * kStep, ld, u.heads, ring + step % kStages * kStep * kValueLd, column, acc);
      constexpr int kChunkSteps = kAttendChunk / kStep;
      if (step % kChunkSteps != kChunkSteps - 1 && step != steps - 1) continue;
#pragma unroll
      for (int j = 0; j < kColumnTile / 8; ++j)
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          total[j][k] = step < kChunkSteps ? acc[j][k] : total[j][k] + acc[j][k];
          acc[j][k] = 0.0f;
        }
    }
    wait_for_copies<0>();
    __syncthreads();  // the last step's rows have been read
#pragma unroll
    for (int j = 0; j < kColumnTile / 8; ++j)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int head = lane / 4 + half * 8, d = first + column + j * 8 + lane % 4 * 2;
        if (head >= u.heads) continue;
        const std::size_t hd = static_cast<std::size_t>(u.first_head + head);
        const bf16* gate = projected + static_cast<std::size_t>(u.t) * s.row + hd * 2 * s.DH + s.DH + d;
        bf16* out = y + (static_cast<std::size_t>(u.t) * s.HQ + hd) * s.DH + d;
        if constexpr (kWidth > 0) {
          const unsigned gates = *reinterpret_cast<const unsigned*>(gate);
          const bf16 low{static_cast<std::uint16_t>(gates)}, high{static_cast<std::uint16_t>(gates >> 16)};
          *reinterpret_cast<unsigned*>(out) = pack_pair(gated(total[j][2 * half], low), gated(total[j][2 * half + 1], high));
        } else {
          if (d < s.DH) out[0] = gated(total[j][2 * half], gate[0]);
          if (d + 1 < s.DH) out[1] = gated(total[j][2 * half + 1], gate[1]);
        }
      }
  }
}

}  // namespace

void attend_many(const QsaShape& s, const bf16* projected, const QsaGroup& g, float scale, bf16* y, const StepRows& r,
                 const Stream& stream) {
  const std::size_t rows = kRingBytes + static_cast<std::size_t>(padded_positions(s.attended)) * sizeof(bf16*);
  const std::size_t head = static_cast<std::size_t>(score_ld(s.attended)) * sizeof(bf16);
  const int group = s.HQ / s.HKV, most = rows + head < kSharedLimit ? static_cast<int>((kSharedLimit - rows) / head) : 1;
  const int tile_heads = std::min({kHeadTile, group, most});
  const std::size_t shared = rows + static_cast<std::size_t>(tile_heads) * head;
  const auto kernel = s.DH == kPublishedDim && s.row % 8 == 0 ? attend_many_kernel<kPublishedDim> : attend_many_kernel<0>;
  if (shared > 48 * 1024) allow_shared("qsa_attend", kernel, shared);
  const dim3 grid(static_cast<unsigned>(g.count), static_cast<unsigned>(s.HKV * ceil_div(group, tile_heads)));
  launch("qsa_attend", kernel, {grid, dim3(kThreads), shared}, stream, s, projected, g, scale, tile_heads, y, r);
}

// Few rows would leave most of the GPU idle in the kernel that gives a block a whole row.
void qsa_attend(const QsaShape& s, const bf16* projected, const QsaGroup& g, bf16* y, const StepRows& r, const Stream& stream) {
  constexpr int kFewUnits = 132;  // as many as the largest target has multiprocessors
  const auto scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(s.DH)));
  const bool few = stream.overlaps() && g.count * s.HKV * ceil_div(s.HQ / s.HKV, kHeadTile) <= kFewUnits;
  few&& attend_few_fits(s) ? attend_few(s, projected, g, scale, y, r, stream) : attend_many(s, projected, g, scale, y, r, stream);
}

}  // namespace tetrad::cuda
