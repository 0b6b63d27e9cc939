// The second half of qsa (contract in qsa.h): block scores, selection, attention over what is selected.
#include "cuda/kernels/device_math.cuh"
#include "cuda/kernels/qsa.h"
#include "cuda/runtime/launch.cuh"

namespace tetrad::cuda {
namespace {

constexpr int kScoreThreads = 128;  // keys per block of qsa_scores, one each
constexpr int kSelectThreads = 512;
constexpr int kAttendThreads = 256;

__global__ void qsa_scores_kernel(const QsaShape s, const bf16* projected, const QsaGroup g, const StepRows r) {
  extern __shared__ float queries[];  // [HI, DI]
  const int i = blockIdx.y, t = g.first + i;
  const int num_blocks = (r.position[t] + 1) / s.R, per_page = r.page_tokens / s.R;
  const int block = blockIdx.x * kScoreThreads + threadIdx.x;
  if (num_blocks <= s.topk || static_cast<int>(blockIdx.x) * kScoreThreads >= num_blocks) return;
  if (num_blocks > s.max_blocks) __trap();
  const bf16* q = projected + static_cast<std::size_t>(t) * s.row + s.index_q;
  for (int e = threadIdx.x; e < s.HI * s.DI; e += kScoreThreads) queries[e] = to_f32(q[e]);
  __syncthreads();  // the queries are in shared memory
  if (block >= num_blocks) return;
  const std::byte* page = page_of(r, sequence_of(r, t), block, per_page);
  const bf16* key = reinterpret_cast<const bf16*>(page + s.keys_offset) + static_cast<std::size_t>(block % per_page) * s.DI;
  float sum = 0.0f;
  for (int j = 0; j < s.HI; ++j) {
    float dot = 0.0f;
    for (int d = 0; d < s.DI; ++d) dot = fmaf(queries[j * s.DI + d], to_f32(key[d]), dot);
    sum += dot < 0.0f ? 0.0f : dot;  // a comparison with NaN is false, so NaN passes
  }
  g.scores[static_cast<std::size_t>(i) * s.max_blocks + block] = sum / sqrtf(static_cast<float>(s.DI));
}

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
  const int i = blockIdx.x, t = g.first + i, position = r.position[t];
  bool nan;
  const int count = select_row(g.scores + static_cast<std::size_t>(i) * s.max_blocks, (position + 1) / s.R, s.topk, s.R, position,
                               g.positions + static_cast<std::size_t>(i) * s.attended, &nan);
  if (threadIdx.x != 0) return;
  if (count > s.attended) __trap();
  g.counts[i] = count;
  if (nan) record_fault(r, t, s.layer, FaultKind::kIndexScores);
}

__global__ void __launch_bounds__(kSelectThreads)
    select_blocks_kernel(const float* scores, int num_blocks, int topk, int R, int* positions, int* counts) {
  const std::size_t i = blockIdx.x;
  bool nan;
  const int width = min(topk, num_blocks) * R;
  const int count = select_row(scores + i * num_blocks, num_blocks, topk, R, num_blocks * R - 1, positions + i * width, &nan);
  if (threadIdx.x == 0) counts[i] = count;
}

// Shared: [attended] row offsets of the cache (8 bytes), [attended] scores, [DH] query.
__global__ void __launch_bounds__(kAttendThreads)
    qsa_attend_kernel(const QsaShape s, const bf16* projected, const QsaGroup g, bf16* y, const StepRows r) {
  extern __shared__ unsigned long long rows[];
  float* scores = reinterpret_cast<float*>(rows + s.attended);
  float* query = scores + s.attended;
  __shared__ float scratch[kAttendThreads / 32];
  const int hd = blockIdx.x, i = blockIdx.y, t = g.first + i;
  const int b = sequence_of(r, t), position = r.position[t], kv = hd / (s.HQ / s.HKV);
  const int count = g.counts[i];
  if (count < 1 || count > s.attended) __trap();
  const bf16* q = projected + static_cast<std::size_t>(t) * s.row + hd * 2 * s.DH;

  for (int d = threadIdx.x; d < s.DH; d += kAttendThreads) query[d] = to_f32(q[d]);
  for (int n = threadIdx.x; n < count; n += kAttendThreads) {
    const int p = g.positions[static_cast<std::size_t>(i) * s.attended + n];
    if (p < 0 || p > position) __trap();
    const std::byte* page = page_of(r, b, p, r.page_tokens);
    const std::size_t in_page = (static_cast<std::size_t>(p % r.page_tokens) * s.HKV + kv) * s.DH * sizeof(bf16);
    rows[n] = static_cast<unsigned long long>(page - r.page_memory) + in_page;
  }
  __syncthreads();  // query and row offsets are in shared memory

  // --- Scores: a warp per position ---
  const float scale = static_cast<float>(1.0 / sqrt(static_cast<double>(s.DH)));
  const int lane = threadIdx.x % 32;
  for (int n = threadIdx.x / 32; n < count; n += kAttendThreads / 32) {
    const auto* key = reinterpret_cast<const bf16*>(r.page_memory + rows[n] + s.k_offset);
    float dot = 0.0f;
    for (int d = lane; d < s.DH; d += 32) dot = fmaf(query[d], to_f32(key[d]), dot);
    dot = warp_sum(dot);
    if (lane == 0) scores[n] = round_b16(round_b16(dot) * scale);
  }
  __syncthreads();  // every score is written

  // --- Softmax ---
  float best = -INFINITY;
  for (int n = threadIdx.x; n < count; n += kAttendThreads) best = max_or_nan(scores[n], best);
  best = block_max<kAttendThreads>(best, scratch);
  float sum = 0.0f;
  for (int n = threadIdx.x; n < count; n += kAttendThreads) {
    scores[n] = expf(scores[n] - best);
    sum += scores[n];
  }
  sum = block_sum<kAttendThreads>(sum, scratch);
  for (int n = threadIdx.x; n < count; n += kAttendThreads) scores[n] = round_b16(scores[n] / sum);
  __syncthreads();  // every probability is written

  // --- Weighted sum and gate: a thread per element ---
  const bf16* gate = q + s.DH;
  for (int d = threadIdx.x; d < s.DH; d += kAttendThreads) {
    float o = 0.0f;
    for (int n = 0; n < count; ++n) o = fmaf(scores[n], to_f32(reinterpret_cast<const bf16*>(r.page_memory + rows[n] + s.v_offset)[d]), o);
    y[(static_cast<std::size_t>(t) * s.HQ + hd) * s.DH + d] = to_b16(round_b16(o) * round_b16(sigmoid_f32(to_f32(gate[d]))));
  }
}

}  // namespace

