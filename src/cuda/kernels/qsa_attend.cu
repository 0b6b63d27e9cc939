// Block scores and attention of qsa (contract in qsa.h), both by tensor cores over gathered rows.
#include <algorithm>

#include "base/error.h"
#include "cuda/kernels/device_math.cuh"
#include "cuda/kernels/qsa.h"
#include "cuda/kernels/tensor_step.cuh"
#include "cuda/runtime/launch.cuh"

namespace tetrad::cuda {
namespace {

constexpr int kScoreThreads = 128, kScoreKeys = 64;  // a warp takes 16 keys
constexpr int kScoreRows = 8;                        // query rows per block
constexpr int kAttendThreads = 128, kAttendKeys = 64;
constexpr int kSoftmaxThreads = 256;
constexpr int kValueThreads = 128;
constexpr int kFewHeads = 4, kManyHeads = 12;  // query heads of a block that share a row of V; twelve is the published model's group

// Dot products of 16 rows with 8 columns of queries, DI or DH wide. Lane (g, t): rows g and g + 8, column g.
__device__ __forceinline__ void dot_tile(const bf16* upper, const bf16* lower, const bf16* query, int width, float* acc) {
  const int piece = threadIdx.x % 4 * 8;
#pragma unroll
  for (int j = 0; j < 4; ++j) acc[j] = 0.0f;
  for (int k = 0; k < width; k += 32)
    multiply_pieces(acc, load_piece(upper, k + piece, width), load_piece(lower, k + piece, width), load_piece(query, k + piece, width));
}

// Columns of a block are (row, head) pairs: eight rows with HI heads each. Shared: [kScoreKeys, kScoreRows * HI] dot products.
__global__ void __launch_bounds__(kScoreThreads)
    qsa_scores_kernel(const QsaShape s, const bf16* projected, const QsaGroup g, const StepRows r) {
  wait_for_previous();
  extern __shared__ float dots[];
  const int first_row = blockIdx.y * kScoreRows, rows = min(kScoreRows, g.count - first_row), columns = kScoreRows * s.HI;
  const int per_page = r.page_tokens / s.R, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int first_key = blockIdx.x * kScoreKeys;
  // Rows of a group may belong to several sequences: keys are those of one sequence at a time.
  for (int begin = 0, end; begin < rows; begin = end) {
    const int b = sequence_of(r, g.first + first_row + begin);
    for (end = begin + 1; end < rows && sequence_of(r, g.first + first_row + end) == b;) ++end;
    const int visible = (r.position[g.first + first_row + end - 1] + 1) / s.R;  // of the last row, which sees most
    if (visible > s.max_blocks) __trap();
    if (visible <= s.topk || first_key >= visible) continue;
    const auto key = [&](int block) -> const bf16* {
      if (block >= visible) return nullptr;
      const std::byte* page = page_of(r, b, block, per_page);
      return reinterpret_cast<const bf16*>(page + s.keys_offset) + static_cast<std::size_t>(block % per_page) * s.DI;
    };
    const bf16* upper = key(first_key + warp * 16 + lane / 4);
    const bf16* lower = key(first_key + warp * 16 + lane / 4 + 8);
    for (int tile = begin * s.HI / 8 * 8; tile < end * s.HI; tile += 8) {
      const int column = tile + lane / 4, row = column / s.HI;
      const bf16* query = row >= begin && row < end
                              ? projected + static_cast<std::size_t>(g.first + first_row + row) * s.row + s.index_q + column % s.HI * s.DI
                              : nullptr;
      float acc[4];
      dot_tile(upper, lower, query, s.DI, acc);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int c = tile + lane % 4 * 2 + j % 2;
        if (c < columns) dots[(warp * 16 + lane / 4 + j / 2 * 8) * columns + c] = acc[j];
      }
    }
    __syncthreads();  // the dot products of this sequence's rows are written
    for (int i = threadIdx.x; i < kScoreKeys * (end - begin); i += kScoreThreads) {
      const int row = begin + i / kScoreKeys, block = first_key + i % kScoreKeys;
      const int blocks = (r.position[g.first + first_row + row] + 1) / s.R;
      if (blocks <= s.topk || block >= blocks) continue;
      const float* dot = dots + i % kScoreKeys * columns + row * s.HI;
      float sum = 0.0f;
      for (int j = 0; j < s.HI; ++j) sum += dot[j] < 0.0f ? 0.0f : dot[j];  // a comparison with NaN is false, so NaN passes
      g.scores[static_cast<std::size_t>(first_row + row) * s.max_blocks + block] = sum / sqrtf(static_cast<float>(s.DI));
    }
    __syncthreads();  // the dot products have been read
  }
}

// The row of a position in the caches of one layer, key/value head kv.
__device__ __forceinline__ const bf16* cache_row(const QsaShape& s, const StepRows& r, int b, int position, int kv, std::size_t offset) {
  const std::byte* page = page_of(r, b, position, r.page_tokens);
  return reinterpret_cast<const bf16*>(page + offset) + (static_cast<std::size_t>(position % r.page_tokens) * s.HKV + kv) * s.DH;
}

__device__ __forceinline__ int row_count(const QsaShape& s, const QsaGroup& g, int i) {
  const int count = g.counts[i];
  if (count < 1 || count > s.attended) __trap();
  return count;
}

__device__ __forceinline__ int position_of(const QsaShape& s, const QsaGroup& g, int i, int n, int last) {
  const int p = g.positions[static_cast<std::size_t>(i) * s.attended + n];
  if (p < 0 || p > last) __trap();
  return p;
}

// Grid (positions / 64, HKV, rows): scores of all query heads that share a key head.
__global__ void __launch_bounds__(kAttendThreads)
    attend_scores_kernel(const QsaShape s, const bf16* projected, const QsaGroup g, float* scores, float scale, const StepRows r) {
  wait_for_previous();
  const int i = blockIdx.z, t = g.first + i, kv = blockIdx.y, group = s.HQ / s.HKV;
  const int count = row_count(s, g, i), first = blockIdx.x * kAttendKeys + threadIdx.x / 32 * 16, lane = threadIdx.x % 32;
  if (static_cast<int>(blockIdx.x) * kAttendKeys >= count) return;
  const int b = sequence_of(r, t), last = r.position[t];
  const auto key = [&](int n) { return n < count ? cache_row(s, r, b, position_of(s, g, i, n, last), kv, s.k_offset) : nullptr; };
  const bf16* upper = key(first + lane / 4);
  const bf16* lower = key(first + lane / 4 + 8);
  for (int tile = 0; tile < group; tile += 8) {
    const int h = tile + lane / 4;
    const bf16* query = h < group ? projected + static_cast<std::size_t>(t) * s.row + (kv * group + h) * 2 * s.DH : nullptr;
    float acc[4];
    dot_tile(upper, lower, query, s.DH, acc);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int n = first + lane / 4 + j / 2 * 8, head = tile + lane % 4 * 2 + j % 2;
      if (n < count && head < group)
        scores[(static_cast<std::size_t>(i) * s.HQ + kv * group + head) * s.attended + n] = round_b16(round_b16(acc[j]) * scale);
    }
  }
}

