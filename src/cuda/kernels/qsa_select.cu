// The selection of qsa (contract in qsa.h): exact, by a threshold found in ever narrower ranges of scores.
#include "cuda/kernels/cluster.cuh"
#include "cuda/kernels/device_math.cuh"
#include "cuda/kernels/qsa.h"
#include "cuda/runtime/launch.cuh"

namespace tetrad::cuda {
namespace {

constexpr int kBinBits = 10, kBins = 1 << kBinBits;
constexpr unsigned kAllLanes = 0xffffffffu, kNanKey = 0xffffffffu;

// Larger is better: NaN above everything, -0 as +0. No score has key 0.
__device__ __forceinline__ unsigned order_key(float score) {
  if (score != score) return kNanKey;
  const unsigned bits = __float_as_uint(score == 0.0f ? 0.0f : score);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

template <int kWarps>
struct SelectMemory {
  int histogram[2][kBins];  // of two passes in turn: other blocks still read the one while the other is filled
  int warp_sums[kWarps];    // of bins
  unsigned warp_low[kWarps], warp_high[kWarps];
  int warp_better[kWarps], warp_same[kWarps];
  unsigned low, high;  // of this block's keys
  int better, same;    // of this block
  int bin, above, in_bin;
};

// One row by kPeers blocks of kThreads. A warp owns 32 * items neighbouring scores. Their keys are kept in registers, kItems at most, or
// with kItems 0 in shared memory, or where that is too small read again in each pass. No buffer of candidates, so none can overflow.
template <int kThreads, int kItems, int kPeers>
struct RowSelect {
  static constexpr int kWarps = kThreads / 32, kHeld = kItems > 0 ? kItems : 1;
  SelectMemory<kWarps>& m;
  const float* scores;
  int num_blocks, items, first;  // first: index of this warp's first score
  int rank;                      // of this block
  unsigned in_registers[kHeld];
  unsigned* in_shared;  // this thread's first key; null: not held

  __device__ RowSelect(SelectMemory<kWarps>& memory, unsigned* keys, int shared_items, const float* scores_, int num_blocks_, int rank_)
      : m(memory), scores(scores_), num_blocks(num_blocks_), rank(rank_) {
    items = (num_blocks + kPeers * kThreads - 1) / (kPeers * kThreads);
    if ((kItems > 0 && items > kItems) || (shared_items > 0 && items > shared_items)) __trap();
    const int warp = static_cast<int>(threadIdx.x) / 32;
    first = (rank * kWarps + warp) * 32 * items;
    in_shared = shared_items > 0 ? keys + warp * 32 * items + threadIdx.x % 32 : nullptr;
    if constexpr (kItems > 0) {
#pragma unroll
      for (int i = 0; i < kItems; ++i) in_registers[i] = i < items ? read(i) : 0u;
    } else if (in_shared != nullptr) {
#pragma unroll 4
      for (int i = 0; i < items; ++i) in_shared[i * 32] = read(i);  // read by this thread alone
    }
  }

  __device__ int index(int i) const { return first + i * 32 + static_cast<int>(threadIdx.x % 32); }
  __device__ unsigned read(int i) const { return index(i) < num_blocks ? order_key(scores[index(i)]) : 0u; }
  // body(item, key), the same number of times in every lane.
  template <class Body>
  __device__ void for_keys(Body body) {
    if constexpr (kItems > 0) {
#pragma unroll
      for (int i = 0; i < kItems; ++i)
        if (i < items) body(i, in_registers[i]);
    } else {
#pragma unroll 2
      for (int i = 0; i < items; ++i) body(i, in_shared != nullptr ? in_shared[i * 32] : read(i));
    }
  }
  // The smallest and the largest key of the row.
  __device__ void range(unsigned* low, unsigned* high) {
    unsigned a = kNanKey, z = 0;
    for_keys([&](int, unsigned key) {
      if (key != 0) a = min(a, key);
      z = max(z, key);
    });
    a = __reduce_min_sync(kAllLanes, a), z = __reduce_max_sync(kAllLanes, z);
    if (threadIdx.x % 32 == 0) m.warp_low[threadIdx.x / 32] = a, m.warp_high[threadIdx.x / 32] = z;
    __syncthreads();  // every warp's range is written
    const bool in = threadIdx.x % 32 < kWarps;
    a = __reduce_min_sync(kAllLanes, in ? m.warp_low[threadIdx.x % 32] : kNanKey);
    z = __reduce_max_sync(kAllLanes, in ? m.warp_high[threadIdx.x % 32] : 0u);
    if constexpr (kPeers > 1) {
      if (threadIdx.x == 0) m.low = a, m.high = z;
      cluster_sync();  // every block's range is written
      const bool peer = threadIdx.x % 32 < kPeers;
      a = __reduce_min_sync(kAllLanes, peer ? peer_value(&m.low, threadIdx.x % 32) : kNanKey);
      z = __reduce_max_sync(kAllLanes, peer ? peer_value(&m.high, threadIdx.x % 32) : 0u);
    }
    *low = a, *high = z;
  }

  // The bin, counted from the top, in which the `wanted`-th best key of [low, high] lies.
  __device__ void choose_bin(unsigned low, unsigned high, int shift, int wanted, int* histogram) {
    for (int i = threadIdx.x; i < kBins; i += kThreads) histogram[i] = 0;
    __syncthreads();  // the histogram is zero
    const unsigned lane = threadIdx.x % 32;
    for_keys([&](int, unsigned key) {
      const bool in = key >= low && key <= high;
      const unsigned votes = __ballot_sync(kAllLanes, in);
      if (votes == 0) return;
      const int bin = static_cast<int>((key - low) >> shift), leader = __ffs(votes) - 1;
      // Equal scores are common (no head likes a block): lanes that agree with the first add once.
      const int leading = __shfl_sync(kAllLanes, bin, leader);
      const unsigned agree = __ballot_sync(kAllLanes, in && bin == leading);
      if (lane == static_cast<unsigned>(leader)) atomicAdd(&histogram[leading], __popc(agree));
      if (in && bin != leading) atomicAdd(&histogram[bin], 1);
    });
    sync_row<kPeers>();  // the histograms are complete
    constexpr int kPerThread = kBins / kThreads;
    int counts[kPerThread], sum = 0;
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      counts[i] = 0;
#pragma unroll
      for (int peer = 0; peer < kPeers; ++peer) counts[i] += of_peer<kPeers>(histogram + kBins - 1 - (threadIdx.x * kPerThread + i), peer);
      sum += counts[i];
    }
    const int through = warp_prefix(sum);
    if (lane == 31) m.warp_sums[threadIdx.x / 32] = through;
    __syncthreads();  // every warp's sum is written
    const int all = warp_prefix(lane < kWarps ? m.warp_sums[lane] : 0);
    const int before_warp = __shfl_sync(kAllLanes, all, (threadIdx.x / 32 + 31) % 32);
    int above = through - sum + (threadIdx.x < 32 ? 0 : before_warp);
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      if (above < wanted && wanted <= above + counts[i]) {
        m.bin = kBins - 1 - (static_cast<int>(threadIdx.x) * kPerThread + i);
        m.above = above;
        m.in_bin = counts[i];
      }
      above += counts[i];
    }
    __syncthreads();  // the bin is chosen
  }

