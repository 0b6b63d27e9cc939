#pragma once
// The gated delta rule, token by token, for a block of columns of one value head's state.
//   S <- decay S;  r = k^T S;  u = beta (v - r);  S <- S + k u;  o = q^T S        all float32, k ascending, one chain per column
// Columns do not interact, so a block stays in the cache over all tokens, and the bits do not depend on how T or the columns are split.

namespace tetrad::cpu {

inline constexpr int kGdnColumns = 32;  // 128 x 32 floats are 16 KiB: half of the first-level data cache of the smallest target

struct GdnStepArgs {
  int T, K, V;
  int first_column, num_columns;  // of V
  const float* q;                 // [T, K] unit length / sqrt(K)
  const float* k;                 // [T, K] unit length
  const float* v;                 // [T, V]
  int ld_qkv;                     // elements between tokens of q, k and v
  const float* decay;             // [T] exp(g)
  const float* beta;              // [T]
  int ld_gates;
  float* S;  // [K, V] in place, V fastest
  float* o;  // [T, V] out
  int ld_o;
};
void gdn_step(const GdnStepArgs& a);

}  // namespace tetrad::cpu
