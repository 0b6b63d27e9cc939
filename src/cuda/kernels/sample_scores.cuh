#pragma once
// The scores of a row as sample keeps them: one choice by a block, or by the blocks of a cluster, each with a part of the ids.
#include "cuda/kernels/sample.h"
#include "cuda/kernels/sample_memory.cuh"

namespace tetrad::cuda::sampling {

// A warp owns 32 * items neighbouring ids, and a lane four neighbours of every 128.
template <int kPeers>
struct RowScores {
  static constexpr int kRowWarps = kPeers * kWarps, kGroupLanes = 32 * kRowWarps / kGroups;
  static_assert(kGroupLanes >= 1 && kGroupLanes <= 32 && kRowWarps <= kGroups);

  SampleMemory& m;
  const SampleArgs& a;
  const DeviceChoice& c;
  unsigned* keys;  // of the scores of this block, [kThreads * items]
  int rank, items, lane, warp;
  int block_first;         // id of the block's first score
  unsigned warp_best = 0;  // key
  unsigned best_key = 0;   // of the row
  bool sound = true;

  __device__ RowScores(SampleMemory& memory, const SampleArgs& args, const DeviceChoice& choice, unsigned* keys_, int rank_, int items_)
      : m(memory),
        a(args),
        c(choice),
        keys(keys_),
        rank(rank_),
        items(items_),
        lane(static_cast<int>(threadIdx.x % 32)),
        warp(static_cast<int>(threadIdx.x / 32)),
        block_first(rank_ * kThreads * items_) {}

  __device__ int place(int i) const { return warp * items * 32 + i * 128 + lane * 4; }
  __device__ uint4 four_keys(int i) const { return *reinterpret_cast<const uint4*>(keys + place(i)); }
  // body(key), the same number of times in every lane. for_keys: where it is long; less code, which comes from memory in every step.
  template <class Body>
  __device__ void for_four_keys(Body body) const {
#pragma unroll 4
    for (int i = 0; i < items / 4; ++i) {
      const uint4 four = four_keys(i);
      body(four.x), body(four.y), body(four.z), body(four.w);
    }
  }
  template <class Body>
  __device__ void for_keys(Body body) const {
#pragma unroll 4
    for (int i = 0; i < items; ++i) body(keys[(warp * items + i) * 32 + lane]);
  }
  __device__ Mass weight(float score) const {
    const float exponent = choice_exponent(score, score_of(best_key), c.inverse_temperature);
    return exponent < kLeastExponent ? 0 : fixed_weight(exp_nonpositive(exponent));  // warps skip scores far below the best
  }
  __device__ bool heavy(float score) const { return choice_exponent(score, score_of(best_key), c.inverse_temperature) >= c.least_exponent; }

  // Sum of the values of threads up to this one, and of all. Every use has a barrier of the block between it and the next.
  __device__ Mass block_prefix(Mass x, Mass* total) {
    const Mass through = warp_prefix(x);
    if (lane == 31) m.warp_scan[warp] = through;
    __syncthreads();  // every warp's sum is written
    const Mass warps = warp_prefix(m.warp_scan[lane]);
    const Mass before = __shfl_sync(kAllLanes, warps, (warp + 31) % 32);
    *total = __shfl_sync(kAllLanes, warps, 31);
    return through + (warp == 0 ? 0 : before);
  }

  // Of one key in each thread, in ascending order of id: its weight in the draw, 0 where it is not kept. One use, then a block_prefix.
  __device__ Mass drawn_weight(unsigned key, unsigned kept_key, Mass ties_left, Mass* all_ties) {
    const Mass tie = key == kept_key ? 1 : 0, rank_of_tie = block_prefix(tie, all_ties);
    __syncthreads();  // the sums of ties are read
    const bool in = (key > kept_key || (tie != 0 && rank_of_tie <= ties_left)) && heavy(score_of(key));
    return in ? weight(score_of(key)) : 0;
  }

  __device__ const float* row() const { return a.logits + static_cast<std::size_t>(checked(c.row, a.num_rows)) * a.V; }

  // --- Scores ---

