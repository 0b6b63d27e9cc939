// linear for many rows on Hopper (contract in linear.h): weights go from memory to registers in the order of their fragments, rows of x
// through shared memory; two warpgroups multiply 64 outputs each. wgmma gives the bits of the same chain of mma steps.
#include <algorithm>

#include "cuda/kernels/linear_params.cuh"
#include "cuda/kernels/pipeline.cuh"
#include "cuda/runtime/launch.cuh"

namespace tetrad::cuda {
namespace {

constexpr int kTileN = 128, kStageK = 64, kStages = 6;
constexpr int kWholeRows = 128;  // rows of a tile; of a group kGroupTileRows, or kFewGroupRows: groups rarely fill a tile
constexpr int kFewGroupRows = 64;
constexpr int kThreads = 256;
constexpr int kBf16Segment = kSegmentFragments / 2, kFp8Segment = 2;  // stages; other FP8 scale blocks take the portable kernel
constexpr int kFetch = 6;                                             // stages between the fetch of weights into L2 and their use
constexpr int kAhead = 4, kInFlight = 2;  // stages between load and use; of these with copies that are not waited for yet
constexpr int kRasterTiles = 8;           // tiles of rows that share a weight while it is in L2
constexpr int kStageBytes = kWholeRows * kStageK * 2;
constexpr int kStoreBytes = 48;  // a row of 16 outputs on its way out, padded against bank conflicts
constexpr std::size_t kSharedBytes = kStages * kStageBytes + 8 * kWholeRows * kStoreBytes;

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

struct Tile {
  LinearGroup group;
  int n0, t0;
};

// Blocks that run at the same time share weights and rows: tiles go by groups of kRasterTiles tiles of rows, outputs outermost in a group.
__device__ __forceinline__ bool find_tile(const LinearParams& p, int index, Tile* tile) {
  const bool grouped = p.groups.first != nullptr;
  const int n_tiles = (p.N + kTileN - 1) / kTileN, t_tiles = grouped ? *p.groups.num_tiles : (p.T + kWholeRows - 1) / kWholeRows;
  if (index >= n_tiles * t_tiles) return false;
  const int raster = index / (kRasterTiles * n_tiles), within = index % (kRasterTiles * n_tiles);
  const int height = min(kRasterTiles, t_tiles - raster * kRasterTiles);
  const int t = raster * kRasterTiles + within % height;
  tile->n0 = within / height * kTileN;
  if (grouped) {
    const int2 some = p.groups.tiles[t];
    tile->group = of_group(p, some.x);
    tile->t0 = some.y;
    if (tile->t0 < tile->group.begin || tile->t0 >= tile->group.end) __trap();
    tile->group.end = min(tile->group.end, tile->t0 + kGroupTileRows);
  } else {
    tile->group = whole(p);
    tile->t0 = t * kWholeRows;
  }
  return true;
}

struct Shared {
  Barrier full[kStages], empty[kStages];
};

// Every thread loads a share of every stage, kAhead stages before it is multiplied, across tiles.
template <int kTileRows>
struct Loader {
  static constexpr int kRows = kTileRows / (kThreads / 8);
  const LinearParams& p;
  std::byte* x_stages;
  Shared& shared;
  int k_stages;
  int stage = 0, loaded = 0;             // next stage of the tile; stages loaded in all
  bool more = false, more_next = false;  // is there a tile, and one after it
  int rows[kRows], rows_next[kRows];     // where this thread's rows begin in x, in pieces of 16 bytes; -1: none

