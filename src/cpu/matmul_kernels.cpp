#include "cpu/matmul_kernels.h"

#include <algorithm>
#include <cstring>

#include "cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/matmul_kernels.cpp"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tetrad::cpu::HWY_NAMESPACE {

using D = hn::CappedTag<float, kPanelWidth>;
using V = hn::Vec<D>;
constexpr int kLanes = static_cast<int>(hn::MaxLanes(D()));
constexpr int kVectors = kPanelWidth / kLanes;  // per panel
// Independent chains that keep two multiply-add units of four cycles busy.
constexpr int kChains = 8;
// Panels side by side in the direct kernel, so that few rows still make kChains chains.
constexpr int panels_at_once(int rows) { return std::max(1, kChains / (rows * kVectors)); }
// Rows of a register tile of the blocked kernel: 12 accumulators of 16 registers with two vectors per panel.
constexpr int kTileRows = kVectors == 1 ? 12 : (kVectors == 2 || HWY_TARGET == HWY_NEON ? 6 : 2);

// One column, the even or the odd one of a pair, of one vector of outputs.
template <bool kOdd>
HWY_INLINE V expand_bf16(const std::uint8_t* pair, int vector) {
  const D df;
  const hn::RebindToUnsigned<D> du;
  const auto both = hn::LoadU(du, reinterpret_cast<const std::uint32_t*>(pair) + vector * kLanes);
  if constexpr (kOdd) return hn::BitCast(df, hn::And(both, hn::Set(du, 0xffff0000u)));
  return hn::BitCast(df, hn::ShiftLeft<16>(both));
}

// A code S EEEE MMM in the upper byte, shifted right by one with its sign and stripped of the copied sign bit, is the half
// S 0EEEE MMM0000000: the same number divided by 256, subnormals included.
template <bool kOdd>
HWY_INLINE V expand_fp8(const std::uint8_t* pair, int vector, V scale) {
  const D df;
  const hn::Rebind<std::int16_t, D> di;
  const hn::Rebind<hwy::float16_t, D> dh;
  auto code = hn::LoadU(di, reinterpret_cast<const std::int16_t*>(pair) + vector * kLanes);
  if constexpr (!kOdd) code = hn::ShiftLeft<8>(code);
  const auto half = hn::And(hn::ShiftRight<1>(code), hn::Set(di, static_cast<std::int16_t>(0xbf80)));
  return hn::Mul(hn::PromoteTo(df, hn::BitCast(dh, half)), scale);
}

template <bool kFp8, bool kOdd>
HWY_INLINE V expand(const std::uint8_t* pair, int vector, V scale) {
  if constexpr (kFp8) return expand_fp8<kOdd>(pair, vector, scale);
  (void)scale;
  return expand_bf16<kOdd>(pair, vector);
}

constexpr std::size_t pair_bytes(bool fp8) { return kPanelWidth * (fp8 ? 2 : 4); }

// Writes one row of one panel; the last panel of a weight may be narrower than its lanes.
HWY_INLINE void store_panel(const V* acc, float* y, int width, bool round) {
  const D df;
  V out[kVectors];
  for (int v = 0; v < kVectors; ++v) out[v] = round ? round_bf16_lanes(df, acc[v]) : acc[v];
  if (width >= kPanelWidth) {
    for (int v = 0; v < kVectors; ++v) hn::StoreU(out[v], df, y + v * kLanes);
    return;
  }
  HWY_ALIGN float lanes[kPanelWidth];
  for (int v = 0; v < kVectors; ++v) hn::Store(out[v], df, lanes + v * kLanes);
  std::memcpy(y, lanes, static_cast<std::size_t>(width) * sizeof(float));
}

// --- Few rows: weights expand in registers, each used kRows times. ---

// Makes the compiler load again from `p` instead of keeping what it read before.
HWY_INLINE const std::uint8_t* reload(const std::uint8_t* p) {
  asm("" : "+r"(p));
  return p;
}

// Adds the even or the odd column of a pair to all rows of one panel.
template <bool kFp8, bool kOdd, int kRows>
HWY_INLINE void add_column(const std::uint8_t* pair, const V* scale, const float* const* row, int k, V (*acc)[kVectors], int row_step) {
  const D df;
  V column[kVectors];
  for (int v = 0; v < kVectors; ++v) column[v] = expand<kFp8, kOdd>(pair, v, scale[v]);
  for (int r = 0; r < kRows; ++r) {
    const V value = hn::Set(df, row[r][k]);
    for (int v = 0; v < kVectors; ++v) acc[r * row_step][v] = hn::MulAdd(value, column[v], acc[r * row_step][v]);
  }
}