// Grid (HQ, rows): scores to probabilities, rounded to bf16, in place.
__global__ void __launch_bounds__(kSoftmaxThreads) attend_softmax_kernel(const QsaShape s, const QsaGroup g, float* scores) {
  wait_for_previous();
  __shared__ float scratch[kSoftmaxThreads / 32];
  const int i = blockIdx.y, count = row_count(s, g, i);
  float* row = scores + (static_cast<std::size_t>(i) * s.HQ + blockIdx.x) * s.attended;
  float best = -INFINITY;
  for (int n = threadIdx.x; n < count; n += kSoftmaxThreads) best = max_or_nan(row[n], best);
  best = block_max<kSoftmaxThreads>(best, scratch);
  float sum = 0.0f;
  for (int n = threadIdx.x; n < count; n += kSoftmaxThreads) {
    row[n] = expf(row[n] - best);
    sum += row[n];
  }
  sum = block_sum<kSoftmaxThreads>(sum, scratch);
  for (int n = threadIdx.x; n < count; n += kSoftmaxThreads) row[n] = round_b16(row[n] / sum);
}

__device__ __forceinline__ bf16 gated(float o, bf16 gate) { return to_b16(round_b16(o) * round_b16(sigmoid_f32(to_f32(gate)))); }

// Two neighbouring elements of a row; kPairs where every row begins at an even element.
template <bool kPairs>
__device__ __forceinline__ float2 load_pair(const bf16* row, int d, int width) {
  if constexpr (kPairs) {
    const unsigned both = *reinterpret_cast<const unsigned*>(row + d);
    return make_float2(__uint_as_float(both << 16), __uint_as_float(both & 0xffff0000u));
  }
  return make_float2(to_f32(row[d]), d + 1 < width ? to_f32(row[d + 1]) : 0.0f);
}

