#pragma once
// The thresholds of sample for any row: found in ever narrower ranges of scores, whose counts or masses lie in bins.
#include "cuda/kernels/sample_scores.cuh"

namespace tetrad::cuda::sampling {

// A weight has at most 41 bits. Shared memory adds 32 bits at a time: three parts, whose sums over a row stay below 2^32.
inline constexpr int kLowBits = 14, kMiddleBits = 13;

// Ids with a key above `key` are kept, and of those that equal it the first `ties`.
struct KeptKeys {
  unsigned key = kNothingKey;
  Mass ties = 0;
};

// Bins over the keys in [low, high], the best first: of equal width in the score, or in the key.
struct Bins {
  static constexpr int kBits = 10;
  unsigned low, high;
  int shift;  // of keys; negative: by score
  float top, scale;

  // Bins by score spread weights better; bins by key need four passes at most.
  static __device__ Bins by_key(unsigned low, unsigned high) {
    return {low, high, low < high ? max(0, 32 - __clz(static_cast<int>(high - low)) - kBits) : 0, 0, 0};
  }
  static __device__ Bins by_score(unsigned low, unsigned high, float least_score) {
    if (low > high) return by_key(low, high);
    const float top = score_of(high), range = top - fmaxf(score_of(low), least_score);
    return {low, high, -1, top, range > 1e-30f ? static_cast<float>(kBins - 1) / range : 0.0f};
  }
  // Does not fall where the key falls.
  __device__ int of(unsigned key) const {
    if (shift >= 0) return static_cast<int>((high - key) >> shift);
    return static_cast<int>(fminf((top - score_of(key)) * scale, static_cast<float>(kBins - 1)));
  }
  __device__ bool hold(unsigned key) const { return key >= low && key <= high; }
};

template <int kPeers>
struct BinnedScores {
  RowScores<kPeers>& r;
  BinMemory& m;
  bool by_mass;  // else by count
  Bins bins = {};
  Mass in_bin = 0, through = 0, total = 0;  // of the bin of this thread, of the bins up to it, of all

  __device__ BinnedScores(RowScores<kPeers>& scores, bool mass) : r(scores), m(scores.m.bins), by_mass(mass) {}

  // The bins' sums, all blocks together.
  __device__ void fill() {
    m.low[threadIdx.x] = m.middle[threadIdx.x] = m.high[threadIdx.x] = 0;
    __syncthreads();  // the bins are empty
    if (r.warp_best >= bins.low) r.for_keys([&](unsigned key) { add(key); });
    __syncthreads();  // the block's parts are complete
    m.masses[threadIdx.x] = m.low[threadIdx.x] + (static_cast<Mass>(m.middle[threadIdx.x]) << kLowBits) +
                            (static_cast<Mass>(m.high[threadIdx.x]) << (kLowBits + kMiddleBits));
    sync_row<kPeers>();  // every block's masses are written
    Mass sum = 0;
#pragma unroll
    for (int peer = 0; peer < kPeers; ++peer) sum += of_peer<kPeers>(m.masses + threadIdx.x, peer);
    in_bin = sum;
    through = r.block_prefix(sum, &total);
  }

  // All lanes call it.
  __device__ void add(unsigned key) {
    bool in = bins.hold(key);
    if (__ballot_sync(kAllLanes, in) == 0) return;
    const Mass w = !in ? 0 : by_mass ? r.weight(score_of(key)) : 1;
    in = w != 0;
    const unsigned votes = __ballot_sync(kAllLanes, in);
    if (votes == 0) return;
    const int at = in ? bins.of(key) : -1, leader = __ffs(static_cast<int>(votes)) - 1;
    unsigned low = static_cast<unsigned>(w) & ((1u << kLowBits) - 1u);
    unsigned middle = static_cast<unsigned>(w >> kLowBits) & ((1u << kMiddleBits) - 1u);
    unsigned high = static_cast<unsigned>(w >> (kLowBits + kMiddleBits));
    // Rows of few different scores are common: lanes that agree with the first add once.
    constexpr int kWorthwhile = 8;
    const int leading = __shfl_sync(kAllLanes, at, leader);
    const bool agrees = in && at == leading;
    if (__popc(__ballot_sync(kAllLanes, agrees)) >= kWorthwhile) {
      const unsigned l = __reduce_add_sync(kAllLanes, agrees ? low : 0u), mid = __reduce_add_sync(kAllLanes, agrees ? middle : 0u),
                     h = __reduce_add_sync(kAllLanes, agrees ? high : 0u);
      if (r.lane == leader) low = l, middle = mid, high = h;
      in = in && (!agrees || r.lane == leader);
    }
    if (!in) return;
    if (low != 0) atomicAdd(&m.low[at], low);
    if (middle != 0) atomicAdd(&m.middle[at], middle);
    if (high != 0) atomicAdd(&m.high[at], high);
  }

  // The bin in which the bins' sum reaches `wanted`, which the total does; what is wanted of it.
  __device__ int reach(Mass* wanted) {
    if (through - in_bin < *wanted && *wanted <= through) m.bin = static_cast<int>(threadIdx.x), m.above = through - in_bin;
    __syncthreads();  // the bin is chosen
    *wanted -= m.above;
    return m.bin;
  }

