// linear for few rows (contract in linear.h): a block owns 16 outputs, a warp one segment at a time; weights are fetched ahead of the rows.
#include <algorithm>

#include "base/error.h"
#include "cuda/kernels/linear_few.cuh"
#include "cuda/runtime/launch.cuh"

namespace tetrad::cuda {
namespace {

constexpr int kSumSlots = 2;             // of linear_sums: one segment
constexpr int kUsualWarps = 8;           // leaves room for several blocks on a multiprocessor
constexpr int kManyWarps = 16;           // where there are few blocks
constexpr int kSharedBytes = 112 << 10;  // of a block, so that two fit on a multiprocessor

// Sizes of a launch that the kernel needs, too.
struct FewShape {
  int warps, segments_per_warp, slots, tokens;  // tokens: rows that there is room for
};

// A warp has consecutive segments; their sums meet in shared memory. Shared: [segments][tokens][16] sums, then per warp its ring of
// weights and its columns of x.
template <bool kFp8, int kTokenTiles>
__global__ void __launch_bounds__(32 * kManyWarps) linear_few_kernel(const LinearParams p, const FewShape shape) {
  constexpr int kTokens = 8 * kTokenTiles;
  extern __shared__ __align__(128) float sums[];
  const int warp = threadIdx.x / 32, num_segments = (p.k_fragments + p.segment - 1) / p.segment, outputs = shape.tokens * kFragmentRows;
  const int first = min(warp * shape.segments_per_warp * p.segment, p.k_fragments);
  const int end = min(first + shape.segments_per_warp * p.segment, p.k_fragments);
  const std::size_t start = (static_cast<std::size_t>(blockIdx.x) * p.k_fragments + first) * WeightFragment<kFp8>::kBytes;
  auto* memory = reinterpret_cast<std::byte*>(sums + num_segments * outputs) +
                 warp * (WeightRing<kFp8>::bytes(shape.slots) + ColumnBuffers<kFp8, kTokenTiles>::elements(shape.tokens) * 2);
  bf16* columns = reinterpret_cast<bf16*>(memory + WeightRing<kFp8>::bytes(shape.slots));
  const bool grouped = p.groups.first != nullptr;
  WeightRing<kFp8> ring(memory, shape.slots);
  WeightRun run{p.data + start, 0, end - first, grouped ? 0 : (p.T + kTokens - 1) / kTokens};
  fill_ring(run, ring);
  wait_for_previous();
  if (grouped && static_cast<int>(blockIdx.y) >= *p.groups.num_active) return;
  const LinearGroup g = grouped ? of_group(p, p.groups.active[blockIdx.y]) : whole(p);
  if (grouped) {
    run = {g.data + start, 0, end - first, (g.end - g.begin + kTokens - 1) / kTokens};
    fill_ring(run, ring);
  }
  for (int t0 = g.begin; t0 < g.end; t0 += kTokens) {
    const int count = min(kTokens, g.end - t0);
    const auto row = [&](int t) { return x_row(p, t0 + t); };
    ColumnBuffers<kFp8, kTokenTiles> buffers(columns, shape.tokens, count);
    buffers.fetch_first(row, p.K, first, end);
    run_sums<kFp8, 1, kTokenTiles>(row, p.K, p.segment, first, end, buffers.x, ring, run,
                                   [&](int s, const auto& acc) { store_sums<kTokenTiles>(acc[0], count, sums + s * outputs); });
    __syncthreads();  // the sums are written
    for (int i = threadIdx.x; i < count * kFragmentRows; i += blockDim.x) {
      const int n = blockIdx.x * kFragmentRows + i % kFragmentRows, t = t0 + i / kFragmentRows;
      float total = 0.0f;
#pragma unroll 4
      for (int s = 0; s < num_segments; ++s) {
        const float scale = kFp8 ? g.scales[(n / p.scale_rows) * p.scale_columns + scale_column(p, s)] : 1.0f;
        const int at = mutant(Mutant::kSegmentOrder) ? num_segments - 1 - s : s;
        total = add_segment<kFp8>(s == 0, total, sums[at * outputs + i], scale);
      }
      if (n < p.N) p.y[static_cast<std::ptrdiff_t>(t) * p.ldy + n] = to_b16(total);
    }
    if (t0 + kTokens < g.end) __syncthreads();  // the sums have been read
  }
}

// Grid (N/16, segments/8): a warp a segment, its sum to memory. Shared: per warp its ring of weights and its columns of x.
template <int kTokenTiles>
__global__ void __launch_bounds__(32 * kUsualWarps) linear_sums_kernel(const LinearParams p, float* sums) {
  extern __shared__ __align__(128) std::byte shared[];
  const int warp = threadIdx.x / 32, s = blockIdx.y * kUsualWarps + warp, lane = threadIdx.x % 32;
  const int first = min(s * p.segment, p.k_fragments), end = min(first + p.segment, p.k_fragments), width = p.n_fragments * kFragmentRows;
  std::byte* memory = shared + warp * (WeightRing<false>::bytes(kSumSlots) + ColumnBuffers<false, kTokenTiles>::elements(p.T) * 2);
  WeightRing<false> ring(memory, kSumSlots);
  WeightRun run{p.data + (static_cast<std::size_t>(blockIdx.x) * p.k_fragments + first) * WeightFragment<false>::kBytes, 0, end - first, 1};
  fill_ring(run, ring);
  wait_for_previous();
  const auto row = [&](int t) { return x_row(p, t); };
  ColumnBuffers<false, kTokenTiles> buffers(reinterpret_cast<bf16*>(memory + WeightRing<false>::bytes(kSumSlots)), p.T, p.T);
  buffers.fetch_first(row, p.K, first, end);
  run_sums<false, 1, kTokenTiles>(row, p.K, p.segment, first, end, buffers.x, ring, run, [&](int segment, const auto& acc) {
#pragma unroll
    for (int i = 0; i < kTokenTiles; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int t = 8 * i + lane % 4 * 2 + j % 2, n = blockIdx.x * kFragmentRows + lane / 4 + j / 2 * 8;
        if (t < p.T) sums[(static_cast<std::size_t>(segment) * p.T + t) * width + n] = acc[0][i][j];
      }
  });
}

template <bool kFp8, int kTokenTiles>
void launch_few(const LinearParams& p, int num_groups, const Stream& stream) {
  const int segments = ceil_div(p.k_fragments, p.segment), blocks = p.n_fragments * num_groups, multiprocessors = stream.multiprocessors();
  const int most_warps = blocks < multiprocessors && segments > kUsualWarps && kTokenTiles == 1 ? kManyWarps : kUsualWarps;
  FewShape shape;
  shape.segments_per_warp = ceil_div(segments, most_warps);  // as even as can be
  shape.warps = ceil_div(segments, shape.segments_per_warp);
  shape.tokens = std::min(p.T, 8 * kTokenTiles);
  const int column_bytes = ColumnBuffers<kFp8, kTokenTiles>::elements(shape.tokens) * 2;
  const int sum_bytes = segments * shape.tokens * kFragmentRows * static_cast<int>(sizeof(float));
  const int room = (std::min(kSharedBytes, stream.shared_limit()) - sum_bytes) / shape.warps - column_bytes;
  const int needed = ceil_div(shape.segments_per_warp * p.segment, kSlotFragments<kFp8>);
  shape.slots = std::clamp(room / WeightRing<kFp8>::bytes(1), std::min(2, needed), needed);
  const std::size_t shared =
      static_cast<std::size_t>(sum_bytes) + static_cast<std::size_t>(shape.warps * (WeightRing<kFp8>::bytes(shape.slots) + column_bytes));
  const auto kernel = linear_few_kernel<kFp8, kTokenTiles>;
  if (shared > 48 * 1024) allow_shared("linear_few", kernel, shared);
  launch(linear_tag("linear_few", p, kFp8, stream), kernel,
         {dim3(static_cast<unsigned>(p.n_fragments), static_cast<unsigned>(num_groups)), dim3(static_cast<unsigned>(32 * shape.warps)),
          shared},
         stream, p, shape);
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
  const LaunchShape shape{
      dim3(static_cast<unsigned>(p.n_fragments), static_cast<unsigned>(ceil_div(linear_segments(w), kUsualWarps))), dim3(32 * kUsualWarps),
      static_cast<std::size_t>(kUsualWarps * (WeightRing<false>::bytes(kSumSlots) + ColumnBuffers<false, 1>::elements(p.T) * 2))};
  const auto kernel = a.T <= 8 ? linear_sums_kernel<1> : linear_sums_kernel<2>;
  if (shape.shared_bytes > 48 * 1024) allow_shared("linear_sums", kernel, shape.shared_bytes);
  launch(linear_tag("linear_sums", p, false, stream), kernel, shape, stream, p, sums);
}

}  // namespace tetrad::cuda
