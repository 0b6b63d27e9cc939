#pragma once
// What the kernels of moe share: routing of a row, grouping of the pairs, activation, the last sum.
#include "cuda/kernels/device_math.cuh"
#include "cuda/kernels/moe.h"
#include "cuda/kernels/pieces.cuh"

namespace tetrad::cuda {

__device__ __forceinline__ float silu_of_gate(float silu) { return mutant(Mutant::kExpertSiluUnrounded) ? silu : round_b16(silu); }
__device__ __forceinline__ bf16 activated(bf16 gate, bf16 up) {
  if (mutant(Mutant::kExpertGateUpSwapped)) return to_b16(round_b16(silu_f32(to_f32(up))) * to_f32(gate));
  return to_b16(silu_of_gate(silu_f32(to_f32(gate))) * to_f32(up));
}

// Of the pairs of a row, the one whose weight pair k takes; the sum over experts as it goes on; the shared expert's gate.
__device__ __forceinline__ int weight_of(int pair, int EK) {
  return mutant(Mutant::kExpertWeightOfNext) ? pair / EK * EK + (pair % EK + 1) % EK : pair;
}
__device__ __forceinline__ float routed_sum(float sum) { return mutant(Mutant::kRoutedSumRounded) ? round_b16(sum) : sum; }
__device__ __forceinline__ float shared_share(bf16 gate) {
  return mutant(Mutant::kSharedGateMissing) ? 1.0f : round_b16(sigmoid_f32(to_f32(gate)));
}

__device__ __forceinline__ bf16 with_shared(bf16 routed, bf16 shared, bf16 gate) {
  return to_b16(to_f32(routed) + round_b16(shared_share(gate) * to_f32(shared)));
}

inline constexpr int kRoutedPerLane = 16;  // experts whose probabilities a lane keeps in registers; more stay in shared memory

// The EK largest of the lane's keys, descending, then lower index. A key is the bits of a probability, which order as it does; -1 is none.
template <int kPerLane>
__device__ __forceinline__ float take_largest(int (&key)[kPerLane], int EK, int* ids, float* weights) {
  const int lane = threadIdx.x % 32;
  float chosen_sum = 0.0f;
  for (int k = 0; k < EK; ++k) {
    int best = -1, at = 0;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i)
      if (key[i] > best || (mutant(Mutant::kRouterTieHigher) && key[i] == best)) best = key[i], at = lane + 32 * i;
    const int value = __reduce_max_sync(0xffffffffu, best);
    int index = static_cast<int>(__reduce_min_sync(0xffffffffu, best == value ? static_cast<unsigned>(at) : 0xffffffffu));
    if (mutant(Mutant::kRouterTieHigher)) index = __reduce_max_sync(0xffffffffu, best == value ? at : -1);
#pragma unroll
    for (int i = 0; i < kPerLane; ++i)
      if (lane + 32 * i == index) key[i] = -1;
    chosen_sum += __int_as_float(value);
    if (lane == 0) ids[k] = index, weights[k] = __int_as_float(value);
  }
  return chosen_sum;
}

__device__ __forceinline__ float take_largest(float* p, int E, int EK, int* ids, float* weights) {
  const int lane = threadIdx.x % 32;
  float chosen_sum = 0.0f;
  for (int k = 0; k < EK; ++k) {
    int best = -1, at = 0;
    for (int e = lane; e < E; e += 32)
      if (__float_as_int(p[e]) > best) best = __float_as_int(p[e]), at = e;  // ascending e: the lower index wins a tie
    const int value = __reduce_max_sync(0xffffffffu, best);
    const int index = static_cast<int>(__reduce_min_sync(0xffffffffu, best == value ? static_cast<unsigned>(at) : 0xffffffffu));
    if (lane == index % 32) p[index] = -1.0f;  // taken; only this lane reads it again
    chosen_sum += __int_as_float(value);
    if (lane == 0) ids[k] = index, weights[k] = __int_as_float(value);
  }
  return chosen_sum;
}