  // The tile after the one that is loaded now; false if there is none.
  __device__ __forceinline__ bool plan(int index, Tile& tile) {
    more_next = find_tile(p, index, &tile);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int t = tile.t0 + static_cast<int>(threadIdx.x) / 8 + kThreads / 8 * r;
      rows_next[r] = more_next && t < tile.group.end ? static_cast<int>((x_row(p, t) - p.x) / 8) : -1;
    }
    return more_next;
  }
  __device__ __forceinline__ void open_tile() {
    stage = 0;
    more = more_next;
#pragma unroll
    for (int r = 0; r < kRows; ++r) rows[r] = rows_next[r];
  }
  __device__ __forceinline__ void load() {
    if (more) {
      const int slot = loaded % kStages, chunk = threadIdx.x % 8;
      shared.empty[slot].wait((loaded / kStages & 1) ^ 1);
      const int piece = stage * (kStageK / 8) + chunk, bytes = max(0, min(16, 2 * p.K - 16 * piece));
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const int row = static_cast<int>(threadIdx.x) / 8 + kThreads / 8 * r;
        const bool some = rows[r] >= 0 && bytes > 0;
        copy_async_some(x_stages + slot * kStageBytes + row * 128 + (chunk ^ row % 8) * 16,
                        p.x + (some ? static_cast<std::ptrdiff_t>(rows[r] + piece) * 8 : 0), some ? bytes : 0);
      }
      ++loaded;
      if (++stage == k_stages) open_tile();
    }
    commit_copies();
  }
  // Copies but the last kInFlight are done: this thread's share of stage i is there.
  __device__ __forceinline__ void publish(int i) {
    wait_copies<kInFlight>();
    publish_to_wgmma();
    if (i < loaded) shared.full[i % kStages].arrive();
  }
};

// Two fragments of a warp's 16 outputs: the weights of one stage.
template <bool kFp8>
struct WeightStage {
  WeightFragment<kFp8> fragment[2];
  __device__ __forceinline__ void load(const std::byte* fragments, int stage, int k_fragments, int lane) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int f = min(2 * stage + h, k_fragments - 1);  // past the end x is zero
      fragment[h].load(fragments + static_cast<std::size_t>(f) * WeightFragment<kFp8>::kBytes, lane);
    }
  }
};

// The weights of a stage, 128 bytes a lane, on their way to L2.
template <bool kFp8>
__device__ __forceinline__ void fetch_ahead(const std::byte* fragments, int stage, int lane) {
  constexpr int kBytes = 2 * WeightFragment<kFp8>::kBytes;
  if (lane < kBytes / 128)
    asm volatile("prefetch.global.L2 [%0];" ::"l"(fragments + static_cast<std::size_t>(stage) * kBytes + lane * 128));
}

// What a warp carries from stage to stage of a tile.
template <bool kFp8, int kRows, class Loader>
struct Multiplier {
  Loader& loader;
  int it, pending = -1;  // stages started in all; a slot that is still read
  float acc[kRows / 2];

  __device__ __forceinline__ void release() {
    if (pending >= 0 && threadIdx.x % 32 == 0) loader.shared.empty[pending].arrive();
    pending = -1;
  }
  // Starts stage `it`; the one before it is done afterwards.
  __device__ __forceinline__ void start(const WeightStage<kFp8>& w, unsigned (&a)[2][2][4], bool first) {
    const int slot = it % kStages;
    w.fragment[0].expand(a[0]);
    w.fragment[1].expand(a[1]);
    std::uint64_t x[4];
    int add = first ? 0 : 1;
    asm volatile("" : "+r"(add));
    loader.shared.full[slot].wait(it / kStages & 1);
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      x[s] = swizzled_tile(loader.x_stages + slot * kStageBytes) + 2 * s;
      settle(x[s]);
      settle(a[s / 2][s % 2]);
    }
    wgmma_begin();
#pragma unroll
    for (int s = 0; s < 4; ++s) wgmma_step<kRows>(acc, a[s / 2][s % 2], x[s], s == 0 ? add : 1);
    wgmma_commit();
    wgmma_wait<1>();
    release();
    pending = slot;
    loader.load();
    loader.publish(it + kAhead - kInFlight);
    ++it;
  }
  __device__ __forceinline__ void finish() {
    wgmma_wait<0>();
    settle(acc);
    release();
  }
};

// A warp's 16 outputs of a tile.
template <bool kFp8>
__device__ __forceinline__ const std::byte* warp_fragments(const LinearParams& p, const Tile& tile) {
  const int row = min(tile.n0 / kFragmentRows + static_cast<int>(threadIdx.x) / 32, p.n_fragments - 1);
  return tile.group.data + static_cast<std::size_t>(row) * p.k_fragments * WeightFragment<kFp8>::kBytes;
}