// Adds both columns. The order of loads decides whether sixteen registers suffice: with few rows the inputs stay in registers across
// vectors and panels, with many rows the accumulators do, and a column's weights are expanded before its first input is read.
template <bool kFp8, int kRows>
HWY_INLINE void add_pair(const std::uint8_t* pair, const V* scale, const float* const* row, int k, V (*acc)[kVectors], int row_step) {
  if constexpr (kRows >= 4) {
    add_column<kFp8, false, kRows>(pair, scale, row, k, acc, row_step);
    add_column<kFp8, true, kRows>(reload(pair), scale, row, k + 1, acc, row_step);
    return;
  }
  const D df;
  for (int v = 0; v < kVectors; ++v) {
    const V even = expand<kFp8, false>(pair, v, scale[v]), odd = expand<kFp8, true>(pair, v, scale[v]);
    for (int r = 0; r < kRows; ++r) acc[r * row_step][v] = hn::MulAdd(hn::Set(df, row[r][k]), even, acc[r * row_step][v]);
    for (int r = 0; r < kRows; ++r) acc[r * row_step][v] = hn::MulAdd(hn::Set(df, row[r][k + 1]), odd, acc[r * row_step][v]);
  }
}

template <bool kFp8, int kRows, int kPanels>
void direct_tile(const PackedLinear& w, int first, const MatmulArgs& a) {
  const D df;
  V acc[kRows][kPanels][kVectors];
  for (int r = 0; r < kRows; ++r)
    for (int p = 0; p < kPanels; ++p)
      for (int v = 0; v < kVectors; ++v) acc[r][p][v] = hn::Zero(df);

  const std::uint8_t* panel[kPanels];
  for (int p = 0; p < kPanels; ++p) panel[p] = w.panel(first + p);
  const float* row[kRows];
  for (int r = 0; r < kRows; ++r) row[r] = a.x + static_cast<std::ptrdiff_t>(r) * a.ldx;

  const int num_blocks = kFp8 ? w.num_blocks() : 1;
  const int columns = w.columns();
  for (int block = 0; block < num_blocks; ++block) {
    V scale[kPanels][kVectors];
    for (int p = 0; p < kPanels; ++p)
      for (int v = 0; v < kVectors; ++v)
        scale[p][v] = kFp8 ? hn::LoadU(df, w.panel_scales(first + p) + block * kPanelWidth + v * kLanes) : hn::Zero(df);
    const int begin = kFp8 ? block * w.block_columns() : 0;
    const int end = kFp8 ? std::min(columns, begin + w.block_columns()) : columns;
    int k = begin;
    for (; k + 1 < end; k += 2) {
      const std::size_t offset = static_cast<std::size_t>(k / 2) * pair_bytes(kFp8);
      for (int p = 0; p < kPanels; ++p) add_pair<kFp8, kRows>(panel[p] + offset, scale[p], row, k, &acc[0][p], kPanels);
    }
    if (k < end) {  // the last column of an odd K
      const std::size_t offset = static_cast<std::size_t>(k / 2) * pair_bytes(kFp8);
      for (int p = 0; p < kPanels; ++p) add_column<kFp8, false, kRows>(panel[p] + offset, scale[p], row, k, &acc[0][p], kPanels);
    }
  }
  for (int r = 0; r < kRows; ++r)
    for (int p = 0; p < kPanels; ++p) {
      const int n = (first + p) * kPanelWidth;
      store_panel(acc[r][p], a.y + static_cast<std::ptrdiff_t>(r) * a.ldy + n, w.rows() - n, a.round);
    }
}

template <bool kFp8, int kRows, int kPanels>
void direct_range(const PackedLinear& w, int first, int count, const MatmulArgs& a) {
  for (; count >= kPanels; first += kPanels, count -= kPanels) direct_tile<kFp8, kRows, kPanels>(w, first, a);
  if constexpr (kPanels > 1) direct_range<kFp8, kRows, kPanels / 2>(w, first, count, a);
}

