#pragma once
// linear: y = x W^T for every dense layer and, by groups of rows, for the routed experts.
//   Math      y[t, n] = bf( sum over segments of sum over k of x[t, k] * w[n, k] )
//   Inputs    x [T, K] bf16, rows ldx apart, 16-byte aligned; W bf16 or FP8 codes with block scales, in the order of DeviceLinear
//   Output    y [T, N] bf16, rows ldy apart; must not overlap x; columns N .. ldy are not written
//   Rounding  products and sums float32 in tensor cores; y rounds once, at the store. FP8: a segment is a block of columns that shares a
//             scale; its sum of x * code, exact in bf16 operands, is multiplied by the scale in float32
//   Order     K is cut into segments of 320 columns (FP8: one scale block). In a segment m16n8k16 steps, k ascending, from zero; segments
//             ascending. Weights are always the 16-row operand, so a row's bits depend on neither T nor on the kernel that ran
//   NaN       reaches y; rows past T and columns past K are never read, not multiplied by zero
//   Launch    few: grid (N/16, groups), one warp per segment up to 32; few outputs, 12 to 32 segments and up to 64 rows, where there are
//             clusters: four blocks to 16 outputs, a warp a segment (linear_split); up to eight segments and 32 rows on Hopper: a block a
//             multiprocessor, strips of 16 outputs in turn, a warp a segment whose rows it keeps (linear_stream); many: tiles of 128
//             outputs by 128 rows (groups: 96), 256 threads; where there is wgmma: by 32 to 192 rows, 256 threads that multiply and 128
//             that load, through all multiprocessors
//   Bytes     W once up to 16 rows (bandwidth-bound); 2*N*K*T operations above
//   Oracle    cpu::matmul
//   Tests     gpu/linear_test, gpu/index_trap_test
#include <cstdint>

#include "base/bf16.h"
#include "cuda/runtime/stream.h"

namespace tetrad::cuda {

inline constexpr int kFragmentRows = 16, kFragmentColumns = 32;
inline constexpr int kSegmentFragments = 10;  // fragments of 32 columns per segment of a bf16 weight
inline constexpr int kGroupTileRows = 192;    // rows per tile of a group in the many-row kernels

// A weight [N, K] as the tensor cores take it: fragments of 16 rows by 32 columns, [ceil(N/16)][ceil(K/32)][lane][16 bf16 or codes], so
// that a lane finds its operands of two multiply steps in one piece. Padding is zero. Does not own its memory.
struct DeviceLinear {
  int N = 0, K = 0;
  bool fp8 = false;
  const void* data = nullptr;
  const float* scales = nullptr;  // [N padded / scale_rows, ceil(K / block_columns)]
  int block_columns = 0;          // a multiple of 32
  int scale_rows = 1;             // rows that share a scale: 16, or 1 where blocks do not fall on fragments

  int row_fragments() const { return (N + kFragmentRows - 1) / kFragmentRows; }
  int column_fragments() const { return (K + kFragmentColumns - 1) / kFragmentColumns; }
  std::size_t data_bytes() const {
    return static_cast<std::size_t>(row_fragments()) * column_fragments() * kFragmentRows * kFragmentColumns * (fp8 ? 1 : 2);
  }
  int scale_columns() const { return fp8 ? (K + block_columns - 1) / block_columns : 0; }
  std::size_t scale_count() const { return static_cast<std::size_t>(row_fragments()) * (kFragmentRows / scale_rows) * scale_columns(); }
};

// Rows of the groups (experts): group e multiplies rows [first[e], first[e+1]) of y by weight e.
struct LinearGroups {
  int num_groups = 0;
  int num_active_bound = 0;         // at least the number of groups with rows
  int num_tiles_bound = 0;          // at least the number of tiles
  const int* first = nullptr;       // [num_groups + 1], device
  const int* active = nullptr;      // [num_active] groups that have rows, device
  const int* num_active = nullptr;  // device
  const int2* tiles = nullptr;      // [num_tiles] (group, first row of y), kGroupTileRows rows at most each, device
  const int* num_tiles = nullptr;   // device
  std::size_t data_stride = 0;      // bytes from one group's weights to the next
  std::size_t scale_stride = 0;     // floats
  const int* x_rows = nullptr;      // [rows] row of x that a row of y reads; null: the same
  int num_x_rows = 0;
};

struct LinearArgs {
  int T = 0;  // rows of y; with groups: of all groups together
  const bf16* x = nullptr;
  int ldx = 0;
  bf16* y = nullptr;
  int ldy = 0;
  const LinearGroups* groups = nullptr;
};

// T == 0 is a no-op. Throws InternalError for misaligned x.
void linear(const DeviceLinear& w, const LinearArgs& a, const Stream& stream);

// The sums of the segments alone, not added up: sums [segments, T, padded N] f32, for weights of few outputs and a wide K, where the blocks
// of linear are too few to read fast. Adding them in ascending order and rounding gives linear's y. bf16 weights, T up to kFewLinearRows.
inline constexpr int kFewLinearRows = 16;
int linear_segments(const DeviceLinear& w);
void linear_sums(const DeviceLinear& w, const LinearArgs& a, float* sums, const Stream& stream);

// Writes source [rows, K], row-major on the device, into rows [first_row, first_row + rows) of a packed weight. `source_dtype` as in
// base/dtype.h: BF16, F16 and F32 round to bf16, F8_E4M3 is for FP8 weights alone. For a NaN code the least index goes to nan_at (device).
enum class SourceType { kBF16, kF16, kF32, kF8E4M3 };
void pack_linear(const DeviceLinear& w, void* data, int first_row, int rows, const void* source, SourceType type,
                 unsigned long long* nan_at, const Stream& stream);

}  // namespace tetrad::cuda
