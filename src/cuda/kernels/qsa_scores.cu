// Block scores of qsa (contract in qsa.h), by tensor cores: sixteen block keys by eight (row, index head) pairs a step.
#include <algorithm>

#include "cuda/kernels/device_math.cuh"
#include "cuda/kernels/qsa.h"
#include "cuda/kernels/tensor_step.cuh"
#include "cuda/runtime/launch.cuh"

namespace tetrad::cuda {
namespace {

constexpr int kThreads = 128;
constexpr unsigned kAllLanes = 0xffffffffu;
constexpr int kHeads = 4, kDim = 128, kPieces = kDim / 32, kWarpKeys = 32;

// The key of a block of sequence b, null past the `visible` ones.
__device__ __forceinline__ const bf16* block_key(const QsaShape& s, const StepRows& r, int b, int block, int visible, int per_page) {
  if (block >= visible) return nullptr;
  const std::byte* page = page_of(r, b, block, per_page);
  return reinterpret_cast<const bf16*>(page + s.keys_offset) + static_cast<std::size_t>(block % per_page) * s.DI;
}

__device__ __forceinline__ float relu_or_nan(float x) {
  return x < 0.0f && !mutant(Mutant::kScoreWithoutRelu) ? 0.0f : x;  // a comparison with NaN is false, so NaN passes
}

// x / sqrt(kDim), rounded once: the rounded inverse and one correction.
__device__ __forceinline__ float by_root_of_dim(float x) {
  constexpr float kRoot = 11.3137085f, kInverse = 1.0f / kRoot;
  const float quotient = x * kInverse;
  return fabsf(x) == INFINITY ? x : fmaf(fmaf(-quotient, kRoot, x), kInverse, quotient);
}

// Rows [first, end) of one sequence, of a tile that ends at `rows`, and how many blocks the last of them, which sees most, may see.
struct RowSpan {
  int b, end, visible;
};
__device__ __forceinline__ RowSpan same_sequence(const QsaShape& s, const StepRows& r, int tile, int first, int rows) {
  RowSpan span{.b = sequence_of(r, tile + first), .end = first + 1};
  while (span.end < rows && sequence_of(r, tile + span.end) == span.b) ++span.end;
  span.visible = (r.position[tile + span.end - 1] + 1) / s.R;
  if (span.visible > s.max_blocks) __trap();
  return span;
}

// The published indexer: four heads of 128. A warp keeps 32 keys in registers and goes over the rows, two a step.
constexpr int kQueryLd = kDim + 32;                                   // two neighbouring heads meet different banks
constexpr int kManyRows = 64, kManyThreads = 256, kFewThreads = 128;  // of a block: fewer spread the keys of a long row wider

__global__ void __launch_bounds__(kManyThreads, 2)
    qsa_scores_published_kernel(const QsaShape s, const bf16* projected, const QsaGroup g, int tile_rows, const StepRows r) {
  wait_for_previous();
  extern __shared__ uint4 memory[];
  auto* queries = reinterpret_cast<bf16*>(memory);  // [tile_rows * kHeads, kQueryLd]
  const int first_row = blockIdx.y * tile_rows, rows = min(tile_rows, g.count - first_row), tile = g.first + first_row;
  const int per_page = r.page_tokens / s.R, warp = threadIdx.x / 32, lane = threadIdx.x % 32, piece = lane % 4 * 8;
  const int block_first = blockIdx.x * (blockDim.x * (kWarpKeys / 32)), first_key = block_first + warp * kWarpKeys;
  auto* visible = reinterpret_cast<int*>(queries + tile_rows * kHeads * kQueryLd);  // [tile_rows] blocks of each row; 0: all are selected
  bool loaded = false;
  for (int begin = 0; begin < rows;) {
    const RowSpan span = same_sequence(s, r, tile, begin, rows);
    const int from = begin;
    begin = span.end;
    if (span.visible <= s.topk || block_first >= span.visible) continue;
    if (!loaded) {
      for (int i = threadIdx.x; i < rows * kHeads * (kDim / 8); i += blockDim.x) {
        const int row = i / (kHeads * (kDim / 8)), element = i % (kHeads * (kDim / 8)) * 8;
        *reinterpret_cast<uint4*>(queries + (row * kHeads + element / kDim) * kQueryLd + element % kDim) =
            *reinterpret_cast<const uint4*>(projected + static_cast<std::size_t>(tile + row) * s.row + s.index_q + element);
      }
      for (int i = threadIdx.x; i < rows; i += blockDim.x) {
        const int blocks = (r.position[tile + i] + 1) / s.R;
        visible[i] = blocks > s.topk ? blocks : 0;
      }
      __syncthreads();  // the queries are in shared memory
      loaded = true;
    }
    if (first_key >= span.visible) continue;
    uint4 upper[2][kPieces], lower[2][kPieces];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int block = first_key + j * 16 + lane / 4;
      const bf16* high = block_key(s, r, span.b, block, span.visible, per_page);
      const bf16* low = block_key(s, r, span.b, block + 8, span.visible, per_page);
#pragma unroll
      for (int k = 0; k < kPieces; ++k) {
        upper[j][k] = load_piece(high, k * 32 + piece, kDim);
        lower[j][k] = load_piece(low, k * 32 + piece, kDim);
      }
    }
    for (int row = from; row < span.end; row += 2) {
      const bf16* query = queries + min(row * kHeads + lane / 4, rows * kHeads - 1) * kQueryLd + piece;
      float acc[2][4] = {};
#pragma unroll
      for (int k = 0; k < kPieces; ++k) {
        const uint4 q = *reinterpret_cast<const uint4*>(query + k * 32);
#pragma unroll
        for (int j = 0; j < 2; ++j) multiply_pieces(acc[j], upper[j][k], lower[j][k], q);
      }
      // Even lanes hold heads 0 and 1 of a row, odd ones 2 and 3, both for two keys: each finishes one of the keys.
      const bool odd = lane % 2 == 1;
      const int mine = row + lane % 4 / 2, blocks = mine < span.end ? visible[mine] : 0;
      float* out = g.scores + static_cast<std::size_t>(first_row + mine) * s.max_blocks;
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        float dot[4];
#pragma unroll
        for (int k = 0; k < 4; ++k) dot[k] = relu_or_nan(acc[j][k]);
        const float first = __shfl_xor_sync(kAllLanes, odd ? dot[0] : 0.0f + dot[2] + dot[3], 1),
                    second = __shfl_xor_sync(kAllLanes, dot[1], 1);
        const float sum = odd ? first + dot[2] + dot[3] : 0.0f + dot[0] + dot[1] + first + second;
        const int block = first_key + j * 16 + (odd ? 8 : 0) + lane / 4;
        if (block < blocks) out[block] = by_root_of_dim(sum);
      }
    }
  }
}