// Grid (splits, HKV * head tiles, rows): weighted sums of the chunks [x * chunks / splits, ...) of kValueChunk positions, each chunk from
// zero, chunks added in order. One split finishes the row; several leave one sum per chunk for attend_combine.
template <int kHeads, bool kPairs>
__global__ void __launch_bounds__(kValueThreads) attend_values_kernel(const QsaShape s, const bf16* projected, const QsaGroup g,
                                                                      const float* scores, float* partial, bf16* y, const StepRows r) {
  wait_for_previous();
  __shared__ const bf16* rows[kValueChunk];
  __shared__ float4 weights[kValueChunk][kHeads / 4];
  const int group = s.HQ / s.HKV, tiles = (group + kHeads - 1) / kHeads;
  const int i = blockIdx.z, t = g.first + i, kv = blockIdx.y / tiles, tile = blockIdx.y % tiles * kHeads;
  const int count = row_count(s, g, i), chunks = (count + kValueChunk - 1) / kValueChunk, per_split = (chunks + gridDim.x - 1) / gridDim.x;
  const int b = sequence_of(r, t), last = r.position[t], heads = min(kHeads, group - tile);
  const float* p = scores + (static_cast<std::size_t>(i) * s.HQ + kv * group + tile) * s.attended;
  const std::size_t head0 = static_cast<std::size_t>(kv * group + tile);
  for (int d0 = 0; d0 < s.DH; d0 += 2 * kValueThreads) {
    const int d = d0 + 2 * static_cast<int>(threadIdx.x);
    float2 total[kHeads];
    for (int chunk = blockIdx.x * per_split; chunk < min(chunks, static_cast<int>(blockIdx.x + 1) * per_split); ++chunk) {
      const int first = chunk * kValueChunk, n_end = min(kValueChunk, count - first);
      __syncthreads();  // the last chunk has been read
      for (int n = threadIdx.x; n < n_end; n += kValueThreads) {
        rows[n] = cache_row(s, r, b, position_of(s, g, i, first + n, last), kv, s.v_offset);
        auto* w = reinterpret_cast<float*>(weights[n]);
#pragma unroll
        for (int h = 0; h < kHeads; ++h) w[h] = h < heads ? p[static_cast<std::size_t>(h) * s.attended + first + n] : 0.0f;
      }
      __syncthreads();  // the chunk's rows and probabilities are in shared memory
      float2 acc[kHeads] = {};
      if (d < s.DH) {
#pragma unroll 8
        for (int n = 0; n < n_end; ++n) {
          const float2 v = load_pair<kPairs>(rows[n], d, s.DH);
#pragma unroll
          for (int h = 0; h < kHeads / 4; ++h) {
            const float4 w = weights[n][h];
            acc[4 * h] = {fmaf(w.x, v.x, acc[4 * h].x), fmaf(w.x, v.y, acc[4 * h].y)};
            acc[4 * h + 1] = {fmaf(w.y, v.x, acc[4 * h + 1].x), fmaf(w.y, v.y, acc[4 * h + 1].y)};
            acc[4 * h + 2] = {fmaf(w.z, v.x, acc[4 * h + 2].x), fmaf(w.z, v.y, acc[4 * h + 2].y)};
            acc[4 * h + 3] = {fmaf(w.w, v.x, acc[4 * h + 3].x), fmaf(w.w, v.y, acc[4 * h + 3].y)};
          }
        }
      }
      if (gridDim.x > 1) {
#pragma unroll
        for (int h = 0; h < kHeads; ++h) {
          if (h >= heads || d >= s.DH) continue;
          float* to = partial + ((static_cast<std::size_t>(i) * s.HQ + head0 + h) * s.value_chunks() + chunk) * s.DH + d;
          to[0] = acc[h].x;
          if (d + 1 < s.DH) to[1] = acc[h].y;
        }
        continue;
      }
#pragma unroll
      for (int h = 0; h < kHeads; ++h) total[h] = chunk == 0 ? acc[h] : make_float2(total[h].x + acc[h].x, total[h].y + acc[h].y);
    }
    if (gridDim.x > 1) continue;
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      if (h >= heads || d >= s.DH) continue;
      const bf16* gate = projected + static_cast<std::size_t>(t) * s.row + (head0 + h) * 2 * s.DH + s.DH + d;
      bf16* out = y + (static_cast<std::size_t>(t) * s.HQ + head0 + h) * s.DH + d;
      out[0] = gated(total[h].x, gate[0]);
      if (d + 1 < s.DH) out[1] = gated(total[h].y, gate[1]);
    }
  }
}

