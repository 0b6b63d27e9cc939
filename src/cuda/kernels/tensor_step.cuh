#pragma once
// One multiply step of the tensor cores and the order in which a lane holds columns: lane t of four takes columns 8t .. 8t+7 of 32, so that
// it reads rows in pieces of 16 bytes; its first four columns are its share of the first of two steps, the others of the second. Which
// column a lane holds is free as long as both operands agree.
#include <cstdint>

#include "base/bf16.h"

namespace tetrad::cuda {

// acc [16, 8] += a [16, 16] * b [16, 8], bf16 operands, float32 sums.
__device__ __forceinline__ void multiply_step(float* acc, const unsigned* a, unsigned b0, unsigned b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
      : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// acc += the 32 columns of two rows of a (of this lane's place and eight below) with those of one row of b.
__device__ __forceinline__ void multiply_pieces(float* acc, const uint4& upper, const uint4& lower, const uint4& b) {
  const unsigned first[4] = {upper.x, lower.x, upper.y, lower.y}, second[4] = {upper.z, lower.z, upper.w, lower.w};
  multiply_step(acc, first, b.x, b.y);
  multiply_step(acc, second, b.z, b.w);
}

// Columns k .. k+7 of a row of bf16; zero past `width`, and all zero for no row. Rows whose pieces are not aligned are read by element.
__device__ __forceinline__ uint4 load_piece(const bf16* row, int k, int width) {
  if (row == nullptr || k >= width) return {0, 0, 0, 0};
  if (k + 8 <= width && reinterpret_cast<std::uintptr_t>(row + k) % 16 == 0) return *reinterpret_cast<const uint4*>(row + k);
  union {
    uint4 v;
    std::uint16_t element[8];
  } some = {{0, 0, 0, 0}};
#pragma unroll
  for (int i = 0; i < 8; ++i)
    if (k + i < width) some.element[i] = row[k + i].bits;
  return some.v;
}

}  // namespace tetrad::cuda
