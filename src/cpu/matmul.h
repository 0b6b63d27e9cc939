#pragma once
// matmul: every linear layer, y = x W^T.
//   Math      y[t, n] = sum_k x[t, k] * w[n, k]
//   Inputs    x [T, K] floats that hold bf16 values, row stride ldx; w a PackedLinear [N, K] in bf16 or block-scaled FP8
//   Output    y [T, N] floats, row stride ldy; rounded to bf16 when `round`; must not overlap x
//   Rounding  one float32 chain per output, k ascending, each step one fused multiply-add. An FP8 weight is float(code) * scale rounded
//             to float32. A target without an FMA instruction rounds the product before it adds it, in the same order: the same bits
//             as long as the product is exact, which it is for bf16 weights and for FP8 with bf16 scales (underflow apart).
//   Order     lanes run across n, so a row's result depends on neither T nor the number of threads nor the vector width
//   NaN       NaN and infinities of x and w reach y as IEEE arithmetic gives them
//   Memory    allocates nothing; up to 128 KiB of stack per thread
//   Tests     unit/matmul_test
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/thread_pool.h"
#include "cpu/aligned_buffer.h"
#include "model/weights.h"

namespace tetrad::cpu {

// Outputs computed side by side; N is padded to a multiple of it with zero weights that never reach y.
inline constexpr int kPanelWidth = 16;

// A linear weight [N, K], copied into the order in which the kernels read it: panels of kPanelWidth outputs, in a panel pairs of
// columns, in a pair the outputs, each with its two columns next to each other: [ceil(N/16)][ceil(K/2)][16][2].
class PackedLinear {
 public:
  PackedLinear() = default;

  // BF16 is kept as it is, F16 and F32 are rounded to bf16, F8_E4M3 stays as codes with its block scales. Throws LoadError naming the
  // tensor for another dtype, a shape that is not [N, K], scales missing or of the wrong shape, and for a NaN code with its coordinate.
  static PackedLinear pack(const LinearView& view);

  // Several weights of equal K and equal storage (all FP8 with equal blocks, or none), stacked along N in the order given.
  static PackedLinear pack_rows(std::span<const LinearView> views);

  int rows() const { return rows_; }        // [N]
  int columns() const { return columns_; }  // [K]
  bool is_fp8() const { return fp8_; }
  std::size_t bytes() const { return data_.bytes() + scales_.bytes(); }

  // For the kernels.
  int num_panels() const { return (rows_ + kPanelWidth - 1) / kPanelWidth; }
  int num_pairs() const { return (columns_ + 1) / 2; }
  int block_columns() const { return block_columns_; }  // columns that share a scale, even; FP8 only
  int num_blocks() const { return num_blocks_; }        // ceil(K / block_columns)
  std::size_t panel_bytes() const { return static_cast<std::size_t>(num_pairs()) * kPanelWidth * (fp8_ ? 2 : 4); }
  const std::uint8_t* panel(int p) const { return data_.data() + static_cast<std::size_t>(p) * panel_bytes(); }
  // [num_blocks][16], 256 times the scale of each output: the kernels read a code as a half whose value is 1/256 of it.
  const float* panel_scales(int p) const { return scales_.data() + static_cast<std::size_t>(p) * num_blocks_ * kPanelWidth; }

 private:
  void place_bf16(const WeightView& weight, int first_row);
  void place_fp8(const LinearView& view, int first_row);

  int rows_ = 0, columns_ = 0;
  bool fp8_ = false;
  int block_columns_ = 0, num_blocks_ = 0;
  AlignedBuffer<std::uint8_t> data_;
  AlignedBuffer<float> scales_;
};

// ldx and ldy in elements. T == 0 is a no-op.
struct MatmulArgs {
  int T = 0;
  const float* x = nullptr;
  int ldx = 0;
  float* y = nullptr;
  int ldy = 0;
  bool round = true;
};
void matmul(const PackedLinear& w, const MatmulArgs& a, ThreadPool& pool);

// Independent products in one parallel region, so that jobs of few rows (the experts of a step) keep all cores busy. Outputs must not
// overlap. Jobs with T == 0 are skipped.
struct MatmulJob {
  const PackedLinear* w = nullptr;
  int T = 0;
  const float* x = nullptr;
  int ldx = 0;
  float* y = nullptr;
  int ldy = 0;
  bool round = true;
};
void matmul_jobs(std::span<const MatmulJob> jobs, ThreadPool& pool);

}  // namespace tetrad::cpu
