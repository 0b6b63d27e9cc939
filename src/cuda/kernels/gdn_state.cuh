#pragma once
// A part of S [K, V] in registers and the order of its sums (gdn.h, "Order"), the same in every kernel: kRowLanes lanes, two apart, share
// a column. Row lane g holds rows 4g .. 4g+3 of each piece of 64; neighbours of a pair of lanes hold different columns.
#include "cuda/kernels/device_math.cuh"

namespace tetrad::cuda {

inline constexpr int kRowLanes = 16, kPieceRows = 4 * kRowLanes;

// Sums each of x[kCount] over the row lanes, neighbours first; a row lane gets that of x[value_of_lane<kCount>(g)].
template <int kCount, int kMask = 2>
__device__ __forceinline__ float sum_row_lanes(const float (&x)[kCount], int lane) {
  constexpr int kHalf = kCount > 1 ? kCount / 2 : 1;
  float y[kHalf];
  if constexpr (kCount == 1) {
    y[0] = x[0] + __shfl_xor_sync(0xffffffffu, x[0], kMask);
  } else {
    const bool upper = (lane & kMask) != 0;
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
      const float given = upper ? x[i] : x[i + kHalf], kept = upper ? x[i + kHalf] : x[i];
      y[i] = kept + __shfl_xor_sync(0xffffffffu, given, kMask);
    }
  }
  if constexpr (kMask < kRowLanes)
    return sum_row_lanes<kHalf, 2 * kMask>(y, lane);
  else
    return y[0];
}

// Bits of the row lane, the lowest one first.
template <int kCount>
__device__ __forceinline__ int value_of_lane(int lane) {
  int value = 0;
#pragma unroll
  for (int level = 1, mask = 2; level < kCount; level *= 2, mask *= 2) value = 2 * value + ((lane & mask) != 0);
  return value;
}

// The other way: x[i] becomes the `mine` of the row lanes with value i.
template <int kCount>
__device__ __forceinline__ void spread_row_lanes(float mine, float (&x)[kCount], int lane) {
  x[0] = mine;
  int mask = kCount;
#pragma unroll
  for (int known = 1; known < kCount; known *= 2, mask /= 2) {
    const bool upper = (lane & mask) != 0;
#pragma unroll
    for (int i = 0; i < known; ++i) {
      const float own = x[i], other = __shfl_xor_sync(0xffffffffu, own, mask);
      x[i] = upper ? other : own;
      x[i + known] = upper ? own : other;
    }
  }
}

// A size behind an asm: else the compiler keeps an address and a comparison for every row of S all through the loop over tokens.
__device__ __forceinline__ int opaque(int size) {
  asm volatile("" : "+r"(size));
  return size;
}

// The same value in a uniform register: where a loop's bounds are not in one, the compiler takes its shuffles to be divergent and lets them
// take turns at one register.
__device__ __forceinline__ int uniform(int same_in_warp) { return __reduce_max_sync(0xffffffffu, same_in_warp); }

// Rows 64j + 4g + i of S at [4j + i], kColumns neighbouring columns of them.
template <int kPieces, int kColumns>
struct GdnState {
  static constexpr int kRows = 4 * kPieces;
  float S[kRows][kColumns];

  // This lane's share of k^T S.
  __device__ __forceinline__ void recall(const float (&k)[kRows], float (&sum)[kColumns]) const {
#pragma unroll
    for (int c = 0; c < kColumns; ++c) sum[c] = 0.0f;
#pragma unroll
    for (int i = 0; i < kRows; ++i)
#pragma unroll
      for (int c = 0; c < kColumns; ++c) sum[c] = fmaf(k[i], S[i][c], sum[c]);
  }

  // S <- decay S + k u
  __device__ __forceinline__ void update(const float (&k)[kRows], float decay, const float (&u)[kColumns]) {
#pragma unroll
    for (int i = 0; i < kRows; ++i)
#pragma unroll
      for (int c = 0; c < kColumns; ++c) S[i][c] = fmaf(k[i], u[c], decay * S[i][c]);
  }
};

// What a token takes from its column of S: u = beta (v - decay r).
__device__ __forceinline__ float gdn_correction(float beta, float v, float decay, float r) {
  return beta * (v - (mutant(Mutant::kGdnDecayAfterUpdate) ? r : decay * r));
}