  __device__ void load() {
    read_row();
    if (a.num_holes > 0 || c.num_adjustments > 0) __syncthreads();  // the scores are read
    make_holes();
    adjust();
    exchange();
  }

  __device__ void read_row() {
    const float* logits = row();
    const int words = (a.V + 31) / 32;
    const std::uint32_t* mask = c.mask >= 0 ? a.masks + static_cast<std::size_t>(checked(c.mask, a.num_masks)) * words : nullptr;
    const auto take = [&](int at, const float4& x) {
      const int id = block_first + at;
      const unsigned allowed = mask != nullptr && id < a.V ? mask[id / 32] >> (id % 32) : 0xfu;
      const auto key_of = [&](float logit, int j) {
        sound = sound && logit <= kLargestScore;
        return id + j < a.limit && (allowed >> j & 1u) != 0 ? order_key(logit) : kNothingKey;
      };
      *reinterpret_cast<uint4*>(keys + at) = {key_of(x.x, 0), key_of(x.y, 1), key_of(x.z, 2), key_of(x.w, 3)};
    };
    if (a.V % 4 == 0 && reinterpret_cast<std::uintptr_t>(a.logits) % 16 == 0) {
#pragma unroll 4
      for (int i = 0; i < items / 4; ++i) {
        const int id = block_first + place(i);
        take(place(i), id < a.V ? *reinterpret_cast<const float4*>(logits + id) : float4{-INFINITY, -INFINITY, -INFINITY, -INFINITY});
      }
    } else {
#pragma unroll 1
      for (int i = 0; i < items / 4; ++i) {
        const int id = block_first + place(i);
        const auto at = [&](int j) { return id + j < a.V ? logits[id + j] : -INFINITY; };
        take(place(i), {at(0), at(1), at(2), at(3)});
      }
    }
  }

  __device__ void make_holes() {
    if (a.num_holes == 0) return;
    for (int h = threadIdx.x; h < a.num_holes; h += kThreads) {
      const int at = checked(a.holes[h], a.V) - block_first;
      if (at >= 0 && at < kThreads * items) keys[at] = kNothingKey;
    }
    __syncthreads();  // the holes are made
  }

  __device__ void adjust() {
    if (c.num_adjustments == 0) return;
    if (c.first_adjustment < 0 || c.num_adjustments < 0 || c.first_adjustment > a.num_adjustments - c.num_adjustments) __trap();
    for (int j = threadIdx.x; j < c.num_adjustments; j += kThreads) {
      const TokenAdjustment by = a.adjustments[c.first_adjustment + j];
      const int at = checked(by.id, a.V) - block_first;
      if (at < 0 || at >= kThreads * items || by.id >= a.limit) continue;
      keys[at] = order_key(adjusted_score(score_of(keys[at]), by, c.repetition, c.presence));
    }
    __syncthreads();  // the scores are adjusted
  }

  // --- What every block learns of the row ---

  __device__ void exchange() {
    unsigned best = 0, low = ~0u;
    for_four_keys([&](unsigned key) { best = max(best, key), low = min(low, key - kLeastKey); });  // minus infinity wraps to the top
    low = __reduce_min_sync(kAllLanes, low), warp_best = __reduce_max_sync(kAllLanes, best);
#pragma unroll
    for (int offset = kGroupLanes / 2; offset > 0; offset /= 2) best = max(best, __shfl_xor_sync(kAllLanes, best, offset));
    if (__any_sync(kAllLanes, !sound)) best = kUnsoundKey;
    const int row_warp = rank * kWarps + warp, row_thread = rank * kThreads + static_cast<int>(threadIdx.x);
    if (threadIdx.x == 0) m.of_rank = kUnsoundKey;
    if constexpr (kPeers > 1) {
      cluster_wait_started();
      if (lane < kPeers) put_peer_word(m.groups + row_warp, lane, best), put_peer_word(m.lows + row_warp, lane, low);
    } else {
      if (lane % kGroupLanes == 0) m.groups[row_thread / kGroupLanes] = best;
      if (lane == 0) m.lows[row_warp] = low;
    }
    sync_row<kPeers>();  // every block's groups are written
    best = 0;
#pragma unroll
    for (int i = 0; i < kGroups / 32; ++i) best = max(best, m.groups[i * 32 + lane]);
    best_key = __reduce_max_sync(kAllLanes, best);
    sound = best_key != kUnsoundKey;
  }

