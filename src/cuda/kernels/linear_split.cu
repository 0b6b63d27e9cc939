// linear for few rows and few outputs on GPUs with clusters (contract in linear.h).
#include <algorithm>

#include "cuda/kernels/linear_split.cuh"
#include "cuda/runtime/launch.cuh"

namespace tetrad::cuda {
namespace {

constexpr int kSplitRows = 64;           // up to so many rows
constexpr int kSplitBlocks = 2 * 132;    // where there are more blocks of 16 outputs they fill the GPU by themselves
constexpr int kLeastSplitSegments = 12;  // fewer are not worth a barrier

template <int kTokenTiles>
__global__ void TETRAD_CLUSTER(kSplitRanks) __launch_bounds__(32 * kSplitWarps)
    linear_split_kernel(const LinearParams p, const SplitShape shape) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  linear_split<kTokenTiles>(p, shape, [&](int t, int n, float total) {
    if (n < p.N) p.y[static_cast<std::ptrdiff_t>(t) * p.ldy + n] = to_b16(total);
  });
#else
  wait_for_previous();
  __trap();  // never launched on this target
#endif
}

template <int kTokenTiles>
void launch_split(const LinearParams& p, const Stream& stream) {
  const int tokens = 8 * kTokenTiles, segments = ceil_div(p.k_fragments, p.segment);
  const SplitShape split{ceil_div(segments, kSplitRanks)};
  const LaunchShape shape{dim3(static_cast<unsigned>(kSplitRanks * p.n_fragments), static_cast<unsigned>(ceil_div(p.T, tokens))),
                          dim3(static_cast<unsigned>(32 * split.per_rank)),
                          static_cast<std::size_t>(split_shared_bytes<kTokenTiles>(split))};
  const auto kernel = linear_split_kernel<kTokenTiles>;
  if (shape.shared_bytes > 48 * 1024) allow_shared("linear_split", kernel, shape.shared_bytes);
  launch(linear_tag("linear_split", p, false, stream), kernel, shape, stream, p, split);
}

}  // namespace

bool linear_split(const LinearParams& p, bool fp8, const Stream& stream) {
  const int segments = ceil_div(p.k_fragments, p.segment);
  if (!stream.overlaps() || fp8 || p.groups.first != nullptr || p.T > kSplitRows || p.n_fragments > kSplitBlocks ||
      segments > kSplitSegments || segments < kLeastSplitSegments)
    return false;
  p.T <= 8 ? launch_split<1>(p, stream) : launch_split<2>(p, stream);
  return true;
}

}  // namespace tetrad::cuda