  // Keys above `high` are selected, and the first `wanted` of those in [low, high].
  __device__ void narrow(unsigned* low, unsigned* high, int* wanted) {
    for (int pass = 0; *low < *high; ++pass) {
      const int shift = max(0, 32 - __clz(static_cast<int>(*high - *low)) - kBinBits);
      choose_bin(*low, *high, shift, *wanted, m.histogram[pass % 2]);
      *low += static_cast<unsigned>(m.bin) << shift;
      *high = *low + min(*high - *low, (1u << shift) - 1u);
      *wanted -= m.above;
      if (m.in_bin == *wanted) break;
    }
  }

  __device__ void write(unsigned low, unsigned high, int wanted, int R, int* positions) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int better = 0, same = 0;
    for_keys([&](int, unsigned key) {
      better += key > high ? 1 : 0;
      same += key >= low && key <= high ? 1 : 0;
    });
    better = __reduce_add_sync(kAllLanes, better), same = __reduce_add_sync(kAllLanes, same);
    if (lane == 0) m.warp_better[warp] = better, m.warp_same[warp] = same;
    __syncthreads();  // every warp's counts are written
    better = warp_prefix(lane < kWarps ? m.warp_better[lane] : 0), same = warp_prefix(lane < kWarps ? m.warp_same[lane] : 0);
    int rank_better = warp == 0 ? 0 : __shfl_sync(kAllLanes, better, (warp + 31) % 32);
    int rank_same = warp == 0 ? 0 : __shfl_sync(kAllLanes, same, (warp + 31) % 32);
    if constexpr (kPeers > 1) {
      if (threadIdx.x == 31) m.better = better, m.same = same;
      cluster_sync();  // every block's counts are written
      const bool before = lane < rank;
      rank_better += __reduce_add_sync(kAllLanes, before ? peer_value(&m.better, lane) : 0);
      rank_same += __reduce_add_sync(kAllLanes, before ? peer_value(&m.same, lane) : 0);
    }
    if (mutant(Mutant::kTieHigherIndex) && kPeers == 1) rank_same -= __shfl_sync(kAllLanes, same, 31) - wanted;
    for_keys([&](int i, unsigned key) {
      const unsigned above = __ballot_sync(kAllLanes, key > high), equal = __ballot_sync(kAllLanes, key >= low && key <= high);
      const unsigned earlier = (1u << lane) - 1u;
      const int equal_before = rank_same + __popc(equal & earlier);
      if (key > high || (key >= low && equal_before < wanted && (!mutant(Mutant::kTieHigherIndex) || equal_before >= 0))) {
        int* to = positions + (rank_better + __popc(above & earlier) +
                               min(mutant(Mutant::kTieHigherIndex) ? max(equal_before, 0) : equal_before, wanted)) *
                                  R;
        for (int j = 0; j < R; ++j) to[j] = index(i) * R + j;
      }
      rank_better += __popc(above), rank_same += __popc(equal);
    });
  }
};

