#pragma once
// What linear_wgmma.cu multiplies: tiles of outputs and rows, and the warps that bring their weights and rows of x to shared memory.
#include "cuda/kernels/linear_params.cuh"
#include "cuda/kernels/pipeline.cuh"
#include "cuda/kernels/wgmma.cuh"

namespace tetrad::cuda::wgmma {

inline constexpr int kTileN = 128, kStageK = 64;
inline constexpr int kConsumers = 256, kProducers = 128, kThreads = kConsumers + kProducers;
inline constexpr int kTileWarps = kTileN / kFragmentRows;  // each multiplies a fragment's 16 outputs
inline constexpr int kRasterTiles = 8;                     // tiles of rows that share a weight while it is in L2
inline constexpr int kMaxSlots = 12;
inline constexpr int kRowBytes = kStageK * 2;
inline constexpr int kStoreRows = 32, kStoreBytes = 48;  // rows of 16 outputs on their way out, padded against bank conflicts
// Rows of a tile that the kernel is compiled for. The largest is what registers hold: a sum and a total of each output.
inline constexpr int kTileRows[] = {32, 64, 96, 128, 144, 160, 176, 192};
inline constexpr int kMaxTileRows = 192;
static_assert(kGroupTileRows <= kMaxTileRows);

struct Tile {
  int group, n0, t0, end;  // end: past its last row; 0: no more tiles
};

// How a launch cuts its work.
struct Plan {
  int rows, slots;  // of a tile, and of a slot in rows; slots
};

struct Shared {
  Barrier full[kMaxSlots], empty[kMaxSlots];
  Tile tiles[kMaxSlots];  // that the slot is of
  std::byte store[kTileWarps][kStoreRows * kStoreBytes];
};

template <bool kFp8>
__host__ __device__ constexpr int slot_bytes(const Plan& plan) {
  return plan.rows * kRowBytes + kTileWarps * 2 * WeightFragment<kFp8>::kBytes;
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Slots in turn: where in shared memory the next one is, and the parity of its barriers.
template <bool kFp8>
struct Ring {
  std::byte* memory;
  const Plan& plan;
  Shared& shared;
  int slot = 0;
  unsigned parity = 0;

  __device__ __forceinline__ std::byte* x() const { return memory + slot * slot_bytes<kFp8>(plan); }
  __device__ __forceinline__ std::byte* weights() const { return x() + plan.rows * kRowBytes; }
  __device__ __forceinline__ Barrier& full() const { return shared.full[slot]; }
  __device__ __forceinline__ Barrier& empty() const { return shared.empty[slot]; }
  __device__ __forceinline__ void advance() {
    if (++slot == plan.slots) slot = 0, parity ^= 1;
  }
};

// Blocks that run at the same time share weights and rows: tiles go by groups of kRasterTiles tiles of rows, outputs outermost in a group.
__device__ __forceinline__ bool find_tile(const LinearParams& p, const Plan& plan, int index, Tile* tile) {
  const bool grouped = p.groups.first != nullptr;
  const int n_tiles = (p.N + kTileN - 1) / kTileN, t_tiles = grouped ? *p.groups.num_tiles : (p.T + plan.rows - 1) / plan.rows;
  if (index >= n_tiles * t_tiles) return false;
  const int raster = index / (kRasterTiles * n_tiles), within = index % (kRasterTiles * n_tiles);
  const int height = min(kRasterTiles, t_tiles - raster * kRasterTiles);
  const int t = raster * kRasterTiles + within % height;
  *tile = {0, within / height * kTileN, t * plan.rows, p.T};
  if (grouped) {
    const int2 some = p.groups.tiles[t];
    const LinearGroup group = of_group(p, some.x);
    if (some.y < group.begin || some.y >= group.end) __trap();
    tile->group = some.x, tile->t0 = some.y, tile->end = group.end;
  }
  tile->end = min(tile->end, tile->t0 + plan.rows);
  return true;
}

// A producer's pieces of 16 bytes of a tile's rows of x: column piece `chunk` of rows first, first + kStep, ...
struct RowPieces {
  static constexpr int kStep = kProducers / 8, kCount = kMaxTileRows / kStep;
  unsigned rows[kCount];  // where they begin in x, in pieces; past the tile's end those of its last row

  __device__ __forceinline__ void find(const LinearParams& p, const Tile& tile, int first) {
    int sources[kCount];
    bool bad = false;
#pragma unroll
    for (int r = 0; r < kCount; ++r) {
      sources[r] = min(tile.t0 + first + kStep * r, tile.end - 1);
      if (p.groups.x_rows != nullptr) sources[r] = p.groups.x_rows[sources[r]];
    }
#pragma unroll
    for (int r = 0; r < kCount; ++r) {
      bad |= p.groups.x_rows != nullptr && (sources[r] < 0 || sources[r] >= p.groups.num_x_rows);
      rows[r] = static_cast<unsigned>(sources[r]) * static_cast<unsigned>(p.ldx / 8);
    }
    if (bad) __trap();
  }
  // To `to` and every kStep-th row below; `bytes` of each piece, zeros after them.
  __device__ __forceinline__ void copy(const bf16* x, std::byte* to, int height, int bytes) const {
#pragma unroll
    for (int r = 0; r < kCount; ++r) {
      if (r * kStep >= height) break;
      const bf16* from = x + static_cast<std::size_t>(rows[r]) * 8;
      if (bytes == 16)
        copy_async(to + r * kStep * kRowBytes, from);
      else
        copy_async_some(to + r * kStep * kRowBytes, from, bytes);
    }
  }
};

// The producers' part: two threads of each warp bring a fragment row's weights, all threads pieces of x.
template <bool kFp8>
__device__ __forceinline__ void produce(const LinearParams& p, Ring<kFp8> ring) {
  constexpr int kBytes = WeightFragment<kFp8>::kBytes;
  const int thread = static_cast<int>(threadIdx.x) - kConsumers, chunk = thread % 8, first = thread / 8;
  const int fragment = thread % 32 < 2 ? thread / 32 * 2 + thread % 32 : -1, k_stages = (p.k_fragments + 1) / 2;
  Tile tile;
  RowPieces pieces;
  for (int index = blockIdx.x; find_tile(p, ring.plan, index, &tile); index += gridDim.x) {
    const int fragment_row = min(tile.n0 / kFragmentRows + max(fragment, 0), p.n_fragments - 1);
    const std::byte* weights = p.data + tile.group * p.groups.data_stride + static_cast<std::size_t>(fragment_row) * p.k_fragments * kBytes;
    pieces.find(p, tile, first);
    const bf16* x = p.x + chunk * 8;
#pragma unroll 1
    for (int stage = 0; stage < k_stages; ++stage) {
      ring.empty().wait(ring.parity ^ 1);
      if (thread == 0) ring.shared.tiles[ring.slot] = tile;
      if (fragment >= 0) {
        const int bytes = min(2, p.k_fragments - 2 * stage) * kBytes;
        ring.full().expect(bytes);
        ring.full().copy(ring.weights() + fragment * 2 * kBytes, weights, bytes);
      }
      std::byte* to = ring.x() + first * kRowBytes + (chunk ^ first % 8) * 16;
      const int height = tile.end - tile.t0, left = 2 * (p.K - stage * kStageK);  // bytes of a row
      if (left >= kRowBytes) {
        pieces.copy(x, to, height, 16);
      } else {
        const int bytes = max(0, min(16, left - 16 * chunk));
        pieces.copy(bytes > 0 ? x : p.x, to, height, bytes);
      }
      ring.full().arrive_when_copied();
      ring.advance();
      weights += 2 * kBytes, x += kStageK;
    }
  }
  ring.empty().wait(ring.parity ^ 1);
  if (thread == 0) ring.shared.tiles[ring.slot].end = 0;
  if (fragment >= 0) ring.full().arrive();
  ring.full().arrive();
}

#endif

}  // namespace tetrad::cuda::wgmma