  // The lowest and the highest key in the bin.
  __device__ void range(int bin, unsigned* low, unsigned* high) {
    unsigned lowest = kNoId, highest = 0;
    r.for_four_keys([&](unsigned key) {
      if (!bins.hold(key) || bins.of(key) != bin) return;
      lowest = min(lowest, key), highest = max(highest, key);
    });
    SampleMemory& all = r.m;
    lowest = __reduce_min_sync(kAllLanes, lowest), highest = __reduce_max_sync(kAllLanes, highest);
    if (r.lane == 0) all.warp_low[r.warp] = lowest, all.warp_high[r.warp] = highest;
    __syncthreads();  // every warp's range is written
    lowest = __reduce_min_sync(kAllLanes, all.warp_low[r.lane]), highest = __reduce_max_sync(kAllLanes, all.warp_high[r.lane]);
    if constexpr (kPeers > 1) {
      if (threadIdx.x == 0) m.lowest = lowest, m.highest = highest;
      cluster_sync();  // every block's range is written
      const bool peer = r.lane < kPeers;
      lowest = __reduce_min_sync(kAllLanes, peer ? peer_value(&m.lowest, r.lane) : kNoId);
      highest = __reduce_max_sync(kAllLanes, peer ? peer_value(&m.highest, r.lane) : 0u);
    }
    *low = lowest, *high = highest;
  }

  // The key at which the keys, from the best on, reach what wanted_of(total) says, and what is wanted of those that equal it. False where
  // all together do not.
  template <class WantedOf>
  __device__ bool find(const Bins& all, WantedOf wanted_of, unsigned* key, Mass* wanted) {
    bins = all;
    for (bool first = true;; first = false) {
      fill();
      if (first) *wanted = wanted_of(total);
      if (*wanted > total) {
        sync_row<kPeers>();  // the bins are read
        return false;
      }
      unsigned low;
      range(reach(wanted), &low, key);
      if (low >= *key) return true;
      bins = Bins::by_key(low, *key);
    }
  }
};

// --- The draw from all scores ---

// Of the parts in ascending order of id, one in each lane: the one in which the target lies, its ties before it, its mass before it.
__device__ __forceinline__ int part_of_target(Mass mass, Mass ties, Mass of_tie, Mass* ties_left, Mass* target, const DeviceChoice* first) {
  const Mass ties_before = warp_prefix(ties) - ties;
  const Mass left = *ties_left > ties_before ? *ties_left - ties_before : 0;
  const Mass sum = mass + (left < ties ? left : ties) * of_tie, through = warp_prefix(sum);
  if (first != nullptr) *target = draw_target(__shfl_sync(kAllLanes, through, 31), first->random);
  const int part = __ffs(static_cast<int>(__ballot_sync(kAllLanes, through > *target))) - 1;
  if (part < 0) __trap();  // the target is below the total
  *target -= __shfl_sync(kAllLanes, through - sum, part);
  *ties_left = __shfl_sync(kAllLanes, left, part);
  return part;
}

template <int kPeers>
__device__ void draw(RowScores<kPeers>& r, const KeptKeys& kept, ChosenToken* chosen) {
  SampleMemory& m = r.m;
  const float tie_score = score_of(kept.key);
  const Mass of_tie = kept.ties > 0 && r.heavy(tie_score) ? r.weight(tie_score) : 0;
  Mass mass = 0;
  unsigned ties = 0;
  r.for_keys([&](unsigned key) {
    if (key > kept.key && r.heavy(score_of(key))) mass += r.weight(score_of(key));
    ties += key == kept.key ? 1u : 0u;
  });
  mass = warp_total(mass), ties = __reduce_add_sync(kAllLanes, ties);
  if (r.lane == 0) m.warp_mass[r.warp] = mass, m.warp_part[r.warp] = ties;
  __syncthreads();  // every warp's sums are written

  Mass ties_left = kept.ties, target = 0;
  const DeviceChoice* first = &r.c;
  if constexpr (kPeers > 1) {
    mass = warp_total(m.warp_mass[r.lane]);
    const Mass block_ties = warp_total(m.warp_part[r.lane]);
    if (threadIdx.x == 0) m.mass = mass, m.part = block_ties;
    cluster_sync();  // every block's sums are written
    const bool peer = r.lane < kPeers;
    const Mass peer_mass = peer ? peer_value(&m.mass, r.lane) : 0, peer_ties = peer ? peer_value(&m.part, r.lane) : 0;
    if (part_of_target(peer_mass, peer_ties, of_tie, &ties_left, &target, first) != r.rank) return;
    first = nullptr;
  }
  const int owner = part_of_target(m.warp_mass[r.lane], m.warp_part[r.lane], of_tie, &ties_left, &target, first);

  const int span = 32 * r.items;
  for (int from = 0; from < span; from += kThreads) {
    const int i = from + static_cast<int>(threadIdx.x), at = owner * span + i;
    const unsigned key = i < span ? r.keys[at] : 0u;
    Mass all_ties, all;
    const Mass w = r.drawn_weight(key, kept.key, ties_left, &all_ties), through = r.block_prefix(w, &all);
    if (through > target && through - w <= target) *chosen = {r.block_first + at, ChoiceOutcome::kChosen, 0.0f};
    if (all > target) return;
    target -= all;
    ties_left -= all_ties < ties_left ? all_ties : ties_left;
    __syncthreads();  // the sums of weights are read
  }
  __trap();  // the target is below the warp's mass
}

}  // namespace tetrad::cuda::sampling
