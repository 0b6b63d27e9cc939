#pragma once
// Attention of one row and up to sixteen query heads of one key head (contract in qsa.h): what the kernel for many rows and the one for few
// have in common, so that both give the same bits. Tensor-core steps have queries or probabilities as the left operand, one head a row.
#include "cuda/kernels/device_math.cuh"
#include "cuda/kernels/qsa.h"
#include "cuda/kernels/tensor_step.cuh"

namespace tetrad::cuda {

inline constexpr int kHeadTile = 16;                // query heads of a block at most: the rows of a tensor-core step
inline constexpr int kStep = 16;                    // positions of a tensor-core step of the weighted sum
inline constexpr int kColumnTile = 32;              // columns of V that a warp sums
inline constexpr int kValueColumns = 256;           // of V in shared memory at a time
inline constexpr int kValueLd = kValueColumns + 8;  // odd in units of 16 bytes: rows of a step meet different banks
inline constexpr int kPublishedDim = 256;           // head dimension with a compiled path; 0 stands for any

struct AttendUnit {
  int i, t, kv;             // row of the group and of the step, key head
  int first_head, heads;    // query heads
  int count, chunks, last;  // positions, chunks of them, position of the row itself
};

__device__ __forceinline__ AttendUnit attend_unit(const QsaShape& s, const QsaGroup& g, const StepRows& r, int i, int unit,
                                                  int tile_heads) {
  const int group = s.HQ / s.HKV, tiles = (group + tile_heads - 1) / tile_heads, tile = unit % tiles * tile_heads;
  AttendUnit u{.i = i, .t = g.first + i, .kv = unit / tiles};
  u.first_head = u.kv * group + tile;
  u.heads = min(tile_heads, group - tile);
  u.count = g.counts[i];
  if (u.count < 1 || u.count > s.attended) __trap();
  u.chunks = (u.count + kAttendChunk - 1) / kAttendChunk;
  u.last = r.position[u.t];
  return u;
}

// Elements from a key row to the value row of the same position: sections of a page lie at multiples of 64 bytes.
__device__ __forceinline__ std::ptrdiff_t value_distance(const QsaShape& s) {
  return (static_cast<std::ptrdiff_t>(s.v_offset) - static_cast<std::ptrdiff_t>(s.k_offset)) / static_cast<std::ptrdiff_t>(sizeof(bf16));
}

// The key row of a selected position.
__device__ __forceinline__ const bf16* key_row(const QsaShape& s, const StepRows& r, const AttendUnit& u, int b, int position) {
  if (position < 0 || position > u.last) __trap();
  const std::byte* page = page_of(r, b, position, r.page_tokens);
  return reinterpret_cast<const bf16*>(page + s.k_offset) +
         (static_cast<std::size_t>(position % r.page_tokens) * s.HKV + (mutant(Mutant::kKvHeadOff) ? (u.kv + 1) % s.HKV : u.kv)) * s.DH;
}

// Eight columns of a row.
template <int kWidth>
__device__ __forceinline__ uint4 row_piece(const bf16* row, int k, int width) {
  if constexpr (kWidth == 0) return load_piece(row, k, width);
  return __ldcg(reinterpret_cast<const uint4*>(row + k));  // each piece is read once
}

// Query heads g and g + 8 of lane (g, t): as fragments where the width is compiled in, else as pointers.
template <int kWidth>
struct Queries {
  uint4 upper[kWidth / 32], lower[kWidth / 32];
  __device__ Queries(const bf16* upper_row, const bf16* lower_row) {
#pragma unroll
    for (int j = 0; j < kWidth / 32; ++j) {
      const int k = j * 32 + static_cast<int>(threadIdx.x) % 4 * 8;
      upper[j] = upper_row == nullptr ? uint4{0, 0, 0, 0} : row_piece<kWidth>(upper_row, k, kWidth);
      lower[j] = lower_row == nullptr ? uint4{0, 0, 0, 0} : row_piece<kWidth>(lower_row, k, kWidth);
    }
  }
};
template <>
struct Queries<0> {
  const bf16 *upper, *lower;
  __device__ Queries(const bf16* upper_row, const bf16* lower_row) : upper(upper_row), lower(lower_row) {}
};

template <int kWidth>
__device__ __forceinline__ Queries<kWidth> load_queries(const QsaShape& s, const AttendUnit& u, const bf16* projected) {
  const int head = static_cast<int>(threadIdx.x) % 32 / 4;
  const bf16* first = projected + static_cast<std::size_t>(u.t) * s.row + static_cast<std::size_t>(u.first_head) * 2 * s.DH;
  return {head < u.heads ? first + head * 2 * s.DH : nullptr, head + 8 < u.heads ? first + (head + 8) * 2 * s.DH : nullptr};
}

__device__ __forceinline__ unsigned pack_pair(bf16 low, bf16 high) {
  return static_cast<unsigned>(low.bits) | static_cast<unsigned>(high.bits) << 16;
}

// Scaled scores of eight positions, rounded twice. `keys` goes on past the last position up to the next multiple of
// sixteen, with rows that are selected anyway: what stands for no position must not bring a value into a row that did not select it.
template <int kWidth>
__device__ __forceinline__ void score_positions(const Queries<kWidth>& q, const bf16* const* keys, int first, int heads, int width,
                                                float scale, bf16* scores, int ld) {
  const int lane = threadIdx.x % 32, piece = lane % 4 * 8, n = first + lane % 4 * 2;
  const bf16* key = keys[first + lane / 4];
  float acc[4] = {};
  if constexpr (kWidth > 0) {
    uint4 pieces[kWidth / 32];
#pragma unroll
    for (int k = 0; k < kWidth / 32; ++k) pieces[k] = row_piece<kWidth>(key, k * 32 + piece, kWidth);
#pragma unroll
    for (int k = 0; k < kWidth / 32; ++k) multiply_pieces(acc, q.upper[k], q.lower[k], pieces[k]);
  } else {
    for (int k = 0; k < width; k += 32)
      multiply_pieces(acc, load_piece(q.upper, k + piece, width), load_piece(q.lower, k + piece, width), load_piece(key, k + piece, width));
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int head = lane / 4 + 8 * half;
    if (head < heads)
      *reinterpret_cast<unsigned*>(scores + head * ld + n) =
          pack_pair(to_b16(round_b16(acc[2 * half]) * scale), to_b16(round_b16(acc[2 * half + 1]) * scale));
  }
}

// Four neighbouring scores of a chunk: lane l holds those at 4l; `fill` where there is none.
__device__ __forceinline__ float4 four_scores(const bf16* chunk, int count, float fill) {
  const int n = threadIdx.x % 32 * 4;
  if (n >= count) return {fill, fill, fill, fill};
  const uint2 v = *reinterpret_cast<const uint2*>(chunk + n);
  return {__uint_as_float(v.x << 16), n + 1 < count ? __uint_as_float(v.x & 0xffff0000u) : fill,
          n + 2 < count ? __uint_as_float(v.y << 16) : fill, n + 3 < count ? __uint_as_float(v.y & 0xffff0000u) : fill};
}

// This lane's largest score of a chunk.
__device__ __forceinline__ float lane_max(const bf16* chunk, int count) {
  const float4 v = four_scores(chunk, count, -INFINITY);
  return max_or_nan(max_or_nan(v.x, v.y), max_or_nan(v.z, v.w));
}

// This lane's sum of exp(score - best) over positions l, l + 32, l + 64, l + 96 of a chunk; the chunk's is that of the lanes by warp_sum.
__device__ __forceinline__ float lane_sum(const bf16* chunk, int count, float best) {
  float sum = 0.0f;
#pragma unroll
  for (int j = 0; j < kAttendChunk / 32; ++j) {
    const int n = static_cast<int>(threadIdx.x % 32) + 32 * j;
    sum += n < count ? expf(to_f32(chunk[n]) - best) : 0.0f;
  }
  return sum;
}

__device__ __forceinline__ bf16 rounded_probability(float p) { return mutant(Mutant::kProbabilityTruncated) ? cut_b16(p) : to_b16(p); }

// One warp: scores to probabilities in place, zero up to the end of the last step of sixteen. `inverse` is the rounded 1 / sum, with which
// one correction gives the rounded quotient without a division for each score.
__device__ __forceinline__ void chunk_probabilities(bf16* chunk, int count, float best, float sum, float inverse) {
  const int n = threadIdx.x % 32 * 4;
  if (n >= (count + 15) / 16 * 16) return;
  const float4 v = four_scores(chunk, count, -INFINITY);
  const auto p = [&](int j, float x) {
    const float e = expf(x - best), quotient = e * inverse;
    return n + j < count ? rounded_probability(fmaf(fmaf(-quotient, sum, e), inverse, quotient)) : bf16{};
  };
  *reinterpret_cast<uint2*>(chunk + n) = {pack_pair(p(0, v.x), p(1, v.y)), pack_pair(p(2, v.z), p(3, v.w))};
}

__device__ __forceinline__ void load_probabilities(const bf16* at, unsigned* a) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
               : "r"(static_cast<unsigned>(__cvta_generic_to_shared(at))));
}

