// The selection of qsa (contract in qsa.h): exact, by a threshold found byte by byte.
#include "cuda/kernels/device_math.cuh"
#include "cuda/kernels/qsa.h"
#include "cuda/runtime/launch.cuh"

namespace tetrad::cuda {
namespace {

constexpr int kSelectThreads = 512;

// Larger is better: NaN above everything, -0 as +0.
__device__ __forceinline__ unsigned order_key(float score) {
  if (score != score) return 0xffffffffu;
  const unsigned bits = __float_as_uint(score == 0.0f ? 0.0f : score);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

struct SelectMemory {
  int histogram[256];
  int warp_counts[2][kSelectThreads / 32];
  unsigned threshold;
  int wanted;  // of those equal to the threshold
};

// The key of the topk-th best of n scores, found byte by byte from the top, and how many of its equals belong to the best: every score is
// read again for each byte, so no buffer of candidates can overflow.
__device__ void find_threshold(const float* scores, int n, int topk, SelectMemory& m) {
  unsigned prefix = 0, mask = 0;
  int wanted = topk;
  for (int shift = 24; shift >= 0; shift -= 8) {
    for (int i = threadIdx.x; i < 256; i += kSelectThreads) m.histogram[i] = 0;
    __syncthreads();  // the histogram is zero
    for (int i = threadIdx.x; i < n; i += kSelectThreads) {
      const unsigned key = order_key(scores[i]);
      if ((key & mask) == prefix) atomicAdd(&m.histogram[key >> shift & 255u], 1);
    }
    __syncthreads();  // the histogram is complete
    if (threadIdx.x == 0) {
      int bin = 255;
      for (; bin > 0 && m.histogram[bin] < wanted; --bin) wanted -= m.histogram[bin];
      m.threshold = prefix | static_cast<unsigned>(bin) << shift;
      m.wanted = wanted;
    }
    __syncthreads();  // the byte is chosen
    prefix = m.threshold;
    wanted = m.wanted;
    mask |= 255u << shift;
  }
}

// Number of set flags before this thread in the block, and in all of it.
__device__ int rank_in_block(bool flag, int* counts, int* total) {
  const unsigned votes = __ballot_sync(0xffffffffu, flag);
  const int warp = threadIdx.x / 32;
  if (threadIdx.x % 32 == 0) counts[warp] = __popc(votes);
  __syncthreads();  // every warp's count is written
  int before = __popc(votes & ((1u << threadIdx.x % 32) - 1u)), sum = 0;
  for (int i = 0; i < kSelectThreads / 32; ++i) {
    if (i < warp) before += counts[i];
    sum += counts[i];
  }
  *total = sum;
  return before;
}

// positions <- the tokens of the best blocks, ascending, then the tail up to `position`. Returns how many; true in *nan if a score is NaN.
__device__ int select_row(const float* scores, int num_blocks, int topk, int R, int position, int* positions, bool* nan) {
  __shared__ SelectMemory m;
  __shared__ int has_nan;
  int chosen = min(num_blocks, topk);
  *nan = false;
  if (num_blocks <= topk) {
    for (int i = threadIdx.x; i < num_blocks * R; i += kSelectThreads) positions[i] = i;
  } else {
    if (threadIdx.x == 0) has_nan = 0;
    find_threshold(scores, num_blocks, topk, m);
    int above = 0, equal = 0;  // found so far
    for (int base = 0; base < num_blocks; base += kSelectThreads) {
      const int b = base + threadIdx.x;
      const float score = b < num_blocks ? scores[b] : 0.0f;
      const unsigned key = order_key(score);
      if (score != score) has_nan = 1;
      const bool better = b < num_blocks && key > m.threshold, same = b < num_blocks && key == m.threshold;
      int num_better, num_same;
      const int equal_before = rank_in_block(same, m.warp_counts[0], &num_same);
      const bool taken = better || (same && equal + equal_before < m.wanted);
      const int rank = rank_in_block(taken, m.warp_counts[1], &num_better);
      if (taken)
        for (int j = 0; j < R; ++j) positions[(above + rank) * R + j] = b * R + j;
      above += num_better;
      equal += num_same;
      __syncthreads();  // the counts have been read
    }
    *nan = has_nan != 0;
  }
  const int tail = (position + 1) / R * R;
  if (threadIdx.x <= static_cast<unsigned>(position - tail) && position >= tail)
    positions[chosen * R + threadIdx.x] = tail + static_cast<int>(threadIdx.x);
  return chosen * R + position + 1 - tail;
}

__global__ void __launch_bounds__(kSelectThreads) qsa_select_kernel(const QsaShape s, const QsaGroup g, const StepRows r) {
  wait_for_previous();
  const int i = blockIdx.x, t = g.first + i, position = r.position[t];
  bool nan;
  const int count = select_row(g.scores + static_cast<std::size_t>(i) * s.max_blocks, (position + 1) / s.R, s.topk, s.R, position,
                               g.positions + static_cast<std::size_t>(i) * s.attended, &nan);
  if (threadIdx.x != 0) return;
  if (count > s.attended) __trap();
  g.counts[i] = count;
  if (nan) record_fault(r, t, s.layer, FaultKind::kIndexScores);
}

}  // namespace

void qsa_select(const QsaShape& s, const QsaGroup& g, const StepRows& r, const Stream& stream) {
  launch("qsa_select", qsa_select_kernel, {dim3(static_cast<unsigned>(g.count)), dim3(kSelectThreads)}, stream, s, g, r);
}

}  // namespace tetrad::cuda
