// linear for up to 32 rows on Hopper (contract in linear.h): a warp keeps its segment of all rows in registers and streams the weights of
// one strip of 16 outputs after another, so that memory never waits for a block to begin.
#include <algorithm>

#include "cuda/kernels/linear_rows.cuh"
#include "cuda/runtime/launch.cuh"

namespace tetrad::cuda {
namespace {

constexpr int kStreamWarps = 8;  // at most: one to a segment
constexpr int kStreamRows = 32;
constexpr int kStreamSlots = 2;  // of a whole segment each

// The weights of a warp's segment, strip by strip.
struct StripRun {
  const std::byte* fragments;
  std::size_t stride;  // bytes from one of this block's strips to the next
  int strips, count;   // still to be started; fragments of each

  // Strips blockIdx.x, blockIdx.x + gridDim.x, ... of a warp whose segment begins at fragment `first`.
  __device__ __forceinline__ StripRun(const LinearParams& p, int first)
      : fragments(p.data + (static_cast<std::size_t>(blockIdx.x) * p.k_fragments + first) * WeightFragment<false>::kBytes),
        stride(static_cast<std::size_t>(gridDim.x) * p.k_fragments * WeightFragment<false>::kBytes),
        strips((p.n_fragments - static_cast<int>(blockIdx.x) + static_cast<int>(gridDim.x) - 1) / static_cast<int>(gridDim.x)),
        count(min(kSegmentFragments, p.k_fragments - first)) {}
  __device__ __forceinline__ void push(SegmentRing& ring) {
    if (strips <= 0) return;
    ring.push(fragments, 0, count);
    fragments += stride;
    --strips;
  }
};

// Grid: as many blocks as multiprocessors; a block has every gridDim.x-th strip. Shared: sums [2][segments][T][16], then a ring per warp.
template <int kTiles>
__global__ void __launch_bounds__(32 * kStreamWarps, 1) linear_stream_kernel(const LinearParams p) {
  extern __shared__ __align__(128) float sums[];
  const int warp = threadIdx.x / 32, num_segments = blockDim.x / 32, outputs = p.T * kFragmentRows;
  auto* memory = reinterpret_cast<std::byte*>(sums + (2 * num_segments * outputs + 31) / 32 * 32);
  SegmentRing ring(memory + warp * SegmentRing::bytes(kStreamSlots), kStreamSlots);
  StripRun run(p, warp * kSegmentFragments);
  fill_ring(run, ring);
  wait_for_previous();
  SegmentRows<kTiles> rows;
  rows.load(p, 0, p.T, warp * kSegmentFragments);
  int half = 0;
#pragma unroll 1
  for (int strip = blockIdx.x; strip < p.n_fragments; strip += gridDim.x, half ^= 1) {
    float acc[kTiles][4];
    rows.multiply(ring.front(), run.count, acc);
    ring.pop();
    run.push(ring);
    float* strip_sums = sums + half * num_segments * outputs;
    store_sums<kTiles>(acc, p.T, strip_sums + warp * outputs);
    __syncthreads();  // the sums are written, and those of the strip before the last have been read
#pragma unroll 1
    for (int i = threadIdx.x; i < outputs; i += blockDim.x) {
      float total = 0.0f;
#pragma unroll
      for (int s = 0; s < kStreamWarps; ++s) {
        if (s >= num_segments) break;
        const int at = mutant(Mutant::kSegmentOrder) ? num_segments - 1 - s : s;
        total = add_segment<false>(s == 0, total, strip_sums[at * outputs + i], 1.0f);
      }
      const int n = strip * kFragmentRows + i % kFragmentRows;
      if (n < p.N) p.y[static_cast<std::ptrdiff_t>(i / kFragmentRows) * p.ldy + n] = to_b16(total);
    }
  }
}

template <int kTiles>
void launch_stream(const LinearParams& p, const Stream& stream) {
  const int segments = ceil_div(p.k_fragments, kSegmentFragments);
  const LaunchShape shape{
      dim3(static_cast<unsigned>(std::min(p.n_fragments, stream.multiprocessors()))), dim3(static_cast<unsigned>(32 * segments)),
      static_cast<std::size_t>((2 * segments * p.T * kFragmentRows + 31) / 32 * 32 * 4 + segments * SegmentRing::bytes(kStreamSlots))};
  allow_shared("linear_stream", linear_stream_kernel<kTiles>, shape.shared_bytes);
  launch(linear_tag("linear_stream", p, false, stream), linear_stream_kernel<kTiles>, shape, stream, p);
}

}  // namespace

bool linear_stream(const LinearParams& p, bool fp8, const Stream& stream) {
  if (!stream.hopper() || fp8 || p.groups.first != nullptr || p.T > kStreamRows || p.k_fragments > kStreamWarps * kSegmentFragments)
    return false;
  if (p.T <= 8)
    launch_stream<1>(p, stream);
  else
    p.T <= 16 ? launch_stream<2>(p, stream) : launch_stream<4>(p, stream);
  return true;
}

}  // namespace tetrad::cuda