// Eight columns of a value row into shared memory; done when the copies have been waited for. Lanes take neighbouring pieces: read straight
// into the operands' layout, rows would be asked for in sectors of 32 bytes, at half the rate.
template <int kWidth>
__device__ __forceinline__ void stage_piece(const bf16* row, int column, int width, bf16* to) {
  if constexpr (kWidth == 0) {
    *reinterpret_cast<uint4*>(to) = load_piece(row, column, width);
  } else {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(static_cast<unsigned>(__cvta_generic_to_shared(to))), "l"(row + column));
  }
}
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;"); }
// Waits for all but the last `kPending` committed groups of this thread.
template <int kPending>
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// acc += probabilities [heads, ld] * values [16, kValueLd] of one step, columns column .. +31. Lane (g, t): acc[j][2 * half + e] is head
// g + 8 * half, column + 8j + 2t + e.
__device__ __forceinline__ void weighted_step(const bf16* probabilities, int ld, int heads, const bf16* values, int column,
                                              float (*acc)[4]) {
  const int lane = threadIdx.x % 32;
  unsigned a[4];
  load_probabilities(probabilities + min(lane % 16, heads - 1) * ld + lane / 16 * 8, a);  // rows past the heads repeat the last
  const bf16* at = values + lane % kStep * kValueLd + column + lane / kStep * 8;
#pragma unroll
  for (int j = 0; j < kColumnTile / 8; j += 2) {
    unsigned b[4];
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
                 : "r"(static_cast<unsigned>(__cvta_generic_to_shared(at + j * 8))));
    multiply_step(acc[j], a, b[0], b[1]);
    multiply_step(acc[j + 1], a, b[2], b[3]);
  }
}

__device__ __forceinline__ bf16 gated(float o, bf16 gate) {
  return to_b16(round_b16(o) * (mutant(Mutant::kOutputGateMissing) ? 1.0f : round_b16(sigmoid_f32(to_f32(gate)))));
}

// Both write y [T, HQ * DH]; the one for few rows needs clusters, and shared memory for all of a row's values.
bool attend_few_fits(const QsaShape& s);
void attend_many(const QsaShape& s, const bf16* projected, const QsaGroup& g, float scale, bf16* y, const StepRows& r,
                 const Stream& stream);
void attend_few(const QsaShape& s, const bf16* projected, const QsaGroup& g, float scale, bf16* y, const StepRows& r, const Stream& stream);

}  // namespace tetrad::cuda
