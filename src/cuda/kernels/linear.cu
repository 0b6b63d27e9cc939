#include "cuda/kernels/linear.h"

#include <algorithm>
#include <string>

#include "base/error.h"
#include "cuda/kernels/device_math.cuh"
#include "cuda/kernels/linear_fragments.cuh"
#include "cuda/kernels/tensor_step.cuh"
#include "cuda/runtime/launch.cuh"

namespace tetrad::cuda {
namespace {

constexpr int kFewRows = kFewLinearRows;  // up to here a weight is streamed once and the multiply steps hide behind it
constexpr int kFewPasses = 3;             // over a weight that is in the caches after the first
constexpr int kRoundSegments = 32;        // whose sums shared memory holds at a time
constexpr int kUsualWarps = 8;            // leaves room for several blocks on a multiprocessor
constexpr int kManyWarps = 32;            // where there are few blocks
constexpr int kManyBlocks = 132;
constexpr int kBatchBf16 = 5;  // fragments loaded before the first is used: 10 loads of 16 bytes in flight per lane
constexpr int kBatchFp8 = 4;   // one scale block of 128 columns
constexpr int kTileN = 128, kTileT = kLinearRows, kStages = 4, kThreads = 256;

struct Params {
  int N, K, T;
  int n_fragments, k_fragments, segment;  // segment: fragments of 32 columns
  const std::byte* data;
  const float* scales;
  int scale_rows, scale_columns;
  const bf16* x;
  int ldx;
  bf16* y;
  int ldy;
  LinearGroups groups;
};

// A group's share of the work: its weights and rows of y.
struct Group {
  const std::byte* data;
  const float* scales;
  int begin, end;
};

__device__ Group whole(const Params& p) { return {p.data, p.scales, 0, p.T}; }
__device__ Group of_group(const Params& p, int e) {
  e = checked(e, p.groups.num_groups);
  const int begin = p.groups.first[e], end = p.groups.first[e + 1];
  if (begin < 0 || end < begin || end > p.T) __trap();
  return {p.data + e * p.groups.data_stride, p.scales + e * p.groups.scale_stride, begin, end};
}

__device__ const bf16* x_row(const Params& p, int row) {
  const int source = p.groups.x_rows == nullptr ? row : checked(p.groups.x_rows[row], p.groups.num_x_rows);
  return p.x + static_cast<std::ptrdiff_t>(source) * p.ldx;
}

// total <- the next segment's sum, scaled; the first segment starts the total.
template <bool kFp8>
__device__ __forceinline__ float add_segment(bool first, float total, float sum, float scale) {
  if constexpr (kFp8) return first ? scale * sum : fmaf(scale, sum, total);
  return first ? sum : total + sum;
}

// --- Few rows: a block owns 16 outputs, a warp one segment at a time. ---

// Between rounds of a very wide K the totals wait behind the sums.
__device__ __forceinline__ float& carried_total(float* sums, int i, int outputs) { return sums[kRoundSegments * outputs + i]; }

template <bool kFp8, int kTokenTiles>
__device__ __forceinline__ void segment_sum(const Params& p, const std::byte* fragments, const bf16* const* rows, int begin, int end,
                                            float (*acc)[4]) {
  constexpr int kBatch = kFp8 ? kBatchFp8 : kBatchBf16;
  const int lane = threadIdx.x % 32, column = lane % 4 * 8;
#pragma unroll
  for (int i = 0; i < kTokenTiles; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j) acc[i][j] = 0.0f;
  for (int f = begin; f < end; f += kBatch) {
    WeightFragment<kFp8> w[kBatch];
#pragma unroll
    for (int b = 0; b < kBatch; ++b)
      if (f + b < end) w[b].load(fragments + static_cast<std::size_t>(f + b) * WeightFragment<kFp8>::kBytes, lane);
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      if (f + b >= end) break;
      unsigned a[2][4];
      w[b].expand(a);
#pragma unroll
      for (int i = 0; i < kTokenTiles; ++i) {
        const uint4 v = load_piece(rows[i], (f + b) * kFragmentColumns + column, p.K);
        multiply_step(acc[i], a[0], v.x, v.y);
        multiply_step(acc[i], a[1], v.z, v.w);
      }
    }
  }
}

// What a warp does not own it does not wait for: segments s, s + warps, ... follow each other without a barrier, and their sums meet in
// shared memory once per round. Shared: [round][kTokens][16] sums.
template <bool kFp8, int kTokenTiles, int kWarps>
__global__ void __launch_bounds__(32 * kWarps) linear_few(const Params p) {
  wait_for_previous();
  constexpr int kTokens = 8 * kTokenTiles, kOutputs = kTokens * kFragmentRows;
  extern __shared__ float sums[];
  const bool grouped = p.groups.first != nullptr;
  if (grouped && static_cast<int>(blockIdx.y) >= *p.groups.num_active) return;
  const Group g = grouped ? of_group(p, p.groups.active[blockIdx.y]) : whole(p);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, num_warps = blockDim.x / 32;
  const int n0 = blockIdx.x * kFragmentRows;
  const int num_segments = (p.k_fragments + p.segment - 1) / p.segment;
  const std::byte* fragments = g.data + static_cast<std::size_t>(blockIdx.x) * p.k_fragments * WeightFragment<kFp8>::kBytes;

  for (int t0 = g.begin; t0 < g.end; t0 += kTokens) {
    const bf16* rows[kTokenTiles];
#pragma unroll
    for (int i = 0; i < kTokenTiles; ++i) {
      const int t = t0 + 8 * i + lane / 4;
      rows[i] = t < g.end ? x_row(p, t) : nullptr;
    }
    for (int s0 = 0; s0 < num_segments; s0 += kRoundSegments) {
      const int round = min(kRoundSegments, num_segments - s0);
      for (int s = warp; s < round; s += num_warps) {
        float acc[kTokenTiles][4];
        segment_sum<kFp8, kTokenTiles>(p, fragments, rows, (s0 + s) * p.segment, min((s0 + s + 1) * p.segment, p.k_fragments), acc);
        float* out = sums + s * kOutputs;
#pragma unroll
        for (int i = 0; i < kTokenTiles; ++i)
#pragma unroll
          for (int j = 0; j < 4; ++j) out[(8 * i + lane % 4 * 2 + j % 2) * kFragmentRows + lane / 4 + j / 2 * 8] = acc[i][j];
      }
      __syncthreads();  // the sums of this round are written
      for (int i = threadIdx.x; i < kOutputs; i += blockDim.x) {
        const int n = n0 + i % kFragmentRows, t = t0 + i / kFragmentRows;
        float total = s0 == 0 ? 0.0f : carried_total(sums, i, kOutputs);
        for (int s = 0; s < round; ++s) {
          const float scale = kFp8 ? g.scales[(n / p.scale_rows) * p.scale_columns + s0 + s] : 1.0f;
          total = add_segment<kFp8>(s0 + s == 0, total, sums[s * kOutputs + i], scale);
        }
        if (s0 + round < num_segments)
          carried_total(sums, i, kOutputs) = total;
        else if (n < p.N && t < g.end)
          p.y[static_cast<std::ptrdiff_t>(t) * p.ldy + n] = to_b16(total);
      }
      __syncthreads();  // the sums have been read
    }
  }
}

// Grid (N/16, segments/8): a warp a segment, its sum to memory.
template <int kTokenTiles>
__global__ void __launch_bounds__(32 * kUsualWarps) linear_sums_kernel(const Params p, float* sums) {
  wait_for_previous();
  const int s = blockIdx.y * kUsualWarps + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (s * p.segment >= p.k_fragments) return;
  const bf16* rows[kTokenTiles];
#pragma unroll
  for (int i = 0; i < kTokenTiles; ++i) {
    const int t = 8 * i + lane / 4;
    rows[i] = t < p.T ? x_row(p, t) : nullptr;
  }
  float acc[kTokenTiles][4];
  segment_sum<false, kTokenTiles>(p, p.data + static_cast<std::size_t>(blockIdx.x) * p.k_fragments * WeightFragment<false>::kBytes, rows,
                                  s * p.segment, min((s + 1) * p.segment, p.k_fragments), acc);
  const int width = p.n_fragments * kFragmentRows;
#pragma unroll
  for (int i = 0; i < kTokenTiles; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int t = 8 * i + lane % 4 * 2 + j % 2, n = blockIdx.x * kFragmentRows + lane / 4 + j / 2 * 8;
      if (t < p.T) sums[(static_cast<std::size_t>(s) * p.T + t) * width + n] = acc[i][j];
    }
}

// --- Many rows: 128 outputs by 128 tokens, warps 4 by 2, each 32 outputs by 64 tokens. ---

template <bool kFp8>
struct Stage {
  uint4 x[kTileT * 4];                                                 // [128 tokens][32 columns]
  std::byte w[kTileN / kFragmentRows * WeightFragment<kFp8>::kBytes];  // [8 fragments of 16 outputs]
};

template <bool kFp8>
__device__ __forceinline__ void load_stage(const Params& p, const Group& g, Stage<kFp8>& stage, int n0, int t0, int f) {
  constexpr int kWeightChunks = sizeof(stage.w) / 16;
  for (int i = threadIdx.x; i < kTileT * 4; i += kThreads) {
    const int t = t0 + i / 4, k = f * kFragmentColumns + i % 4 * 8;
    if (t < g.end && k + 8 <= p.K)
      copy_async(&stage.x[i], x_row(p, t) + k);
    else
      stage.x[i] = t < g.end ? load_piece(x_row(p, t), k, p.K) : uint4{0, 0, 0, 0};
  }
  for (int i = threadIdx.x; i < kWeightChunks; i += kThreads) {
    constexpr int kChunks = WeightFragment<kFp8>::kBytes / 16;
    const int n = n0 / kFragmentRows + i / kChunks;
    std::byte* to = stage.w + i * 16;
    if (n < p.n_fragments)
      copy_async(to, g.data + (static_cast<std::size_t>(n) * p.k_fragments + f) * WeightFragment<kFp8>::kBytes + i % kChunks * 16);
    else
      *reinterpret_cast<uint4*>(to) = uint4{0, 0, 0, 0};
  }
  commit_copies();
}

template <bool kFp8>
__global__ void __launch_bounds__(kThreads, 1) linear_many(const Params p) {
  wait_for_previous();
  extern __shared__ uint4 memory[];
  auto* stages = reinterpret_cast<Stage<kFp8>*>(memory);
  const bool grouped = p.groups.first != nullptr;
  Group g;
  int t0;
  if (grouped) {
    if (static_cast<int>(blockIdx.y) >= *p.groups.num_tiles) return;
    const int2 tile = p.groups.tiles[blockIdx.y];
    g = of_group(p, tile.x);
    t0 = tile.y;
    if (t0 < g.begin || t0 >= g.end) __trap();
  } else {
    g = whole(p);
    t0 = blockIdx.y * kTileT;
  }
  const int n0 = blockIdx.x * kTileN;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int warp_n = warp % 4 * 32, warp_t = warp / 4 * 64;

  float acc[2][8][4] = {}, total[2][8][4];
  for (int s = 0; s < kStages - 1; ++s) {
    if (s < p.k_fragments)
      load_stage<kFp8>(p, g, stages[s], n0, t0, s);
    else
      commit_copies();
  }
  int in_segment = 0, segment = 0;
  for (int f = 0; f < p.k_fragments; ++f) {
    wait_copies<kStages - 2>();
    __syncthreads();  // stage f is in shared memory for everybody, and stage f - 1 has been read by everybody
    if (f + kStages - 1 < p.k_fragments)
      load_stage<kFp8>(p, g, stages[(f + kStages - 1) % kStages], n0, t0, f + kStages - 1);
    else
      commit_copies();
    const Stage<kFp8>& stage = stages[f % kStages];
    unsigned a[2][2][4];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      WeightFragment<kFp8> w;
      w.load(stage.w + (warp_n / kFragmentRows + i) * WeightFragment<kFp8>::kBytes, lane);
      w.expand(a[i]);
    }
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const uint4 v = stage.x[(warp_t + 8 * j + lane / 4) * 4 + lane % 4];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        multiply_step(acc[i][j], a[i][0], v.x, v.y);
        multiply_step(acc[i][j], a[i][1], v.z, v.w);
      }
    }
    if (++in_segment < p.segment && f + 1 < p.k_fragments) continue;
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int n = min(n0 + warp_n + 16 * i + 8 * h + lane / 4, p.n_fragments * kFragmentRows - 1);
        const float scale = kFp8 ? g.scales[(n / p.scale_rows) * p.scale_columns + segment] : 1.0f;