template <bool kFp8>
void direct_panels(const PackedLinear& w, int first, int count, const MatmulArgs& a) {
  switch (a.T) {
    case 1: return direct_range<kFp8, 1, panels_at_once(1)>(w, first, count, a);
    case 2: return direct_range<kFp8, 2, panels_at_once(2)>(w, first, count, a);
    case 3: return direct_range<kFp8, 3, panels_at_once(3)>(w, first, count, a);
    case 4: return direct_range<kFp8, 4, panels_at_once(4)>(w, first, count, a);
    case 5: return direct_range<kFp8, 5, panels_at_once(5)>(w, first, count, a);
    default: return direct_range<kFp8, 6, panels_at_once(6)>(w, first, count, a);
  }
}

// --- Many rows: columns in blocks; the chains of a block continue from y, which holds them unrounded until the last block. ---

constexpr int kChunk = 8;  // columns of a row that lie together; divides kBlockColumns

struct Scratch {
  HWY_ALIGN float x[kRowBlock * kBlockColumns];    // per tile of rows: [kBlockColumns / kChunk][rows of the tile][kChunk]
  HWY_ALIGN float w[kBlockColumns * kPanelWidth];  // one panel of one block of columns: [kBlockColumns][16]
};

// Cuts rows into tiles of nearly equal height: a low tile takes as long as one of four rows, because its few chains wait on each other.
struct Tiling {
  int num_tiles, low, num_high;  // num_high tiles of low + 1 rows, then tiles of low rows
  explicit Tiling(int rows) : num_tiles((rows + kTileRows - 1) / kTileRows), low(rows / num_tiles), num_high(rows % num_tiles) {}
  int rows(int tile) const { return tile < num_high ? low + 1 : low; }
};

// Brings the rows of a tile together. Read where they are, rows a power of two apart would push each other and w out of L1.
void gather_rows(const MatmulArgs& a, int begin, int end, float* out) {
  const Tiling tiling(a.T);
  for (int i = 0, t = 0; i < tiling.num_tiles; t += tiling.rows(i++)) {
    const float* in = a.x + static_cast<std::ptrdiff_t>(t) * a.ldx;
    for (int k = begin; k < end; k += kChunk) {
      const int count = std::min(kChunk, end - k);
      for (int r = 0; r < tiling.rows(i); ++r, out += kChunk) {
        const float* from = in + static_cast<std::ptrdiff_t>(r) * a.ldx + k;
        if (count == kChunk)
          std::memcpy(out, from, kChunk * sizeof(float));
        else
          std::copy_n(from, count, out);
      }
    }
  }
}

template <bool kFp8>
void expand_panel(const PackedLinear& w, int p, int begin, int end, float* out) {
  const D df;
  while (begin < end) {
    const int block = kFp8 ? begin / w.block_columns() : 0;
    const int stop = kFp8 ? std::min(end, (block + 1) * w.block_columns()) : end;
    V scale[kVectors];
    for (int v = 0; v < kVectors; ++v) scale[v] = kFp8 ? hn::LoadU(df, w.panel_scales(p) + block * kPanelWidth + v * kLanes) : hn::Zero(df);
    const std::uint8_t* pair = w.panel(p) + static_cast<std::size_t>(begin / 2) * pair_bytes(kFp8);
    for (; begin < stop; begin += 2, pair += pair_bytes(kFp8), out += 2 * kPanelWidth)
      for (int v = 0; v < kVectors; ++v) {
        hn::Store(expand<kFp8, false>(pair, v, scale[v]), df, out + v * kLanes);
        hn::Store(expand<kFp8, true>(pair, v, scale[v]), df, out + kPanelWidth + v * kLanes);  // not read beyond an odd K
      }
    begin = stop;
  }
}

struct Tile {
  const float* x;  // [ceil(num_columns / kChunk)][rows][kChunk]
  const float* w;  // [num_columns][16]
  int num_columns;
  float* y;
  int ldy, width;
  bool last_rows;  // no tile follows below this one
  bool first, round;
};

template <int kRows>
HWY_INLINE void load_chains(const Tile& tile, V (*acc)[kVectors]) {
  const D df;
  for (int r = 0; r < kRows; ++r) {
    const float* y = tile.y + static_cast<std::ptrdiff_t>(r) * tile.ldy;
    HWY_ALIGN float lanes[kPanelWidth] = {};
    if (tile.width < kPanelWidth) {
      std::memcpy(lanes, y, static_cast<std::size_t>(tile.width) * sizeof(float));
      y = lanes;
    }
    for (int v = 0; v < kVectors; ++v) acc[r][v] = hn::LoadU(df, y + v * kLanes);
  }
}

