// linear for many rows on Hopper (contract in linear.h). A block's last four warps bring weights and rows of x into slots of shared memory,
// a stage of 64 columns to a slot, as far ahead as there are slots; two warpgroups multiply 64 outputs each. wgmma gives the bits of the
// same chain of mma steps.
#include <algorithm>

#include "cuda/kernels/linear_wgmma.cuh"
#include "cuda/runtime/launch.cuh"

namespace tetrad::cuda {
namespace wgmma {
namespace {

constexpr int kBf16Segment = kSegmentFragments, kFp8Segment = 4;  // fragments; other FP8 scale blocks take the portable kernel
constexpr int kMinFragments = 8;                                  // a shorter K is not worth the start
constexpr int kSharedBytes = 226 * 1024;                          // of a block, all in all

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// What a consumer warp carries from fragment to fragment of a tile.
template <bool kFp8, int kRows>
struct Multiplier {
  Ring<kFp8>& ring;
  WeightFragment<kFp8> next;
  float sum[kRows / 2];

  // The next fragment's weights, `half` 0 or 1 of a slot; with the first also that slot.
  __device__ __forceinline__ void load(int half) {
    if (half == 0) {
      ring.full().wait(ring.parity);
      publish_to_wgmma();
    }
    next.load(ring.weights() + (threadIdx.x / 32 * 2 + half) * WeightFragment<kFp8>::kBytes, threadIdx.x % 32);
  }
  __device__ __forceinline__ void start(unsigned (&a)[2][4], int half, bool first) {
    std::uint64_t x[2];
    int add = first ? 0 : 1;
    asm volatile("" : "+r"(add));
#pragma unroll
    for (int s = 0; s < 2; ++s) {
      x[s] = swizzled_tile(ring.x()) + 4 * half + 2 * s;
      settle(x[s]);
      settle(a[s]);
    }
    wgmma_begin();
    wgmma_step<kRows>(sum, a[0], x[0], add);
    wgmma_step<kRows>(sum, a[1], x[1], 1);
    wgmma_commit();
  }
  __device__ __forceinline__ void finish() {
    wgmma_wait<0>();
    settle(sum);
  }
};

// The sums of a warp's 16 outputs of kRows rows. A segment is written out: while a fragment multiplies, the next one's weights become
// operands, in registers of their own. No branch depends on whether there is a next one: behind such a branch ptxas 13 takes registers that
// wgmma still reads. What is left of the last segment goes fragment by fragment.
template <bool kFp8, int kRows>
__device__ __forceinline__ void multiply_tile(const LinearParams& p, const Tile& tile, Ring<kFp8>& ring, float (&total)[kRows / 2]) {
  constexpr int kSegment = kFp8 ? kFp8Segment : kBf16Segment;
  const int lane = threadIdx.x % 32, full_segments = p.k_fragments / kSegment;
  const float *scales = nullptr, *scales_below = nullptr;
  float scale[2] = {1.0f, 1.0f}, scale_after[2];
  const auto load_scales = [&](int segment) {
    if constexpr (kFp8) {
      const int column = scale_column(p, min(segment, p.scale_columns - 1));
      scale_after[0] = scales[column], scale_after[1] = scales_below[column];
    }
  };
  if constexpr (kFp8) {
    const int fragment_row = min(tile.n0 / kFragmentRows + static_cast<int>(threadIdx.x) / 32, p.n_fragments - 1);
    const int row = (fragment_row * kFragmentRows + lane / 4) / p.scale_rows;
    scales = p.scales + tile.group * p.groups.scale_stride + row * p.scale_columns;
    scales_below = scales + 8 / p.scale_rows * p.scale_columns;
  }
  load_scales(0);
#pragma unroll
  for (int c = 0; c < kRows / 2; ++c) total[c] = -0.0f;  // -0 and a number are that number, whatever its sign
  Multiplier<kFp8, kRows> m{ring};
  const auto fold = [&] {
#pragma unroll
    for (int c = 0; c < kRows / 2; ++c) total[c] = add_segment<kFp8>(false, total[c], m.sum[c], scale[c % 4 / 2]);
  };
  unsigned a[2][2][4];
  m.load(0);
  m.next.expand(a[0]);
#pragma unroll 1
  for (int segment = 0; segment < full_segments; ++segment) {
    scale[0] = scale_after[0], scale[1] = scale_after[1];
    load_scales(segment + 1);
    Barrier* read = nullptr;
#pragma unroll
    for (int j = 0; j < kSegment; ++j) {
      m.start(a[j % 2], j % 2, j == 0);
      Barrier* slot = &ring.empty();
      if (j % 2 == 1) ring.advance();
      m.load((j + 1) % 2);  // at the tile's end from the next tile's slot, or from the one that says that there is none
      if (j > 0) {
        wgmma_wait<1>();
        if (j % 2 == 0) read->arrive();
      }
      m.next.expand(a[(j + 1) % 2]);
      read = slot;
    }
    m.finish();
    read->arrive();
    fold();
  }
  if (p.k_fragments % kSegment != 0) {
    scale[0] = scale_after[0], scale[1] = scale_after[1];
#pragma unroll 1
    for (int f = full_segments * kSegment; f < p.k_fragments; ++f) {
      if (f > full_segments * kSegment) {
        m.load(f % 2);
        m.next.expand(a[0]);
      }
      m.start(a[0], f % 2, f == full_segments * kSegment);
      m.finish();
      if (f % 2 == 1 || f + 1 == p.k_fragments) {
        ring.empty().arrive();
        ring.advance();
      }
    }
    fold();
  }
}

// A warp's 16 outputs of kRows rows, through shared memory so that a row's outputs leave together.
template <int kRows>
__device__ __forceinline__ void store_tile(const LinearParams& p, const Tile& tile, std::byte* staging, const float (&total)[kRows / 2]) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, half = lane % 2, n = tile.n0 + warp * kFragmentRows + 8 * half;
  const bool aligned = p.ldy % 8 == 0 && reinterpret_cast<std::uintptr_t>(p.y) % 16 == 0 && n + 8 <= p.N;
#pragma unroll
  for (int first = 0; first < kRows; first += kStoreRows) {
    const int rows = min(kStoreRows, kRows - first);
    __syncwarp();  // the rows before these have been read
#pragma unroll
    for (int j = 0; j < rows / 8; j += 2) {
      unsigned pair[4];
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const int i = first / 2 + 4 * j + 2 * c;
        const __nv_bfloat162 both = __floats2bfloat162_rn(total[i], total[i + 1]);
        pair[c] = reinterpret_cast<const unsigned&>(both);
      }
      const auto to =
          static_cast<unsigned>(__cvta_generic_to_shared(staging + (8 * (j + lane / 16) + lane % 8) * kStoreBytes + lane / 8 % 2 * 16));
      asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(pair[0]), "r"(pair[1]),
                   "r"(pair[2]), "r"(pair[3])
                   : "memory");
    }
    __syncwarp();  // the rows are written
#pragma unroll
    for (int row = lane / 2; row < rows; row += 16) {
      const int t = tile.t0 + first + row;
      if (t >= tile.end) break;
      const std::byte* from = staging + row * kStoreBytes + half * 16;
      bf16* to = p.y + static_cast<std::ptrdiff_t>(t) * p.ldy + n;
      if (aligned) {
        *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(from);
      } else {
        for (int i = 0; i < 8 && n + i < p.N; ++i) to[i] = reinterpret_cast<const bf16*>(from)[i];
      }
    }
  }
}