#pragma unroll
        for (int j = 0; j < 8; ++j)
#pragma unroll
          for (int c = 2 * h; c < 2 * h + 2; ++c) {
            total[i][j][c] = add_segment<kFp8>(segment == 0, total[i][j][c], acc[i][j][c], scale);
            acc[i][j][c] = 0.0f;
          }
      }
    in_segment = 0;
    ++segment;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i)
#pragma unroll
    for (int j = 0; j < 8; ++j)
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const int n = n0 + warp_n + 16 * i + lane / 4 + c / 2 * 8, t = t0 + warp_t + 8 * j + lane % 4 * 2 + c % 2;
        if (n < p.N && t < g.end) p.y[static_cast<std::ptrdiff_t>(t) * p.ldy + n] = to_b16(total[i][j][c]);
      }
}

// --- Launchers ---

// A profile tells the shapes apart.
std::string stem(const char* name, const Params& p, const Stream& stream) {
  return stream.profiler() == nullptr ? name : fmt::format("{} {}x{}{}", name, p.N, p.K, p.groups.first == nullptr ? "" : " grouped");
}

template <bool kFp8, int kTokenTiles, int kWarps>
void launch_few(const Params& p, int num_groups, const Stream& stream) {
  const int segments = ceil_div(p.k_fragments, p.segment), round = std::min(segments, kRoundSegments);
  const int in_turn = ceil_div(round, kWarps);  // segments of a warp: as even as can be
  const int warps = ceil_div(round, in_turn);
  constexpr std::size_t kSumBytes = 8 * kTokenTiles * kFragmentRows * sizeof(float);
  const std::size_t shared = kSumBytes * static_cast<std::size_t>(round + (segments > round ? 1 : 0));
  const auto kernel = linear_few<kFp8, kTokenTiles, kWarps>;
  if (shared > 48 * 1024) allow_shared("linear_few", kernel, shared);
  launch(stem("linear_few", p, stream), kernel,
         {dim3(static_cast<unsigned>(p.n_fragments), static_cast<unsigned>(num_groups)), dim3(static_cast<unsigned>(32 * warps)), shared},
         stream, p);
}