// Segments are written out, so that weights come kLoadAhead stages ahead into registers of their own (and further ahead into L2): as long
// as a stage multiplies is shorter than L2 takes to answer. What is left of the last segment goes stage by stage.
template <bool kFp8, int kRows, class Loader>
__device__ __forceinline__ void multiply_tile(const LinearParams& p, const Tile& tile, const std::byte* fragments_after, Loader& loader,
                                              int& it, float (&total)[kRows / 2]) {
  constexpr int kSegment = kFp8 ? kFp8Segment : kBf16Segment, kRound = kFp8 ? 2 : 1;  // segments in a round
  constexpr int kSlots = kRound * kSegment, kLoadAhead = kFp8 ? 3 : 2;
  static_assert(kLoadAhead < kSlots);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, k_stages = loader.k_stages, full_segments = k_stages / kSegment;
  const int fragment_row = min(tile.n0 / kFragmentRows + warp, p.n_fragments - 1);
  const std::byte* fragments = warp_fragments<kFp8>(p, tile);
  Multiplier<kFp8, kRows, Loader> m{loader, it};
  const auto fold = [&](int segment) {
    float scale[2] = {1.0f, 1.0f};
    if constexpr (kFp8) {
      const int row = (fragment_row * kFragmentRows + lane / 4) / p.scale_rows;
      scale[0] = tile.group.scales[row * p.scale_columns + scale_column(p, segment)];
      scale[1] = tile.group.scales[(row + 8 / p.scale_rows) * p.scale_columns + scale_column(p, segment)];
    }
    m.finish();
#pragma unroll
    for (int c = 0; c < kRows / 2; ++c) total[c] = add_segment<kFp8>(segment == 0, total[c], m.acc[c], scale[c % 4 / 2]);
  };
  WeightStage<kFp8> next[kSlots];
#pragma unroll
  for (int i = 0; i < kLoadAhead; ++i) next[i].load(fragments, min(i, k_stages - 1), p.k_fragments, lane);
#pragma unroll 1
  for (int round = 0; round < full_segments; round += kRound) {
#pragma unroll
    for (int r = 0; r < kRound; ++r) {
      const int segment = round + r;
      if (segment >= full_segments) break;
      unsigned a[2][2][2][4];
#pragma unroll
      for (int j = 0; j < kSegment; ++j) {
        const int i = segment * kSegment + j, ahead = i + kFetch;
        m.start(next[r * kSegment + j], a[j % 2], j == 0);
        next[(r * kSegment + j + kLoadAhead) % kSlots].load(fragments, min(i + kLoadAhead, k_stages - 1), p.k_fragments, lane);
        fetch_ahead<kFp8>(ahead < k_stages ? fragments : fragments_after, ahead < k_stages ? ahead : min(ahead - k_stages, k_stages - 1),
                          lane);
      }
      fold(segment);
    }
  }
  if (k_stages % kSegment != 0) {
#pragma unroll 1
    for (int i = full_segments * kSegment; i < k_stages; ++i) {
      unsigned a[2][2][4];
      next[0].load(fragments, i, p.k_fragments, lane);
      m.start(next[0], a, i == full_segments * kSegment);
      m.finish();
    }
    fold(full_segments);
  }
  it = m.it;
}

// A warp's 16 outputs of kRows rows, through shared memory so that a row's outputs leave together.
template <int kRows>
__device__ __forceinline__ void store_tile(const LinearParams& p, const Tile& tile, std::byte* staging, const float (&total)[kRows / 2]) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, n0 = tile.n0 + warp * kFragmentRows;
  std::byte* out = staging + warp * kWholeRows * kStoreBytes;
  __syncwarp();  // the last tile's rows have been read
#pragma unroll
  for (int j = 0; j < kRows / 8; j += 2) {
    unsigned pair[4];
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const __nv_bfloat162 both = __floats2bfloat162_rn(total[4 * j + 2 * c], total[4 * j + 2 * c + 1]);
      pair[c] = reinterpret_cast<const unsigned&>(both);
    }
    const auto to =
        static_cast<unsigned>(__cvta_generic_to_shared(out + (8 * (j + lane / 16) + lane % 8) * kStoreBytes + lane / 8 % 2 * 16));
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(pair[0]), "r"(pair[1]),
                 "r"(pair[2]), "r"(pair[3])
                 : "memory");
  }
  __syncwarp();  // the rows are written
  const int half = lane % 2, n = n0 + 8 * half;
  const bool aligned = p.ldy % 8 == 0 && reinterpret_cast<std::uintptr_t>(p.y) % 16 == 0 && n + 8 <= p.N;