// Any indexer. Columns of a block are (row, head) pairs: eight rows with HI heads each. Shared: [kKeys, kRows * HI] dot products.
constexpr int kKeys = 64, kRows = 8;

__global__ void __launch_bounds__(kThreads) qsa_scores_kernel(const QsaShape s, const bf16* projected, const QsaGroup g, const StepRows r) {
  wait_for_previous();
  extern __shared__ float dots[];
  const int first_row = blockIdx.y * kRows, rows = min(kRows, g.count - first_row), columns = kRows * s.HI, tile_row = g.first + first_row;
  const int per_page = r.page_tokens / s.R, warp = threadIdx.x / 32, lane = threadIdx.x % 32, piece = lane % 4 * 8;
  const int first_key = blockIdx.x * kKeys;
  for (int begin = 0; begin < rows;) {
    const RowSpan span = same_sequence(s, r, tile_row, begin, rows);
    const int from = begin;
    begin = span.end;
    if (span.visible <= s.topk || first_key >= span.visible) continue;
    const bf16* upper = block_key(s, r, span.b, first_key + warp * 16 + lane / 4, span.visible, per_page);
    const bf16* lower = block_key(s, r, span.b, first_key + warp * 16 + lane / 4 + 8, span.visible, per_page);
    for (int tile = from * s.HI / 8 * 8; tile < span.end * s.HI; tile += 8) {
      const int column = tile + lane / 4, row = column / s.HI;
      const bf16* query = row >= from && row < span.end
                              ? projected + static_cast<std::size_t>(tile_row + row) * s.row + s.index_q + column % s.HI * s.DI
                              : nullptr;
      float acc[4] = {};
      for (int k = 0; k < s.DI; k += 32)
        multiply_pieces(acc, load_piece(upper, k + piece, s.DI), load_piece(lower, k + piece, s.DI), load_piece(query, k + piece, s.DI));
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int c = tile + lane % 4 * 2 + j % 2;
        if (c < columns) dots[(warp * 16 + lane / 4 + j / 2 * 8) * columns + c] = acc[j];
      }
    }
    __syncthreads();  // the dot products of this sequence's rows are written
    for (int i = threadIdx.x; i < kKeys * (span.end - from); i += kThreads) {
      const int row = from + i / kKeys, block = first_key + i % kKeys;
      const int blocks = (r.position[tile_row + row] + 1) / s.R;
      if (blocks <= s.topk || block >= blocks) continue;
      const float* dot = dots + i % kKeys * columns + row * s.HI;
      float sum = 0.0f;
      for (int j = 0; j < s.HI; ++j) sum += relu_or_nan(dot[j]);
      g.scores[static_cast<std::size_t>(first_row + row) * s.max_blocks + block] = sum / sqrtf(static_cast<float>(s.DI));
    }
    __syncthreads();  // the dot products have been read
  }
}

unsigned u(int x) { return static_cast<unsigned>(x); }

}  // namespace

void qsa_scores(const QsaShape& s, const bf16* projected, const QsaGroup& g, int most_blocks, const StepRows& r, const Stream& stream) {
  if (most_blocks <= s.topk) return;
  if (s.HI == kHeads && s.DI == kDim && s.row % 8 == 0 && s.index_q % 8 == 0) {
    const int tile_rows = std::clamp(r.T / std::max(r.B, 1), 1, kManyRows);  // rows of a tile wait for each other's sequences
    const int threads = tile_rows < kManyRows ? kFewThreads : kManyThreads;
    const std::size_t shared = static_cast<std::size_t>(tile_rows) * (kHeads * kQueryLd * sizeof(bf16) + sizeof(int));
    if (shared > 48 * 1024) allow_shared("qsa_scores", qsa_scores_published_kernel, shared);
    return launch("qsa_scores", qsa_scores_published_kernel,
                  {dim3(u(ceil_div(most_blocks, threads * kWarpKeys / 32)), u(ceil_div(g.count, tile_rows))), dim3(u(threads)), shared},
                  stream, s, projected, g, tile_rows, r);
  }
  const std::size_t shared = static_cast<std::size_t>(kKeys) * kRows * s.HI * sizeof(float);
  if (shared > 48 * 1024) allow_shared("qsa_scores", qsa_scores_kernel, shared);
  launch("qsa_scores", qsa_scores_kernel, {dim3(u(ceil_div(most_blocks, kKeys)), u(ceil_div(g.count, kRows))), dim3(kThreads), shared},
         stream, s, projected, g, r);
}

}  // namespace tetrad::cuda