// The same with few steps that wait for each other: no more than 32 keys, mostly, reach the EK-th of the lanes' largest, and each of those
// counts the ones before it. `room`: 64 words of shared memory, EK up to 32. False, with nothing done, where more keys reach it.
template <int kPerLane>
__device__ __forceinline__ bool rank_largest(const int (&key)[kPerLane], int EK, int* room, int* ids, float* weights, float* chosen_sum) {
  if (mutant(Mutant::kRouterTieHigher)) return false;
  const int lane = threadIdx.x % 32;
  int most = key[0];
#pragma unroll
  for (int i = 1; i < kPerLane; ++i) most = max(most, key[i]);
  int before = 0;
#pragma unroll 8
  for (int other = 0; other < 32; ++other) {
    const int its = __shfl_sync(0xffffffffu, most, other);
    before += its > most || (its == most && other < lane) ? 1 : 0;
  }
  const int least = __shfl_sync(0xffffffffu, most, __ffs(static_cast<int>(__ballot_sync(0xffffffffu, before == EK - 1))) - 1);
  int num = 0;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) num += key[i] >= least ? 1 : 0;
  const int end = warp_prefix(num);
  const int candidates = __shfl_sync(0xffffffffu, end, 31);
  if (candidates > 32 || least < 0) return false;
  int at = end - num;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i)
    if (key[i] >= least) room[at] = key[i], room[32 + at++] = lane + 32 * i;
  __syncwarp();  // the candidates are listed
  const int value = lane < candidates ? room[lane] : -1, index = lane < candidates ? room[32 + lane] : 0;
  int rank = 0;
#pragma unroll 1
  for (int c = 0; c < candidates; ++c) {
    const int its = room[c], its_index = room[32 + c];
    rank += its > value || (its == value && its_index < index) ? 1 : 0;
  }
  if (lane < candidates && rank < EK) ids[rank] = index, weights[rank] = __int_as_float(value);
  __syncwarp();  // the weights are written
  float sum = 0.0f;
#pragma unroll 1
  for (int k = 0; k < EK; ++k) sum += weights[k];
  __syncwarp();  // every lane has read them
  *chosen_sum = sum;
  return true;
}

// A warp routes a row: softmax, the EK largest, weights. `p`: room in shared memory for E floats.
__device__ __forceinline__ void route_row(const MoeShape& s, const bf16* logits, float* p, int layer, int* ids, float* weights,
                                          int* fault) {
  const int lane = threadIdx.x % 32;
  const bool in_registers = s.E <= 32 * kRoutedPerLane;
  float best = -INFINITY, kept[kRoutedPerLane];
  bool finite = true;
  const auto meet = [&](float logit) {
    finite = finite && isfinite(logit);
    best = max_or_nan(logit, best);
    return logit;
  };
  if (in_registers) {
#pragma unroll
    for (int i = 0; i < kRoutedPerLane; ++i) kept[i] = lane + 32 * i < s.E ? to_f32(logits[lane + 32 * i]) : 0.0f;
#pragma unroll
    for (int i = 0; i < kRoutedPerLane; ++i)
      if (lane + 32 * i < s.E) meet(kept[i]);
  } else {
    for (int e = lane; e < s.E; e += 32) p[e] = meet(to_f32(logits[e]));
  }
  if (!__all_sync(0xffffffffu, finite)) {
    for (int k = lane; k < s.EK; k += 32) ids[k] = k, weights[k] = NAN;
    if (lane == 0 && fault != nullptr && *fault == 0) *fault = layer << 2 | static_cast<int>(FaultKind::kRouterLogits);
    return;
  }
  best = warp_max(best);
  float sum = 0.0f;
  if (in_registers) {
#pragma unroll
    for (int i = 0; i < kRoutedPerLane; ++i) {
      if (lane + 32 * i >= s.E) break;
      kept[i] = expf(kept[i] - best);
      sum += kept[i];
    }
  } else {
    for (int e = lane; e < s.E; e += 32) {
      p[e] = expf(p[e] - best);
      sum += p[e];
    }
  }
  sum = warp_sum(sum);
  float chosen_sum;
  if (in_registers) {
    int key[kRoutedPerLane];
    bool in_range = true;
#pragma unroll
    for (int i = 0; i < kRoutedPerLane; ++i) in_range = in_range && (kept[i] > 0x1p-64f || lane + 32 * i >= s.E);
#pragma unroll
    for (int i = 0; i < kRoutedPerLane; ++i) key[i] = lane + 32 * i < s.E ? __float_as_int(divide_in_range(kept[i], sum)) : -1;
    if (!in_range) {
#pragma unroll 1
      for (int e = lane; e < s.E; e += 32) p[e] = expf(to_f32(logits[e]) - best) / sum;
#pragma unroll
      for (int i = 0; i < kRoutedPerLane; ++i) key[i] = lane + 32 * i < s.E ? __float_as_int(p[lane + 32 * i]) : -1;
    }
    __syncwarp();  // the room is free again
    if (s.E < 64 || s.EK > 32 || !rank_largest(key, s.EK, reinterpret_cast<int*>(p), ids, weights, &chosen_sum))
      chosen_sum = take_largest(key, s.EK, ids, weights);
  } else {
    for (int e = lane; e < s.E; e += 32) p[e] = p[e] / sum;
    chosen_sum = take_largest(p, s.E, s.EK, ids, weights);
  }
  __syncwarp();  // lane 0 has written the weights
  for (int k = lane; k < s.EK; k += 32)
    weights[k] = round_b16(s.renormalise && !mutant(Mutant::kRouterNoRenorm) ? weights[k] / chosen_sum : weights[k]);
}