#pragma unroll 4
  for (int row = lane / 2; row < kRows; row += 16) {
    const int t = tile.t0 + row;
    if (t >= tile.group.end) break;
    const std::byte* from = out + row * kStoreBytes + half * 16;
    bf16* to = p.y + static_cast<std::ptrdiff_t>(t) * p.ldy + n;
    if (aligned) {
      *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(from);
    } else {
      for (int i = 0; i < 8 && n + i < p.N; ++i) to[i] = reinterpret_cast<const bf16*>(from)[i];
    }
  }
}

template <bool kFp8, int kRows, class Loader>
__device__ __forceinline__ void finish_tile(const LinearParams& p, const Tile& tile, const std::byte* fragments_after, Loader& loader,
                                            int& it) {
  float total[kRows / 2];
  multiply_tile<kFp8, kRows>(p, tile, fragments_after, loader, it, total);
  store_tile<kRows>(p, tile, loader.x_stages + kStages * kStageBytes, total);
}

template <bool kFp8, bool kGrouped>
__global__ void __launch_bounds__(kThreads, 1) linear_wgmma_kernel(const LinearParams p) {
  extern __shared__ __align__(1024) std::byte x_stages[];
  __shared__ Shared shared;
  if (threadIdx.x == 0) {
    for (int s = 0; s < kStages; ++s) shared.full[s].init(kThreads), shared.empty[s].init(kThreads / 32);
    Barrier::publish_init();
  }
  __syncthreads();  // the barriers are set up
  wait_for_previous();
  constexpr int kTileRows = kGrouped ? kGroupTileRows : kWholeRows;
  Loader<kTileRows> loader{.p = p, .x_stages = x_stages, .shared = shared, .k_stages = (p.k_fragments + 1) / 2};
  Tile tile, after;
  loader.plan(blockIdx.x, after);
  loader.open_tile();
  for (int i = 0; i < kAhead; ++i) loader.load();
  for (int i = 0; i < kAhead - kInFlight; ++i) loader.publish(i);
  int it = 0;
  for (int index = blockIdx.x; find_tile(p, index, &tile); index += gridDim.x) {
    const bool more = loader.plan(index + static_cast<int>(gridDim.x), after);
    const std::byte* fragments_after = warp_fragments<kFp8>(p, more ? after : tile);
    if (kGrouped && tile.group.end - tile.t0 <= kFewGroupRows)
      finish_tile<kFp8, kFewGroupRows>(p, tile, fragments_after, loader, it);
    else
      finish_tile<kFp8, kTileRows>(p, tile, fragments_after, loader, it);
  }
}

#else

template <bool kFp8, bool kGrouped>
__global__ void linear_wgmma_kernel(const LinearParams) {
  wait_for_previous();
  __trap();  // never launched on this target
}

#endif

template <bool kFp8, bool kGrouped>
void launch_wgmma(const LinearParams& p, const Stream& stream) {
  const auto kernel = linear_wgmma_kernel<kFp8, kGrouped>;
  allow_shared("linear_wgmma", kernel, kSharedBytes);
  const int tiles = ceil_div(p.N, kTileN) * (kGrouped ? p.groups.num_tiles_bound : ceil_div(p.T, kWholeRows));
  launch(linear_tag("linear_wgmma", p, kFp8, stream), kernel,
         {dim3(static_cast<unsigned>(std::min(tiles, stream.multiprocessors()))), dim3(kThreads), kSharedBytes}, stream, p);
}

template <bool kFp8>
void launch_wgmma(const LinearParams& p, const Stream& stream) {
  p.groups.first != nullptr ? launch_wgmma<kFp8, true>(p, stream) : launch_wgmma<kFp8, false>(p, stream);
}

}  // namespace

bool linear_wgmma(const LinearParams& p, bool fp8, const Stream& stream) {
  const int scale_step = fp8 ? p.scale_rows : 1;
  if (!stream.hopper() || p.k_fragments <= 2 * kAhead || p.segment != 2 * (fp8 ? kFp8Segment : kBf16Segment) ||
      (scale_step != 1 && scale_step != 16))
    return false;
  fp8 ? launch_wgmma<true>(p, stream) : launch_wgmma<false>(p, stream);
  return true;
}

}  // namespace tetrad::cuda