template <bool kFp8, int kTokenTiles>
void launch_few(const Params& p, int num_groups, const Stream& stream) {
  if (p.n_fragments * num_groups < kManyBlocks) return launch_few<kFp8, kTokenTiles, kManyWarps>(p, num_groups, stream);
  launch_few<kFp8, kTokenTiles, kUsualWarps>(p, num_groups, stream);
}

template <bool kFp8>
void launch_linear(const Params& p, const LinearArgs& a, const Stream& stream) {
  const bool grouped = a.groups != nullptr;
  // Rows of a group are few when on average they are: the rest costs a second pass over cached weights.
  // A weight of few outputs would leave most of the GPU without a tile.
  const bool few = grouped ? a.T <= kFewRows * a.groups->num_groups : a.T <= kFewRows * kFewPasses;
  if (few) {
    const int groups = grouped ? a.groups->num_active_bound : 1;
    const bool one_tile = grouped ? a.T <= 2 * a.groups->num_groups : a.T <= 8;
    return one_tile ? launch_few<kFp8, 1>(p, groups, stream) : launch_few<kFp8, 2>(p, groups, stream);
  }
  const std::size_t shared = kStages * sizeof(Stage<kFp8>);
  allow_shared("linear_many", linear_many<kFp8>, shared);
  const int tiles = grouped ? a.groups->num_tiles_bound : ceil_div(a.T, kTileT);
  launch(stem("linear_many", p, stream), linear_many<kFp8>,
         {dim3(static_cast<unsigned>(ceil_div(p.N, kTileN)), static_cast<unsigned>(tiles)), dim3(kThreads), shared}, stream, p);
}

