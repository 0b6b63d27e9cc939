#pragma once
// The vector half of matmul (matmul.h states the arithmetic), dispatched at run time to the best instruction set of the machine.
#include "cpu/matmul.h"

namespace tetrad::cpu {

// Up to this many rows the weights are expanded in registers as they stream past; more rows share one expansion kept in L1.
inline constexpr int kDirectRows = 6;
// Most rows per call of matmul_panels: with kBlockColumns columns of x they fill 96 KiB, a part of the smallest common L2.
inline constexpr int kRowBlock = 96;
inline constexpr int kBlockColumns = 256;

// y[0..a.T, 16*first .. 16*(first+count)) for T <= kRowBlock; a.x and a.y point at row 0 and output 0.
void matmul_panels(const PackedLinear& w, int first, int count, const MatmulArgs& a);

}  // namespace tetrad::cpu