void qsa_scores(const QsaShape& s, const bf16* projected, const QsaGroup& g, int most_blocks, const StepRows& r, const Stream& stream) {
  if (most_blocks <= s.topk) return;
  launch("qsa_scores", qsa_scores_kernel,
         {dim3(static_cast<unsigned>(ceil_div(most_blocks, kScoreThreads)), static_cast<unsigned>(g.count)), dim3(kScoreThreads),
          static_cast<std::size_t>(s.HI) * s.DI * sizeof(float)},
         stream, s, projected, g, r);
}

void qsa_select(const QsaShape& s, const QsaGroup& g, const StepRows& r, const Stream& stream) {
  launch("qsa_select", qsa_select_kernel, {dim3(static_cast<unsigned>(g.count)), dim3(kSelectThreads)}, stream, s, g, r);
}

void qsa_attend(const QsaShape& s, const bf16* projected, const QsaGroup& g, bf16* y, const StepRows& r, const Stream& stream) {
  const std::size_t shared = static_cast<std::size_t>(s.attended) * 12 + static_cast<std::size_t>(s.DH) * sizeof(float);
  if (shared > 48 * 1024) allow_shared("qsa_attend", qsa_attend_kernel, shared);
  launch("qsa_attend", qsa_attend_kernel, {dim3(static_cast<unsigned>(s.HQ), static_cast<unsigned>(g.count)), dim3(kAttendThreads), shared},
         stream, s, projected, g, y, r);
}

void select_blocks(const float* scores, int rows, int num_blocks, int topk, int R, int* positions, int* counts, const Stream& stream) {
  launch("select_blocks", select_blocks_kernel, {dim3(static_cast<unsigned>(rows)), dim3(kSelectThreads)}, stream, scores, num_blocks, topk,
         R, positions, counts);
}

}  // namespace tetrad::cuda