// What makes a head of k, or of q, a unit vector (q also over sqrt(K)), and 1 / rms of a head of o: a lane sums its four neighbouring
// elements of each 128, then the warp.
inline constexpr float kL2Eps = 1e-6f;  // fixed by the reference, not rms_norm_eps
__device__ __forceinline__ float add_squares(float sum, const float4& x) {
  return (((sum + x.x * x.x) + x.y * x.y) + x.z * x.z) + x.w * x.w;
}
__device__ __forceinline__ float key_scale(float lane_squares) {
  return mutant(Mutant::kGdnNoL2Norm) ? 1.0f : 1.0f / sqrtf(warp_sum(lane_squares) + kL2Eps);
}
__device__ __forceinline__ float query_scale(float lane_squares, int K) {
  return mutant(Mutant::kGdnNoL2Norm) ? 1.0f : 1.0f / sqrtf(static_cast<float>(K)) * key_scale(lane_squares);
}
__device__ __forceinline__ float inverse_rms(float lane_squares, int count, float eps) {
  return 1.0f / sqrtf(warp_sum(lane_squares) / static_cast<float>(count) + norm_eps(eps));
}
__device__ __forceinline__ float gdn_beta(float b) {
  if (mutant(Mutant::kBetaWithoutSigmoid)) return b;
  return mutant(Mutant::kBetaUnrounded) ? sigmoid_f32(b) : round_b16(sigmoid_f32(b));
}
__device__ __forceinline__ float gdn_decay(float neg_exp_a, float a, float dt_bias) {
  const float x = a + dt_bias;
  return expf(neg_exp_a * (mutant(Mutant::kSoftplusMissing) ? x : softplus_f32(x)));
}
__device__ __forceinline__ bool takes_sigmoid(bool sigmoid_gate) { return mutant(Mutant::kGdnOtherGate) ? !sigmoid_gate : sigmoid_gate; }
__device__ __forceinline__ float gate_f32(float z, bool sigmoid_gate) { return takes_sigmoid(sigmoid_gate) ? sigmoid_f32(z) : silu_f32(z); }
__device__ __forceinline__ bf16 gated_output(float o, float inverse, float weight, float gate) {
  const float normed = o * inverse;
  return to_b16(round_b16(weight * (mutant(Mutant::kGdnNormUnrounded) ? normed : round_b16(normed))) * gate);
}

// The tap of the j-th oldest row in a window of `width`, and the convolution's sum as silu takes it.
__device__ __forceinline__ int tap_of(int j, int width) { return mutant(Mutant::kConvTapOrder) ? width - 1 - j : j; }
__device__ __forceinline__ float conv_sum(float sum) { return mutant(Mutant::kConvSiluUnrounded) ? sum : round_b16(sum); }

// Elements i .. i+3 of a row of bf16, zero past `width`; rows that are not aligned are read by element.
__device__ __forceinline__ float4 load_four(const bf16* row, int i, int width) {
  if (i + 4 <= width && reinterpret_cast<std::uintptr_t>(row + i) % 8 == 0) {
    const uint2 v = *reinterpret_cast<const uint2*>(row + i);
    return {__uint_as_float(v.x << 16), __uint_as_float(v.x & 0xffff0000u), __uint_as_float(v.y << 16), __uint_as_float(v.y & 0xffff0000u)};
  }
  const auto element = [&](int e) { return e < width ? to_f32(row[e]) : 0.0f; };
  return {element(i), element(i + 1), element(i + 2), element(i + 3)};
}
__device__ __forceinline__ void store_four(bf16* row, int i, int width, const bf16 (&x)[4]) {
  if (i + 4 <= width && reinterpret_cast<std::uintptr_t>(row + i) % 8 == 0) {
    *reinterpret_cast<uint2*>(row + i) = {x[0].bits | static_cast<unsigned>(x[1].bits) << 16, x[2].bits | static_cast<unsigned>(x[3].bits)
                                                                                                              << 16};
    return;
  }
#pragma unroll
  for (int e = 0; e < 4; ++e)
    if (i + e < width) row[i + e] = x[e];
}

}  // namespace tetrad::cuda