Params params_of(const DeviceLinear& w, const LinearArgs& a) {
  TETRAD_CHECK(reinterpret_cast<std::uintptr_t>(a.x) % 16 == 0 && a.ldx % 8 == 0, "linear: x at {} with rows of {} is not aligned",
               static_cast<const void*>(a.x), a.ldx);
  Params p{.N = w.N,
           .K = w.K,
           .T = a.T,
           .n_fragments = w.row_fragments(),
           .k_fragments = w.column_fragments(),
           .segment = w.fp8 ? w.block_columns / kFragmentColumns : kSegmentFragments,
           .data = static_cast<const std::byte*>(w.data),
           .scales = w.scales,
           .scale_rows = w.scale_rows,
           .scale_columns = w.scale_columns(),
           .x = a.x,
           .ldx = a.ldx,
           .y = a.y,
           .ldy = a.ldy,
           .groups = {}};
  if (a.groups != nullptr) p.groups = *a.groups;
  return p;
}

}  // namespace

void linear(const DeviceLinear& w, const LinearArgs& a, const Stream& stream) {
  if (a.T == 0) return;
  TETRAD_CHECK(a.T == 1 || a.ldy >= w.N, "linear: rows of y are {} apart, N is {}", a.ldy, w.N);
  TETRAD_CHECK(!w.fp8 || w.block_columns % kFragmentColumns == 0, "linear: scale blocks of {} columns", w.block_columns);
  const Params p = params_of(w, a);
  w.fp8 ? launch_linear<true>(p, a, stream) : launch_linear<false>(p, a, stream);
}

int linear_segments(const DeviceLinear& w) { return ceil_div(w.column_fragments(), kSegmentFragments); }

void linear_sums(const DeviceLinear& w, const LinearArgs& a, float* sums, const Stream& stream) {
  if (a.T == 0) return;
  TETRAD_CHECK(!w.fp8 && a.groups == nullptr && a.T <= kFewLinearRows, "linear_sums: {} rows of a {} weight", a.T, w.fp8 ? "FP8" : "bf16");
  const Params p = params_of(w, a);
  const LaunchShape shape{dim3(static_cast<unsigned>(p.n_fragments), static_cast<unsigned>(ceil_div(linear_segments(w), kUsualWarps))),
                          dim3(32 * kUsualWarps)};
  launch(stem("linear_sums", p, stream), a.T <= 8 ? linear_sums_kernel<1> : linear_sums_kernel<2>, shape, stream, p, sums);
}

}  // namespace tetrad::cuda