  __device__ unsigned lowest_key() const {
    unsigned low = ~0u;
#pragma unroll
    for (int i = 0; i < kPeers; ++i) low = min(low, m.lows[i * 32 + lane]);
    return __reduce_min_sync(kAllLanes, low) + kLeastKey;
  }

  // A key that at least `many` <= kGroups scores reach where there are so many: that of this rank among the groups' best.
  __device__ unsigned reached_by(int many) {
    const int group = static_cast<int>(threadIdx.x) / 4, part = static_cast<int>(threadIdx.x) % 4;
    const unsigned mine = m.groups[group];
    const auto* all = reinterpret_cast<const uint4*>(m.groups);
    int above = 0;
#pragma unroll 4
    for (int i = 0; i < kGroups / 16; ++i) {
      const uint4 other = all[i * 4 + part];
      above += (other.x > mine) + (other.y > mine) + (other.z > mine) + (other.w > mine);
    }
    above += __shfl_xor_sync(kAllLanes, above, 1);
    above += __shfl_xor_sync(kAllLanes, above, 2);
    const unsigned least = __reduce_min_sync(kAllLanes, above < many ? mine : kUnsoundKey);
    if (lane == 0) atomicMin(&m.of_rank, least);
    __syncthreads();  // the smallest of them is known
    return max(m.of_rank, kLeastKey);
  }

  // The weight of all scores, and of those with a key of at least `least`.
  __device__ void weigh(unsigned least, Mass* all, Mass* above) {
    Mass of_all = 0, of_above = 0;
    for_keys([&](unsigned key) {
      const Mass w = weight(score_of(key));
      of_all += w, of_above += key >= least ? w : 0;
    });
    of_all = warp_total(of_all), of_above = warp_total(of_above);
    if (lane == 0) m.warp_mass[warp] = of_all, m.warp_part[warp] = of_above;
    __syncthreads();  // every warp's weights are written
    of_all = warp_total(m.warp_mass[lane]), of_above = warp_total(m.warp_part[lane]);
    if constexpr (kPeers > 1) {
      if (threadIdx.x == 0) m.mass = of_all, m.part = of_above;
      cluster_sync();  // every block's weights are written
      const bool peer = lane < kPeers;
      of_all = warp_total(peer ? peer_value(&m.mass, lane) : 0), of_above = warp_total(peer ? peer_value(&m.part, lane) : 0);
    }
    *all = of_all, *above = of_above;
  }

  // The first id whose place in this block passes, the same in every block; the last one on request.
  template <class Passes>
  __device__ unsigned first_id(Passes passes, bool last) {
    unsigned first = kNoId;
#pragma unroll 1
    for (int i = 0; i < items; ++i) {
      const int at = (warp * items + i) * 32 + lane;
      const auto id = static_cast<unsigned>(block_first + at);
      if (passes(at)) first = min(first, last ? ~id : id);
    }
    first = __reduce_min_sync(kAllLanes, first);
    if (lane == 0) m.warp_low[warp] = first;
    __syncthreads();  // every warp's first is written
    first = __reduce_min_sync(kAllLanes, m.warp_low[lane]);
    if constexpr (kPeers > 1) {
      if (threadIdx.x == 0) m.first = first;
      cluster_sync();  // every block's first is written
      first = __reduce_min_sync(kAllLanes, lane < kPeers ? peer_value(&m.first, lane) : kNoId);
    }
    return last ? ~first : first;
  }
  __device__ int first_unsound() {
    const float* logits = row();
    return static_cast<int>(
        first_id([&](int at) { return block_first + at < a.V && !(logits[block_first + at] <= kLargestScore); }, false));
  }
  __device__ int first_best() {
    const bool here = warp_best == best_key;
    return static_cast<int>(first_id([&](int at) { return here && keys[at] == best_key; }, mutant(Mutant::kSampleTieHigher)));
  }
};

}  // namespace tetrad::cuda::sampling