template <int kRows>
HWY_INLINE void add_row_column(const float* x, const float* w, V (*acc)[kVectors]) {
  const D df;
  V column[kVectors];
  for (int v = 0; v < kVectors; ++v) column[v] = hn::Load(df, w + v * kLanes);
  for (int r = 0; r < kRows; ++r) {
    const V value = hn::Set(df, x[r * kChunk]);
    for (int v = 0; v < kVectors; ++v) acc[r][v] = hn::MulAdd(value, column[v], acc[r][v]);
  }
}

template <int kRows>
void blocked_tile(const Tile& tile) {
  const D df;
  V acc[kRows][kVectors];
  if (!tile.last_rows)
    for (int r = 0; r < kRows; ++r) hwy::Prefetch(tile.y + static_cast<std::ptrdiff_t>(kRows + r) * tile.ldy);
  if (tile.first)
    for (int r = 0; r < kRows; ++r)
      for (int v = 0; v < kVectors; ++v) acc[r][v] = hn::Zero(df);
  else
    load_chains<kRows>(tile, acc);
  const float* x = tile.x;
  const float* w = tile.w;
  int k = tile.num_columns;
  for (; k >= kChunk; k -= kChunk, x += kRows * kChunk, w += kChunk * kPanelWidth) {
#pragma GCC unroll 8
    for (int i = 0; i < kChunk; ++i) add_row_column<kRows>(x + i, w + i * kPanelWidth, acc);
  }
  for (; k > 0; --k, ++x, w += kPanelWidth) add_row_column<kRows>(x, w, acc);
  for (int r = 0; r < kRows; ++r) store_panel(acc[r], tile.y + static_cast<std::ptrdiff_t>(r) * tile.ldy, tile.width, tile.round);
}

template <int kRows = kTileRows>
void blocked_rows(int rows, const Tile& tile) {
  if (rows == kRows) return blocked_tile<kRows>(tile);
  if constexpr (kRows > 1) blocked_rows<kRows - 1>(rows, tile);
}

template <bool kFp8>
void blocked_panels(const PackedLinear& w, int first, int count, const MatmulArgs& a) {
  Scratch scratch;
  const Tiling tiling(a.T);
  for (int begin = 0; begin < w.columns(); begin += kBlockColumns) {
    const int end = std::min(w.columns(), begin + kBlockColumns);
    const int padded_columns = (end - begin + kChunk - 1) / kChunk * kChunk;
    gather_rows(a, begin, end, scratch.x);
    for (int p = first; p < first + count; ++p) {
      expand_panel<kFp8>(w, p, begin, end, scratch.w);
      const int n = p * kPanelWidth;
      for (int i = 0, t = 0; i < tiling.num_tiles; t += tiling.rows(i++))
        blocked_rows(tiling.rows(i), {.x = scratch.x + static_cast<std::ptrdiff_t>(t) * padded_columns,
                                      .w = scratch.w,
                                      .num_columns = end - begin,
                                      .y = a.y + static_cast<std::ptrdiff_t>(t) * a.ldy + n,
                                      .ldy = a.ldy,
                                      .width = w.rows() - n,
                                      .last_rows = i + 1 == tiling.num_tiles,
                                      .first = begin == 0,
                                      .round = a.round && end == w.columns()});
    }
  }
}

void matmul_panels(const PackedLinear& w, int first, int count, const MatmulArgs& a) {
  if (a.T <= kDirectRows) return w.is_fp8() ? direct_panels<true>(w, first, count, a) : direct_panels<false>(w, first, count, a);
  return w.is_fp8() ? blocked_panels<true>(w, first, count, a) : blocked_panels<false>(w, first, count, a);
}

}  // namespace tetrad::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tetrad::cpu {

HWY_EXPORT(matmul_panels);

void matmul_panels(const PackedLinear& w, int first, int count, const MatmulArgs& a) {
  HWY_DYNAMIC_DISPATCH(matmul_panels)(w, first, count, a);
}

}  // namespace tetrad::cpu
#endif
