// linear for few rows (contract in linear.h): a block owns 16 outputs, a warp one segment at a time; weights are fetched ahead of the rows.
#include <algorithm>

#include "base/error.h"
#include "cuda/kernels/linear_few.cuh"
#include "cuda/runtime/launch.cuh"

namespace tetrad::cuda {
namespace {

constexpr int kRoundSegments = 32;  // whose sums shared memory holds at a time
constexpr int kUsualWarps = 8;      // leaves room for several blocks on a multiprocessor
constexpr int kManyWarps = 16;      // where there are few blocks
constexpr int kManyBlocks = 132;

// Between rounds of a very wide K the totals wait behind the sums.
__device__ __forceinline__ float& carried_total(float* sums, int i, int outputs) { return sums[kRoundSegments * outputs + i]; }

// What a warp does not own it does not wait for: segments s, s + warps, ... follow each other without a barrier, and their sums meet in
// shared memory once per round. Shared: [round][kTokens][16] sums.
template <bool kFp8, int kTokenTiles, int kWarps>
__global__ void __launch_bounds__(32 * kWarps) linear_few_kernel(const LinearParams p) {
  constexpr int kTokens = 8 * kTokenTiles, kOutputs = kTokens * kFragmentRows;
  extern __shared__ float sums[];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, num_warps = blockDim.x / 32;
  const int num_segments = (p.k_fragments + p.segment - 1) / p.segment;
  const auto segment_end = [&](int s) { return min((s + 1) * p.segment, p.k_fragments); };
  const std::size_t strip = static_cast<std::size_t>(blockIdx.x) * p.k_fragments * WeightFragment<kFp8>::kBytes;
  const bool grouped = p.groups.first != nullptr;
  Batch<kFp8> batch;
  if (!grouped) batch.load(p.data + strip, warp * p.segment, segment_end(warp), lane);
  wait_for_previous();
  if (grouped && static_cast<int>(blockIdx.y) >= *p.groups.num_active) return;
  const LinearGroup g = grouped ? of_group(p, p.groups.active[blockIdx.y]) : whole(p);
  const std::byte* fragments = g.data + strip;
  if (grouped) batch.load(fragments, warp * p.segment, segment_end(warp), lane);
  const int n0 = blockIdx.x * kFragmentRows;

  for (int t0 = g.begin; t0 < g.end; t0 += kTokens) {
    const bf16* rows[kTokenTiles];
    token_rows<kTokenTiles>(p, t0, g.end, rows);
    for (int s0 = 0; s0 < num_segments; s0 += kRoundSegments) {
      const int round = min(kRoundSegments, num_segments - s0);
      for (int s = warp; s < round; s += num_warps) {
        // After this warp's last segment of the round comes its first of the next, or of the next rows.
        const bool in_round = s + num_warps < round, next_round = s0 + kRoundSegments + warp < num_segments;
        const int after = in_round ? s0 + s + num_warps : next_round ? s0 + kRoundSegments + warp : warp;
        const bool more = in_round || next_round || t0 + kTokens < g.end;
        float acc[kTokenTiles][4];
        segment_sum<kFp8, kTokenTiles>(fragments, rows, p.K, (s0 + s) * p.segment, segment_end(s0 + s), after * p.segment,
                                       more ? segment_end(after) : 0, batch, acc);
        store_sums<kTokenTiles>(acc, sums + s * kOutputs);
      }
      __syncthreads();  // the sums of this round are written
      for (int i = threadIdx.x; i < kOutputs; i += blockDim.x) {
        const int n = n0 + i % kFragmentRows, t = t0 + i / kFragmentRows;
        if (t >= g.end) break;
        float total = s0 == 0 ? 0.0f : carried_total(sums, i, kOutputs);
#pragma unroll 4
        for (int s = 0; s < round; ++s) {
          const float scale = kFp8 ? g.scales[(n / p.scale_rows) * p.scale_columns + s0 + s] : 1.0f;
          total = add_segment<kFp8>(s0 + s == 0, total, sums[s * kOutputs + i], scale);
        }
        if (s0 + round < num_segments)
          carried_total(sums, i, kOutputs) = total;
        else if (n < p.N)
          p.y[static_cast<std::ptrdiff_t>(t) * p.ldy + n] = to_b16(total);
      }
      if (s0 + round < num_segments || t0 + kTokens < g.end) __syncthreads();  // the sums have been read
    }
  }
}

// Grid (N/16, segments/8): a warp a segment, its sum to memory.
template <int kTokenTiles>
__global__ void __launch_bounds__(32 * kUsualWarps) linear_sums_kernel(const LinearParams p, float* sums) {
  const int s = blockIdx.y * kUsualWarps + threadIdx.x / 32, lane = threadIdx.x % 32;
  const int begin = s * p.segment, end = min(begin + p.segment, p.k_fragments);
  const std::byte* fragments = p.data + static_cast<std::size_t>(blockIdx.x) * p.k_fragments * WeightFragment<false>::kBytes;
  Batch<false> batch;
  batch.load(fragments, begin, end, lane);
  wait_for_previous();
  if (begin >= end) return;
  const bf16* rows[kTokenTiles];
  token_rows<kTokenTiles>(p, 0, p.T, rows);
  float acc[kTokenTiles][4];
  segment_sum<false, kTokenTiles>(fragments, rows, p.K, begin, end, 0, 0, batch, acc);
  const int width = p.n_fragments * kFragmentRows;
#pragma unroll
  for (int i = 0; i < kTokenTiles; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int t = 8 * i + lane % 4 * 2 + j % 2, n = blockIdx.x * kFragmentRows + lane / 4 + j / 2 * 8;
      if (t < p.T) sums[(static_cast<std::size_t>(s) * p.T + t) * width + n] = acc[i][j];
    }
}

template <bool kFp8, int kTokenTiles, int kWarps>
void launch_few(const LinearParams& p, int num_groups, const Stream& stream) {
  const int segments = ceil_div(p.k_fragments, p.segment), round = std::min(segments, kRoundSegments);
  const int in_turn = ceil_div(round, kWarps);  // segments of a warp: as even as can be
  const int warps = ceil_div(round, in_turn);
  constexpr std::size_t kSumBytes = 8 * kTokenTiles * kFragmentRows * sizeof(float);
  const std::size_t shared = kSumBytes * static_cast<std::size_t>(round + (segments > round ? 1 : 0));
  const auto kernel = linear_few_kernel<kFp8, kTokenTiles, kWarps>;
  if (shared > 48 * 1024) allow_shared("linear_few", kernel, shared);
  launch(linear_stem("linear_few", p, stream), kernel,
         {dim3(static_cast<unsigned>(p.n_fragments), static_cast<unsigned>(num_groups)), dim3(static_cast<unsigned>(32 * warps)), shared},
         stream, p);
}

template <bool kFp8, int kTokenTiles>
void launch_few(const LinearParams& p, int num_groups, const Stream& stream) {
  const bool deep = ceil_div(p.k_fragments, p.segment) > kUsualWarps;
  if (deep && p.n_fragments * num_groups < kManyBlocks) return launch_few<kFp8, kTokenTiles, kManyWarps>(p, num_groups, stream);
  launch_few<kFp8, kTokenTiles, kUsualWarps>(p, num_groups, stream);
}

template <bool kFp8>
void launch_few(const LinearParams& p, const Stream& stream) {
  const bool grouped = p.groups.first != nullptr;
  const int groups = grouped ? p.groups.num_active_bound : 1;
  const bool one_tile = grouped ? p.T <= 2 * p.groups.num_groups : p.T <= 8;
  one_tile ? launch_few<kFp8, 1>(p, groups, stream) : launch_few<kFp8, 2>(p, groups, stream);
}

}  // namespace

void linear_few(const LinearParams& p, bool fp8, const Stream& stream) { fp8 ? launch_few<true>(p, stream) : launch_few<false>(p, stream); }

int linear_segments(const DeviceLinear& w) { return ceil_div(w.column_fragments(), kSegmentFragments); }

void linear_sums(const DeviceLinear& w, const LinearArgs& a, float* sums, const Stream& stream) {
  if (a.T == 0) return;
  TETRAD_CHECK(!w.fp8 && a.groups == nullptr && a.T <= kFewLinearRows, "linear_sums: {} rows of a {} weight", a.T, w.fp8 ? "FP8" : "bf16");
  const LinearParams p = linear_params(w, a);
  const LaunchShape shape{dim3(static_cast<unsigned>(p.n_fragments), static_cast<unsigned>(ceil_div(linear_segments(w), kUsualWarps))),
                          dim3(32 * kUsualWarps)};
  launch(linear_stem("linear_sums", p, stream), a.T <= 8 ? linear_sums_kernel<1> : linear_sums_kernel<2>, shape, stream, p, sums);
}

}  // namespace tetrad::cuda
