#pragma once
// gdn_step_columns: the gated delta rule of gdn_step.h on vectors of columns.
//   Math      r = decay (k^T S);  u = beta (v - r);  S <- decay S + k u;  o = q^T S
//   Rounding  float32; the sums over k are chains of fused multiply-adds, k ascending, one per column; decay S is rounded, then k u is
//             added to it by a fused multiply-add. A target without that instruction rounds the product first.
//   Order     lanes run across columns, so the bits depend on neither the vector width nor how columns or tokens are split
//   NaN       reaches S and o as IEEE arithmetic gives it
//   Tests     unit/gdn_step_test
#include "cpu/gdn_step.h"

namespace tetrad::cpu {

// T, K and num_columns may be zero. Allocates nothing; 32 KiB of stack.
void gdn_step_columns(const GdnStepArgs& a);

}  // namespace tetrad::cpu
