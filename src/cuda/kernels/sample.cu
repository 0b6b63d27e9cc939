// The kernel of sample (contract in sample.h): a threshold found in ever narrower ranges of scores, then a draw.
#include "base/error.h"
#include "cuda/kernels/cluster.cuh"
#include "cuda/kernels/device_math.cuh"
#include "cuda/kernels/sample.h"
#include "cuda/runtime/launch.cuh"

namespace tetrad::cuda {
namespace {

using Mass = unsigned long long;

constexpr int kThreads = 1024, kWarps = kThreads / 32, kBins = kThreads, kBinBits = 10;
constexpr unsigned kAllLanes = 0xffffffffu, kNoId = 0xffffffffu;
constexpr unsigned kNothingKey = 0x007fffffu;  // of minus infinity
// A weight has at most 41 bits. Shared memory adds 32 bits at a time: three parts, whose sums over a row stay below 2^32.
constexpr int kLowBits = 14, kMiddleBits = 13;

// Larger is better, -0 as +0.
__device__ __forceinline__ unsigned order_key(float score) {
  const unsigned bits = __float_as_uint(score == 0.0f ? 0.0f : score);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float score_of(unsigned key) { return __uint_as_float((key & 0x80000000u) != 0 ? key & 0x7fffffffu : ~key); }

// Ids with a key above `key` are kept, and of those that equal it the first `ties`.
struct KeptKeys {
  unsigned key = kNothingKey;
  Mass ties = 0;
};

// Bins over the keys in [low, high], the best first: of equal width in the score, or in the key.
struct Bins {
  unsigned low, high;
  int shift;  // of keys; negative: by score
  float top, scale;

  __device__ int of(float score, unsigned key) const {
    if (shift >= 0) return static_cast<int>((high - key) >> shift);
    return static_cast<int>(fminf((top - score) * scale, static_cast<float>(kBins - 1)));
  }
  __device__ bool hold(unsigned key) const { return key >= low && key <= high; }
};

struct SampleMemory {
  unsigned low[kBins], middle[kBins], high[kBins];  // parts of the masses of bins
  Mass masses[kBins];                               // of bins, in this block; read by the others
  Mass warp_scan[kWarps], warp_best[kWarps], warp_mass[kWarps];
  unsigned warp_low[kWarps], warp_high[kWarps], warp_unsound[kWarps], warp_count[kWarps], warp_ties[kWarps];
  Mass best, mass, ties;  // of this block; read by the others
  unsigned lowest, highest, unsound, count;
  int bin;
  Mass above;
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
__device__ __forceinline__ Mass warp_most(Mass x) {
  return warp_reduce(x, [](Mass a, Mass b) { return a > b ? a : b; });
}

// Sum of a warp's values in lanes up to this one.
__device__ __forceinline__ Mass warp_prefix(Mass x) {
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const Mass y = __shfl_up_sync(kAllLanes, x, offset);
    if (static_cast<int>(threadIdx.x % 32) >= offset) x += y;
  }
  return x;
}

// One choice by kPeers blocks. A warp owns 32 * items neighbouring ids.
template <int kPeers>
struct RowSample {
  SampleMemory& m;
  const SampleArgs& a;
  const DeviceChoice& c;
  float* scores;  // of this block, [kThreads * items]
  int rank, items, lane, warp;
  int block_first;  // id of the block's first score

  __device__ RowSample(SampleMemory& memory, const SampleArgs& args, const DeviceChoice& choice, float* scores_, int rank_, int items_)
      : m(memory),
        a(args),
        c(choice),
        scores(scores_),
        rank(rank_),
        items(items_),
        lane(static_cast<int>(threadIdx.x % 32)),
        warp(static_cast<int>(threadIdx.x / 32)),
        block_first(rank_ * kThreads * items_) {}

  __device__ int place(int i) const { return (warp * items + i) * 32 + lane; }
  // body(score, key), the same number of times in every lane.
  template <class Body>
  __device__ void for_scores(Body body) const {
#pragma unroll 2
    for (int i = 0; i < items; ++i) {
      const float score = scores[place(i)];
      body(score, order_key(score));
    }
  }
  __device__ Mass weight(float score, float best) const {
    return fixed_weight(exp_nonpositive(choice_exponent(score, best, c.inverse_temperature)));
  }

  // --- Scores ---

  // Returns the first id that is not sound in this thread's part.
  __device__ unsigned read_row() {
    const float* row = a.logits + static_cast<std::size_t>(checked(c.row, a.num_rows)) * a.V;
    const int words = (a.V + 31) / 32;
    const std::uint32_t* mask = c.mask >= 0 ? a.masks + static_cast<std::size_t>(checked(c.mask, a.num_masks)) * words : nullptr;
    unsigned unsound = kNoId;
#pragma unroll 4
    for (int i = 0; i < items; ++i) {
      const int at = place(i), id = block_first + at;
      float score = -INFINITY;
      if (id < a.V) {
        const float logit = row[id];
        if (!(logit <= kLargestScore)) unsound = min(unsound, static_cast<unsigned>(id));
        const bool allowed = mask == nullptr || (mask[id / 32] >> (id % 32) & 1u) != 0;
        if (id < a.limit && allowed) score = logit;
      }
      scores[at] = score;
    }
    return unsound;
  }

  __device__ void adjust() {
    const int size = kThreads * items;
    if (a.num_holes > 0) {
      __syncthreads();  // the scores are read
      for (int h = threadIdx.x; h < a.num_holes; h += kThreads) {
        const int at = checked(a.holes[h], a.V) - block_first;
        if (at >= 0 && at < size) scores[at] = -INFINITY;
      }
    }
    if (c.num_adjustments == 0) {
      if (a.num_holes > 0) __syncthreads();  // the holes are made
      return;
    }
    if (c.first_adjustment < 0 || c.num_adjustments < 0 || c.first_adjustment > a.num_adjustments - c.num_adjustments) __trap();
    __syncthreads();  // the scores are read, the holes are made
    for (int j = threadIdx.x; j < c.num_adjustments; j += kThreads) {
      const TokenAdjustment by = a.adjustments[c.first_adjustment + j];
      const int at = checked(by.id, a.V) - block_first;
      if (at >= 0 && at < size && by.id < a.limit) scores[at] = adjusted_score(scores[at], by, c.repetition, c.presence);
    }
    __syncthreads();  // the scores are adjusted
  }

  struct Facts {
    unsigned unsound;  // first id; kNoId: none
    unsigned best_key, best_id;
    unsigned lowest_key;  // of the ids above minus infinity
    unsigned count;       // of them
  };
  __device__ Facts facts(unsigned unsound) {
    Mass best = 0;  // key above, and below it the id reversed: of equal keys the lower id is the larger
    unsigned lowest = kNoId, count = 0;
    for (int i = 0; i < items; ++i) {
      const int at = place(i);
      const unsigned key = order_key(scores[at]), id = static_cast<unsigned>(block_first + at);
      if (key == kNothingKey) continue;
      const Mass candidate = static_cast<Mass>(key) << 32 | (mutant(Mutant::kSampleTieHigher) ? id : ~id);
      best = candidate > best ? candidate : best;
      lowest = min(lowest, key);
      ++count;
    }
    best = warp_most(best);
    lowest = __reduce_min_sync(kAllLanes, lowest), unsound = __reduce_min_sync(kAllLanes, unsound);
    count = __reduce_add_sync(kAllLanes, count);
    if (lane == 0) m.warp_best[warp] = best, m.warp_low[warp] = lowest, m.warp_unsound[warp] = unsound, m.warp_count[warp] = count;
    __syncthreads();  // every warp's facts are written
    best = warp_most(m.warp_best[lane]);
    lowest = __reduce_min_sync(kAllLanes, m.warp_low[lane]), unsound = __reduce_min_sync(kAllLanes, m.warp_unsound[lane]);
    count = __reduce_add_sync(kAllLanes, m.warp_count[lane]);
    if constexpr (kPeers > 1) {
      if (threadIdx.x == 0) m.best = best, m.lowest = lowest, m.unsound = unsound, m.count = count;
      cluster_sync();  // every block's facts are written
      const bool peer = lane < kPeers;
      best = warp_most(peer ? peer_value(&m.best, lane) : 0);
      lowest = __reduce_min_sync(kAllLanes, peer ? peer_value(&m.lowest, lane) : kNoId);
      unsound = __reduce_min_sync(kAllLanes, peer ? peer_value(&m.unsound, lane) : kNoId);
      count = __reduce_add_sync(kAllLanes, peer ? peer_value(&m.count, lane) : 0u);
    }
    const auto low_half = static_cast<unsigned>(best);
    return {unsound, static_cast<unsigned>(best >> 32), mutant(Mutant::kSampleTieHigher) ? low_half : ~low_half, lowest, count};
  }

  // --- Thresholds ---

  // By score where first, else by key. Bins by score spread weights better; bins by key need four passes at most.
  __device__ Bins bins_of(unsigned low, unsigned high, bool first, float least_score) const {
    const int shift = low < high ? max(0, 32 - __clz(static_cast<int>(high - low)) - kBinBits) : 0;
    if (!first || low > high) return {low, high, shift, 0, 0};
    const float top = score_of(high), range = top - fmaxf(score_of(low), least_score);
    return {low, high, -1, top, range > 1e-30f ? static_cast<float>(kBins - 1) / range : 0.0f};
  }

  // Counts (best key not given) or masses of the bins, all blocks together: of the bin of this thread, and of the bins up to it.
  __device__ void fill(const Bins& bins, bool by_mass, float best, Mass* in_bin, Mass* through, Mass* total) {
    m.low[threadIdx.x] = m.middle[threadIdx.x] = m.high[threadIdx.x] = 0;
    __syncthreads();  // the bins are empty
    for_scores([&](float score, unsigned key) {
      bool in = bins.hold(key);
      if (__ballot_sync(kAllLanes, in) == 0) return;
      const Mass w = !in ? 0 : by_mass ? weight(score, best) : 1;
      in = w != 0;
      const unsigned votes = __ballot_sync(kAllLanes, in);
      if (votes == 0) return;
      const int bin = in ? bins.of(score, key) : -1, leader = __ffs(static_cast<int>(votes)) - 1;
      unsigned low = static_cast<unsigned>(w) & ((1u << kLowBits) - 1u);
      unsigned middle = static_cast<unsigned>(w >> kLowBits) & ((1u << kMiddleBits) - 1u);
      unsigned high = static_cast<unsigned>(w >> (kLowBits + kMiddleBits));
      // Rows of few different scores are common: lanes that agree with the first add once.
      constexpr int kWorthwhile = 8;
      const int leading = __shfl_sync(kAllLanes, bin, leader);
      const bool agrees = in && bin == leading;
      if (__popc(__ballot_sync(kAllLanes, agrees)) >= kWorthwhile) {
        const unsigned l = __reduce_add_sync(kAllLanes, agrees ? low : 0u), mid = __reduce_add_sync(kAllLanes, agrees ? middle : 0u),
                       h = __reduce_add_sync(kAllLanes, agrees ? high : 0u);
        if (lane == leader) low = l, middle = mid, high = h;
        in = in && (!agrees || lane == leader);
      }
      if (!in) return;
      if (low != 0) atomicAdd(&m.low[bin], low);
      if (middle != 0) atomicAdd(&m.middle[bin], middle);
      if (high != 0) atomicAdd(&m.high[bin], high);
    });
    __syncthreads();  // the block's parts are complete
    m.masses[threadIdx.x] = m.low[threadIdx.x] + (static_cast<Mass>(m.middle[threadIdx.x]) << kLowBits) +
                            (static_cast<Mass>(m.high[threadIdx.x]) << (kLowBits + kMiddleBits));
    sync_row<kPeers>();  // every block's masses are written
    Mass sum = 0;
#pragma unroll
    for (int peer = 0; peer < kPeers; ++peer) sum += of_peer<kPeers>(m.masses + threadIdx.x, peer);
    *in_bin = sum;
    *through = block_prefix(sum, total);
  }

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

  // The bin in which the bins' sum reaches `wanted`, which the total does; what is wanted of it.
  __device__ int bin_reaching(Mass in_bin, Mass through, Mass* wanted) {
    if (through - in_bin < *wanted && *wanted <= through) m.bin = static_cast<int>(threadIdx.x), m.above = through - in_bin;
    __syncthreads();  // the bin is chosen
    *wanted -= m.above;
    return m.bin;
  }

  // The lowest and the highest key in the bin.
  __device__ void range_of(const Bins& bins, int bin, unsigned* low, unsigned* high) {
    unsigned lowest = kNoId, highest = 0;
    for_scores([&](float score, unsigned key) {
      if (!bins.hold(key) || bins.of(score, key) != bin) return;
      lowest = min(lowest, key), highest = max(highest, key);
    });
    lowest = __reduce_min_sync(kAllLanes, lowest), highest = __reduce_max_sync(kAllLanes, highest);
    if (lane == 0) m.warp_low[warp] = lowest, m.warp_high[warp] = highest;
    __syncthreads();  // every warp's range is written
    lowest = __reduce_min_sync(kAllLanes, m.warp_low[lane]), highest = __reduce_max_sync(kAllLanes, m.warp_high[lane]);
    if constexpr (kPeers > 1) {
      if (threadIdx.x == 0) m.lowest = lowest, m.highest = highest;
      cluster_sync();  // every block's range is written
      const bool peer = lane < kPeers;
      lowest = __reduce_min_sync(kAllLanes, peer ? peer_value(&m.lowest, lane) : kNoId);
      highest = __reduce_max_sync(kAllLanes, peer ? peer_value(&m.highest, lane) : 0u);
    }
    *low = lowest, *high = highest;
  }

  // The key at which the keys of the bins, from the best on, reach `wanted`; what is wanted of those that equal it.
  __device__ unsigned narrow(Bins bins, Mass in_bin, Mass through, bool by_mass, float best, Mass* wanted) {
    unsigned low, high;
    for (;;) {
      const int bin = bin_reaching(in_bin, through, wanted);
      range_of(bins, bin, &low, &high);
      if (low >= high) return high;
      bins = bins_of(low, high, false, 0);
      Mass total;
      fill(bins, by_mass, best, &in_bin, &through, &total);
    }
  }

  __device__ KeptKeys keep_top_k(const Facts& f) {
    if (c.top_k <= 0 || static_cast<unsigned>(c.top_k) >= f.count) return {};
    const Bins bins = bins_of(f.lowest_key, f.best_key, true, -INFINITY);
    Mass in_bin, through, total, wanted = static_cast<Mass>(c.top_k);
    fill(bins, false, 0, &in_bin, &through, &total);
    KeptKeys kept;
    kept.key = narrow(bins, in_bin, through, false, 0, &wanted);
    kept.ties = wanted;
    return kept;
  }

  __device__ KeptKeys keep_top_p(const Facts& f, const KeptKeys& of) {
    if (c.top_p == 0) return of;
    constexpr float kLeastExponent = -28.0f;  // below it weights are 0
    const float best = score_of(f.best_key);
    const unsigned low = max(f.lowest_key, of.key + 1);
    const Bins bins = bins_of(low, f.best_key, true, best + kLeastExponent / c.inverse_temperature);
    Mass in_bin, through, above;
    fill(bins, true, best, &in_bin, &through, &above);
    const Mass of_tie = of.ties > 0 ? weight(score_of(of.key), best) : 0;
    Mass wanted = top_p_target(above + of.ties * of_tie, c.top_p);
    if (wanted > above) return {of.key, (wanted - above + of_tie - 1) / of_tie};
    KeptKeys kept;
    kept.key = narrow(bins, in_bin, through, true, best, &wanted);
    const Mass each = weight(score_of(kept.key), best);
    kept.ties = (wanted + each - 1) / each;
    return kept;
  }

  // --- Draw ---

  __device__ void draw(const Facts& f, const KeptKeys& kept, ChosenToken* chosen) {
    const float best = score_of(f.best_key);
    const auto heavy = [&](float score) { return choice_exponent(score, best, c.inverse_temperature) >= c.least_exponent; };
    const float tie_score = score_of(kept.key);
    const Mass of_tie = kept.ties > 0 && heavy(tie_score) ? weight(tie_score, best) : 0;
    Mass mass = 0;
    unsigned ties = 0;
    for_scores([&](float score, unsigned key) {
      if (key > kept.key && heavy(score)) mass += weight(score, best);
      ties += key == kept.key ? 1u : 0u;
    });
    mass = warp_total(mass), ties = __reduce_add_sync(kAllLanes, ties);
    if (lane == 0) m.warp_mass[warp] = mass, m.warp_ties[warp] = ties;
    __syncthreads();  // every warp's sums are written

    // Of the parts in ascending order of id, one in each lane: the one in which the target lies, its ties before it, its mass before it.
    const auto locate = [&](Mass part_mass, Mass part_ties, Mass* ties_left, Mass* target, bool whole_row) {
      const Mass ties_before = warp_prefix(part_ties) - part_ties;
      const Mass left = *ties_left > ties_before ? *ties_left - ties_before : 0;
      const Mass sum = part_mass + (left < part_ties ? left : part_ties) * of_tie, through = warp_prefix(sum);
      if (whole_row) {
        *target = multiply_high(__shfl_sync(kAllLanes, through, 31), c.random);
        if (mutant(Mutant::kSampleDrawAtLeast) && *target > 0) --*target;
      }
      const int part = __ffs(static_cast<int>(__ballot_sync(kAllLanes, through > *target))) - 1;
      if (part < 0) __trap();  // the target is below the total
      *target -= __shfl_sync(kAllLanes, through - sum, part);
      *ties_left = __shfl_sync(kAllLanes, left, part);
      return part;
    };
    Mass ties_left = kept.ties, target = 0;
    if constexpr (kPeers > 1) {
      mass = warp_total(m.warp_mass[lane]);
      const Mass block_ties = warp_total(m.warp_ties[lane]);
      if (threadIdx.x == 0) m.mass = mass, m.ties = block_ties;
      cluster_sync();  // every block's sums are written
      const bool peer = lane < kPeers;
      if (locate(peer ? peer_value(&m.mass, lane) : 0, peer ? peer_value(&m.ties, lane) : 0, &ties_left, &target, true) != rank) return;
    }
    const int owner = locate(m.warp_mass[lane], m.warp_ties[lane], &ties_left, &target, kPeers == 1);

    const int span = 32 * items;
    for (int from = 0; from < span; from += kThreads) {
      const int i = from + static_cast<int>(threadIdx.x), at = owner * span + i;
      const float score = i < span ? scores[at] : -INFINITY;
      const unsigned key = i < span ? order_key(score) : 0u;
      const Mass tie = key == kept.key ? 1 : 0;
      Mass all_ties, all;
      const Mass rank_of_tie = block_prefix(tie, &all_ties);
      __syncthreads();  // the sums of ties are read
      const bool in = (key > kept.key || (tie != 0 && rank_of_tie <= ties_left)) && heavy(score);
      const Mass w = in ? weight(score, best) : 0, through = block_prefix(w, &all);
      if (through > target && through - w <= target) *chosen = {block_first + at, ChoiceOutcome::kChosen, 0.0f};
      if (all > target) return;
      target -= all;
      ties_left -= all_ties < ties_left ? all_ties : ties_left;
      __syncthreads();  // the sums of weights are read
    }
    __trap();  // the target is below the warp's mass
  }

  __device__ void choose(ChosenToken* chosen) {
    const unsigned unsound = read_row();
    adjust();
    const Facts f = facts(unsound);
    ChosenToken early;
    if (f.unsound != kNoId)
      early = {static_cast<int>(f.unsound), ChoiceOutcome::kUnsound, a.logits[static_cast<std::size_t>(c.row) * a.V + f.unsound]};
    else if (c.forced >= 0)
      early = {c.forced, ChoiceOutcome::kChosen, 0.0f};
    else if (f.count == 0)
      early = {-1, c.mask >= 0 ? ChoiceOutcome::kNotAllowed : ChoiceOutcome::kNothing, 0.0f};
    else if (c.inverse_temperature == 0.0f)
      early = {static_cast<int>(f.best_id), ChoiceOutcome::kChosen, 0.0f};
    else if (score_of(f.best_key) > kLargestScore)
      early = {static_cast<int>(f.best_id), ChoiceOutcome::kToInfinity, 0.0f};
    else
      return draw(f, keep_top_p(f, keep_top_k(f)), chosen);
    if (rank == 0 && threadIdx.x == 0) *chosen = early;
  }
};

template <int kPeers>
__device__ __forceinline__ void sample_row(const SampleArgs& a, int items, bool in_shared, std::size_t scratch_floats) {
  extern __shared__ float block_scores[];
  __shared__ SampleMemory m;
  const int i = static_cast<int>(blockIdx.x) / kPeers, rank = static_cast<int>(blockIdx.x) % kPeers;
  const DeviceChoice choice = a.choices[i];
  float* scores = in_shared ? block_scores : a.scratch + i * scratch_floats + static_cast<std::size_t>(rank) * kThreads * items;
  RowSample<kPeers>(m, a, choice, scores, rank, items).choose(a.chosen + i);
  if constexpr (kPeers > 1) cluster_sync();  // nobody reads this block's memory any more
}

__global__ void __launch_bounds__(kThreads, 1) sample_kernel(const SampleArgs a, int items, bool in_shared, std::size_t scratch_floats) {
  wait_for_previous();
  sample_row<1>(a, items, in_shared, scratch_floats);
}

__global__ void TETRAD_CLUSTER(kClusterBlocks) __launch_bounds__(kThreads, 1)
    sample_cluster_kernel(const SampleArgs a, int items, bool in_shared, std::size_t scratch_floats) {
  wait_for_previous();
  sample_row<kClusterBlocks>(a, items, in_shared, scratch_floats);
}

}  // namespace

SamplePlan sample_plan(int V, const Stream& stream) {
  TETRAD_CHECK(V >= 1 && V <= kSampleMostIds, "a vocabulary of {} ids, at most {} are sampled from", V, kSampleMostIds);
  SamplePlan plan;
  plan.peers = stream.overlaps() ? kClusterBlocks : 1;  // both need compute capability 9.0
  plan.items = ceil_div(V, plan.peers * kThreads);
  const std::size_t floats = static_cast<std::size_t>(plan.items) * kThreads, bytes = floats * sizeof(float);
  int device = 0, most = 0;
  check(cudaGetDevice(&device), "asking for the current device");
  check(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device), "asking for the shared memory of device {}",
        device);
  if (bytes + sizeof(SampleMemory) <= static_cast<std::size_t>(most)) {
    plan.shared_bytes = bytes;
    allow_shared("sample", plan.peers > 1 ? sample_cluster_kernel : sample_kernel, bytes);
  } else {
    plan.scratch_floats = floats * static_cast<std::size_t>(plan.peers);
  }
  return plan;
}

void sample(const SampleArgs& a, const SamplePlan& plan, const Stream& stream) {
  TETRAD_CHECK(a.V >= 1 && a.V <= kSampleMostIds && a.limit >= 0 && a.limit <= a.V, "sample: V {}, limit {}", a.V, a.limit);
  TETRAD_CHECK(plan.scratch_floats == 0 || a.scratch != nullptr, "sample: no scratch for {} floats", plan.scratch_floats);
  const auto blocks = static_cast<unsigned>(a.num_choices * plan.peers);
  const double bytes = 4.0 * a.V * a.num_choices;
  launch({"sample", bytes, 0}, plan.peers > 1 ? sample_cluster_kernel : sample_kernel, {dim3(blocks), dim3(kThreads), plan.shared_bytes},
         stream, a, plan.items, plan.shared_bytes > 0, plan.scratch_floats);
}

}  // namespace tetrad::cuda
