#pragma once
// The shared memory of sample, the order of its keys, and sums and maxima over a warp.
#include "cuda/kernels/cluster.cuh"
#include "cuda/kernels/device_math.cuh"
#include "model/token_choice.h"

namespace tetrad::cuda::sampling {

using Mass = unsigned long long;

inline constexpr int kThreads = 1024, kWarps = kThreads / 32, kBins = kThreads;
inline constexpr int kFewScores = kThreads;  // that one block finishes with, one in each thread
inline constexpr int kGroups = 256;          // of ids of a row whose best keys every block learns
inline constexpr unsigned kAllLanes = 0xffffffffu, kNoId = 0xffffffffu;
inline constexpr unsigned kNothingKey = 0x007fffffu, kLeastKey = kNothingKey + 1;  // of minus infinity; of the scores above it
inline constexpr unsigned kUnsoundKey = 0xffffffffu;                               // in place of a group's best

inline constexpr float kLeastExponent = -28.0f;  // below it weights are 0: e^-28 < 2^-40

// Larger is better, -0 as +0.
__device__ __forceinline__ unsigned order_key(float score) {
  const unsigned bits = __float_as_uint(score == 0.0f ? 0.0f : score);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float score_of(unsigned key) { return __uint_as_float((key & 0x80000000u) != 0 ? key & 0x7fffffffu : ~key); }

struct BinMemory {
  unsigned low[kBins], middle[kBins], high[kBins];  // parts of the masses of bins
  Mass masses[kBins];                               // of bins, in this block; read by the others
  unsigned lowest, highest;                         // of this block; read by the others
  int bin;
  Mass above;
};

// In the first block; the others write to it.
struct FewMemory {
  unsigned keys[kFewScores], sorted[kFewScores];
  unsigned ids[kFewScores];
  unsigned kept_key;
  int num_kept;
};

struct SampleMemory {
  alignas(16) unsigned groups[kGroups];                          // best keys of the row, from all blocks
  unsigned lows[kGroups], counts[kGroups];                       // of warps, from all blocks
  Mass warp_scan[kWarps], warp_mass[kWarps], warp_part[kWarps];  // part: the ties, or the mass of the best
  unsigned warp_low[kWarps], warp_high[kWarps];
  unsigned first;    // of this block; read by the others
  Mass mass, part;   // of this block; read by the others
  unsigned of_rank;  // a group's key
  BinMemory bins;
  FewMemory few;
};

template <class T, class Op>
__device__ __forceinline__ T warp_reduce(T x, Op op) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) x = op(x, __shfl_xor_sync(kAllLanes, x, offset));
  return x;
}
__device__ __forceinline__ Mass warp_total(Mass x) {
  return warp_reduce(x, [](Mass a, Mass b) { return a + b; });
}

// What the running sum of weights must exceed.
__device__ __forceinline__ Mass draw_target(Mass mass, Mass random) {
  const Mass target = multiply_high(mass, random);
  return mutant(Mutant::kSampleDrawAtLeast) && target > 0 ? target - 1 : target;
}

__device__ __forceinline__ void put_peer_word(unsigned* here, int rank, unsigned value) {
  put_peer_value(reinterpret_cast<float*>(here), rank, __uint_as_float(value));
}

}  // namespace tetrad::cuda::sampling