// With the fewest of the compiled rows that hold the tile's.
template <bool kFp8, int kChoice = 0>
__device__ __forceinline__ void finish_tile(const LinearParams& p, const Tile& tile, Ring<kFp8>& ring) {
  constexpr int kRows = kTileRows[kChoice];
  if constexpr (kRows < kMaxTileRows)
    if (tile.end - tile.t0 > kRows) return finish_tile<kFp8, kChoice + 1>(p, tile, ring);
  float total[kRows / 2];
  multiply_tile<kFp8, kRows>(p, tile, ring, total);
  store_tile<kRows>(p, tile, ring.shared.store[threadIdx.x / 32], total);
}

template <bool kFp8>
__device__ __forceinline__ void consume(const LinearParams& p, Ring<kFp8> ring) {
  for (;;) {
    ring.full().wait(ring.parity);
    const Tile tile = ring.shared.tiles[ring.slot];
    if (tile.end == 0) return;
    finish_tile<kFp8>(p, tile, ring);
  }
}

template <bool kFp8>
__global__ void __launch_bounds__(kThreads, 1) linear_wgmma_kernel(const LinearParams p, const Plan plan) {
  extern __shared__ __align__(1024) std::byte slots[];
  __shared__ Shared shared;
  if (threadIdx.x == 0) {
    // A slot is empty when every thread that multiplies has said so: no lane's read hides behind another's.
    for (int s = 0; s < kMaxSlots; ++s) shared.full[s].init(kTileWarps + kProducers), shared.empty[s].init(kConsumers);
    Barrier::publish_init();
  }
  __syncthreads();  // the barriers are set up
  wait_for_previous();
  const Ring<kFp8> ring{slots, plan, shared};
  if (threadIdx.x >= kConsumers) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    produce<kFp8>(p, ring);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    consume<kFp8>(p, ring);
  }
}