// positions <- the tokens of the best blocks, ascending, then the tail up to the row's position.
template <int kThreads, int kItems, int kPeers>
__device__ __forceinline__ void select_row(const QsaShape& s, const QsaGroup& g, int shared_items, const StepRows& r) {
  extern __shared__ unsigned keys[];
  __shared__ SelectMemory<kThreads / 32> m;
  const int i = static_cast<int>(blockIdx.x) / kPeers, rank = static_cast<int>(blockIdx.x) % kPeers;
  const int t = g.first + i, position = r.position[t], num_blocks = (position + 1) / s.R;
  const int topk = mutant(Mutant::kSelectionOffByOne) && num_blocks > s.topk ? s.topk - 1 : s.topk, chosen = min(num_blocks, topk);
  if (num_blocks > s.max_blocks || chosen * s.R + s.R - 1 > s.attended) __trap();
  int* positions = g.positions + static_cast<std::size_t>(i) * s.attended;
  if (rank == 0) {
    int tail = num_blocks * s.R, rest = position + 1 - tail;
    if (mutant(Mutant::kTailDropped) && rest > 0) tail = position, rest = 1;
    for (int j = threadIdx.x; j < rest; j += kThreads) positions[chosen * s.R + j] = tail + j;
    if (threadIdx.x == 0) g.counts[i] = chosen * s.R + rest;
  }
  if (num_blocks <= s.topk) {
    for (int j = rank * kThreads + static_cast<int>(threadIdx.x); j < num_blocks * s.R; j += kPeers * kThreads) positions[j] = j;
    return;
  }
  RowSelect<kThreads, kItems, kPeers> row(m, keys, shared_items, g.scores + static_cast<std::size_t>(i) * s.max_blocks, num_blocks, rank);
  unsigned low, high;
  int wanted = topk;
  row.range(&low, &high);
  if (high == kNanKey && rank == 0 && threadIdx.x == 0) record_fault(r, t, s.layer, FaultKind::kIndexScores);
  row.narrow(&low, &high, &wanted);
  row.write(low, high, wanted, s.R, positions);
  if constexpr (kPeers > 1) cluster_sync();  // nobody reads this block's memory any more
}

constexpr int kManyRowsThreads = 256, kFewRowsThreads = 1024;
constexpr int kRowItems = 4, kLongRowItems = 16;  // in registers

template <int kThreads, int kItems>
__global__ void __launch_bounds__(kThreads) qsa_select_kernel(const QsaShape s, const QsaGroup g, int shared_items, const StepRows r) {
  wait_for_previous();
  select_row<kThreads, kItems, 1>(s, g, shared_items, r);
}

__global__ void TETRAD_CLUSTER(kClusterBlocks) __launch_bounds__(kFewRowsThreads)
    qsa_select_long_kernel(const QsaShape s, const QsaGroup g, const StepRows r) {
  wait_for_previous();
  select_row<kFewRowsThreads, kLongRowItems, kClusterBlocks>(s, g, 0, r);
}

}  // namespace

void qsa_select(const QsaShape& s, const QsaGroup& g, int most_blocks, const StepRows& r, const Stream& stream) {
  constexpr int kFewRows = 128;
  constexpr std::size_t kSharedLimit = 64 * 1024;  // three rows at a time on a multiprocessor of most targets
  const auto rows = static_cast<unsigned>(g.count);
  if (g.count <= kFewRows && most_blocks <= kFewRowsThreads * kRowItems)
    return launch("qsa_select", qsa_select_kernel<kFewRowsThreads, kRowItems>, {dim3(rows), dim3(kFewRowsThreads)}, stream, s, g, 0, r);
  int items = ceil_div(most_blocks, kManyRowsThreads);
  std::size_t shared = static_cast<std::size_t>(items) * kManyRowsThreads * sizeof(unsigned);
  if (stream.overlaps() && (g.count <= kFewRows || shared > kSharedLimit) &&
      most_blocks <= kClusterBlocks * kFewRowsThreads * kLongRowItems)
    return launch("qsa_select", qsa_select_long_kernel, {dim3(rows * kClusterBlocks), dim3(kFewRowsThreads)}, stream, s, g, r);
  if (shared > kSharedLimit)
    return launch("qsa_select", qsa_select_kernel<kFewRowsThreads, 0>, {dim3(rows), dim3(kFewRowsThreads)}, stream, s, g, 0, r);
  const auto kernel = qsa_select_kernel<kManyRowsThreads, 0>;
  if (shared > 32 * 1024) allow_shared("qsa_select", kernel, shared);  // what select_row has besides is less than 16 KiB
  launch("qsa_select", kernel, {dim3(rows), dim3(kManyRowsThreads), shared}, stream, s, g, items, r);
}

}  // namespace tetrad::cuda
