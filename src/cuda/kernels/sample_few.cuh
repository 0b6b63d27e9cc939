#pragma once
// The end of sample where few scores can be chosen: they go to the first block in order of id, which sorts them.
#include "cuda/kernels/sample_scores.cuh"

namespace tetrad::cuda::sampling {

// The scores with a key of at least `least` go to the first block's list if there is room for all; the same answer in every block.
template <int kPeers>
__device__ bool gather_few(RowScores<kPeers>& r, unsigned least, int* num_few) {
  SampleMemory& m = r.m;
  unsigned count = 0;
  if (r.warp_best >= least) r.for_four_keys([&](unsigned key) { count += key >= least ? 1u : 0u; });
  count = __reduce_add_sync(kAllLanes, count);
  const int row_warp = r.rank * kWarps + r.warp;
  if constexpr (kPeers > 1) {
    if (r.lane < kPeers) put_peer_word(m.counts + row_warp, r.lane, count);
  } else {
    if (r.lane == 0) m.counts[row_warp] = count;
  }
  sync_row<kPeers>();  // every block's counts are written
  unsigned before = 0, all = 0;
#pragma unroll
  for (int i = 0; i < kPeers; ++i) {
    const unsigned of_warp = m.counts[i * 32 + r.lane];
    all += of_warp, before += i * 32 + r.lane < row_warp ? of_warp : 0;
  }
  all = __reduce_add_sync(kAllLanes, all), before = __reduce_add_sync(kAllLanes, before);
  *num_few = static_cast<int>(all);
  if (all > kFewScores) return false;
#pragma unroll 1
  for (int i = 0; count > 0 && i < r.items / 4; ++i) {
    const uint4 four = r.four_keys(i);
    const unsigned keys[4] = {four.x, four.y, four.z, four.w};
    unsigned mine = 0;
#pragma unroll
    for (int j = 0; j < 4; ++j) mine += keys[j] >= least ? 1u : 0u;
    if (__ballot_sync(kAllLanes, mine != 0) == 0) continue;
    const unsigned through = warp_prefix(mine);
    unsigned at = before + through - mine;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (keys[j] < least) continue;
      const auto id = static_cast<unsigned>(r.block_first + r.place(i) + j);
      if constexpr (kPeers > 1)
        put_peer_word(m.few.keys + at, 0, keys[j]), put_peer_word(m.few.ids + at, 0, id);
      else
        m.few.keys[at] = keys[j], m.few.ids[at] = id;
      ++at;
    }
    before += __shfl_sync(kAllLanes, through, 31);
  }
  sync_row<kPeers>();  // the list is complete
  return true;
}

// Thread i has element i of `size` (a power of two of at least 32), and gets the i-th of them from the largest on.
__device__ __forceinline__ unsigned sort_descending(unsigned key, int size, unsigned* exchanged) {
  const int i = static_cast<int>(threadIdx.x);
#pragma unroll 1
  for (int run = 2; run <= size; run *= 2) {
#pragma unroll 1
    for (int stride = run / 2; stride > 0; stride /= 2) {
      unsigned other = 0;
      if (stride >= 32) {
        if (i < size) exchanged[i] = key;
        __syncthreads();  // every key is written
        if (i < size) other = exchanged[i ^ stride];
        __syncthreads();  // every key is read
      } else if (i < size) {
        other = __shfl_xor_sync(kAllLanes, key, stride);
      }
      key = ((i & stride) == 0) == ((i & run) == 0) ? max(key, other) : min(key, other);
    }
  }
  return i < size ? key : 0u;
}

// The choice from a list that holds whatever top-k and top-p keep, by one block. mass: of all scores that top-p is of; 0: of the list.
template <int kPeers>
__device__ void choose_of_few(RowScores<kPeers>& r, int num_few, Mass mass, ChosenToken* chosen) {
  FewMemory& m = r.m.few;
  const DeviceChoice& c = r.c;
  const int i = static_cast<int>(threadIdx.x);
  int size = 32;
  while (size < num_few) size *= 2;
  const unsigned sorted = sort_descending(i < num_few ? m.keys[i] : 0u, size, m.sorted);
  const int top = c.top_k > 0 ? min(c.top_k, num_few) : num_few;
  if (c.top_p == 0) {
    if (i == top - 1) m.kept_key = sorted, m.num_kept = top;
  } else {
    Mass all;
    const Mass w = i < top ? r.weight(score_of(sorted)) : 0, through = r.block_prefix(w, &all);
    const Mass wanted = top_p_target(mass > 0 ? mass : all, c.top_p);
    if (through - w < wanted && wanted <= through) m.kept_key = sorted, m.num_kept = i + 1;
  }
  __syncthreads();  // what is kept is known, sums are read
  const unsigned kept_key = m.kept_key;
  const Mass ties = static_cast<Mass>(m.num_kept - __syncthreads_count(sorted > kept_key));
  Mass all, all_ties;
  const Mass w = r.drawn_weight(i < num_few ? m.keys[i] : 0u, kept_key, ties, &all_ties), through = r.block_prefix(w, &all);
  const Mass target = draw_target(all, c.random);
  if (target >= all) __trap();  // the target is below the total
  if (through > target && through - w <= target) *chosen = {static_cast<int>(m.ids[i]), ChoiceOutcome::kChosen, 0.0f};
}

}  // namespace tetrad::cuda::sampling