#else

template <bool kFp8>
__global__ void linear_wgmma_kernel(const LinearParams, const Plan) {
  wait_for_previous();
  __trap();  // never launched on this target
}

#endif

// Rows of a tile of a whole weight: a wave of tiles takes about as long as rows and outputs take to load.
int choose_rows(const LinearParams& p, int blocks) {
  int best = kTileRows[0], best_cost = 0;
  for (const int rows : kTileRows) {
    const int cost = ceil_div(ceil_div(p.N, kTileN) * ceil_div(p.T, rows), blocks) * (rows + kTileN);
    if (best_cost == 0 || cost < best_cost) best = rows, best_cost = cost;
  }
  return best;
}

template <bool kFp8>
void launch_wgmma(const LinearParams& p, const Stream& stream) {
  const auto kernel = linear_wgmma_kernel<kFp8>;
  const bool grouped = p.groups.first != nullptr;
  Plan plan{.rows = grouped ? kGroupTileRows : choose_rows(p, stream.multiprocessors()), .slots = 0};
  plan.slots = std::min(kMaxSlots, (kSharedBytes - static_cast<int>(sizeof(Shared)) - 1024) / slot_bytes<kFp8>(plan));
  allow_shared("linear_wgmma", kernel, static_cast<std::size_t>(kSharedBytes - static_cast<int>(sizeof(Shared)) - 1024));
  const int tiles = ceil_div(p.N, kTileN) * (grouped ? p.groups.num_tiles_bound : ceil_div(p.T, plan.rows));
  launch(linear_tag("linear_wgmma", p, kFp8, stream), kernel,
         {dim3(static_cast<unsigned>(std::min(tiles, stream.multiprocessors()))), dim3(kThreads),
          static_cast<std::size_t>(plan.slots * slot_bytes<kFp8>(plan))},
         stream, p, plan);
}

}  // namespace
}  // namespace wgmma

bool linear_wgmma(const LinearParams& p, bool fp8, const Stream& stream) {
  const int scale_step = fp8 ? p.scale_rows : 1;
  if (!stream.hopper() || p.k_fragments <= wgmma::kMinFragments || p.segment != (fp8 ? wgmma::kFp8Segment : wgmma::kBf16Segment) ||
      (scale_step != 1 && scale_step != 16))
    return false;
  fp8 ? wgmma::launch_wgmma<true>(p, stream) : wgmma::launch_wgmma<false>(p, stream);
  return true;
}

}  // namespace tetrad::cuda