// Grid (HQ, rows): chunk sums in order, then the gate.
__global__ void attend_combine_kernel(const QsaShape s, const bf16* projected, const QsaGroup g, const float* partial, bf16* y) {
  wait_for_previous();
  const int i = blockIdx.y, t = g.first + i, hd = blockIdx.x, chunks = (row_count(s, g, i) + kValueChunk - 1) / kValueChunk;
  const float* sums = partial + (static_cast<std::size_t>(i) * s.HQ + hd) * s.value_chunks() * s.DH;
  for (int d = threadIdx.x; d < s.DH; d += kValueThreads) {
    float total = sums[d];
    for (int c = 1; c < chunks; ++c) total += sums[static_cast<std::size_t>(c) * s.DH + d];
    const bf16 gate = projected[static_cast<std::size_t>(t) * s.row + hd * 2 * s.DH + s.DH + d];
    y[(static_cast<std::size_t>(t) * s.HQ + hd) * s.DH + d] = gated(total, gate);
  }
}

unsigned u(int x) { return static_cast<unsigned>(x); }

template <int kHeads>
void launch_values(const QsaShape& s, const bf16* projected, const QsaGroup& g, const QsaScratch& scratch, bf16* y, const StepRows& r,
                   const Stream& stream) {
  constexpr int kEnoughBlocks = 2 * 132;  // two for each multiprocessor of the largest target
  const int tiles = ceil_div(s.HQ / s.HKV, kHeads);
  const int splits = g.count * s.HKV * tiles >= kEnoughBlocks || g.count > scratch.split_rows ? 1 : s.value_chunks();
  const LaunchShape shape{dim3(u(splits), u(s.HKV * tiles), u(g.count)), dim3(kValueThreads)};
  launch("attend_values", s.DH % 2 == 0 ? attend_values_kernel<kHeads, true> : attend_values_kernel<kHeads, false>, shape, stream, s,
         projected, g, scratch.scores, scratch.partial, y, r);
  if (splits > 1)
    launch("attend_combine", attend_combine_kernel, {dim3(u(s.HQ), u(g.count)), dim3(kValueThreads)}, stream, s, projected, g,
           scratch.partial, y);
}

}  // namespace

void qsa_scores(const QsaShape& s, const bf16* projected, const QsaGroup& g, int most_blocks, const StepRows& r, const Stream& stream) {
  if (most_blocks <= s.topk) return;
  const std::size_t shared = static_cast<std::size_t>(kScoreKeys) * kScoreRows * s.HI * sizeof(float);
  if (shared > 48 * 1024) allow_shared("qsa_scores", qsa_scores_kernel, shared);
  launch("qsa_scores", qsa_scores_kernel,
         {dim3(u(ceil_div(most_blocks, kScoreKeys)), u(ceil_div(g.count, kScoreRows))), dim3(kScoreThreads), shared}, stream, s, projected,
         g, r);
}

void qsa_attend(const QsaShape& s, const bf16* projected, const QsaGroup& all, const QsaScratch& scratch, bf16* y, const StepRows& r,
                const Stream& stream) {
  const auto scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(s.DH)));
  for (int first = 0; first < all.count; first += scratch.rows) {
    QsaGroup g = all;
    g.first += first;
    g.count = std::min(scratch.rows, all.count - first);
    g.positions += static_cast<std::size_t>(first) * s.attended;
    g.counts += first;
    launch("attend_scores", attend_scores_kernel, {dim3(u(ceil_div(s.attended, kAttendKeys)), u(s.HKV), u(g.count)), dim3(kAttendThreads)},
           stream, s, projected, g, scratch.scores, scale, r);
    launch("attend_softmax", attend_softmax_kernel, {dim3(u(s.HQ), u(g.count)), dim3(kSoftmaxThreads)}, stream, s, g, scratch.scores);
    s.HQ / s.HKV > kFewHeads ? launch_values<kManyHeads>(s, projected, g, scratch, y, r, stream)
                             : launch_values<kFewHeads>(s, projected, g, scratch, y, r, stream);
  }
}

}  // namespace tetrad::cuda