// Exclusive sum over the block; *total gets the sum of all.
template <int kThreads>
__device__ __forceinline__ int block_prefix(int value, int* warp_sums, int* total) {
  const int sum = warp_prefix(value);
  if (threadIdx.x % 32 == 31) warp_sums[threadIdx.x / 32] = sum;
  __syncthreads();  // every warp's sum is written
  int before = sum - value, all = 0;
#pragma unroll
  for (int w = 0; w < kThreads / 32; ++w) {
    if (w < static_cast<int>(threadIdx.x / 32)) before += warp_sums[w];
    all += warp_sums[w];
  }
  __syncthreads();  // everybody has read the sums
  *total = all;
  return before;
}

// A block of kThreads sorts the pairs by expert. `next`: room for E counts, then the next free place of each expert.
template <int kThreads>
__device__ __forceinline__ void group_pairs(const int* ids, int pairs, int E, int EK, int* next, const MoeGrouping& g) {
  __shared__ int warp_sums[kThreads / 32];
  for (int e = threadIdx.x; e < E; e += kThreads) next[e] = 0;
  __syncthreads();  // the counts are zero
  for (int i = threadIdx.x; i < pairs; i += kThreads) atomicAdd(&next[checked(ids[i], E)], 1);
  __syncthreads();                       // the counts are complete
  int first = 0, active = 0, tiles = 0;  // before this round of experts
  for (int base = 0; base < E; base += kThreads) {
    const int e = base + static_cast<int>(threadIdx.x), count = e < E ? next[e] : 0;
    int num_rows, num_active, num_tiles;
    const int row = first + block_prefix<kThreads>(count, warp_sums, &num_rows);
    const int place = active + block_prefix<kThreads>(count > 0 ? 1 : 0, warp_sums, &num_active);
    int tile = tiles + block_prefix<kThreads>((count + kGroupTileRows - 1) / kGroupTileRows, warp_sums, &num_tiles);
    if (e < E) g.first[e] = next[e] = row;
    if (count > 0) g.active[place] = e, g.records[place] = make_int4(e, row, row + count, 0);
    for (int i = 0; i < count; i += kGroupTileRows) g.tiles[tile++] = make_int2(e, row + i);
    first += num_rows, active += num_active, tiles += num_tiles;
  }
  if (threadIdx.x == 0) {
    g.first[E] = first;
    *g.num_active = active;
    *g.num_tiles = tiles;
  }
  __syncthreads();  // every expert's first place is known
  for (int i = threadIdx.x; i < pairs; i += kThreads) {
    const int place = atomicAdd(&next[ids[i]], 1);
    g.place[i] = place;
    g.token[place] = i / EK;
  }
}

}  // namespace tetrad::cuda
