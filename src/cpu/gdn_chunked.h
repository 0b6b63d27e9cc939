#pragma once
// gdn_chunked: the gated delta rule in chunks of kGdnChunk tokens, for one value head.
//   Math      within a chunk, with G = cumsum(log_decay) and D[i, j] = exp(G[i] - G[j]) for j <= i:
//               M[i, j] = beta[i] (k_i . k_j) D[i, j] for j < i
//               (I + M) U = diag(beta) V,   (I + M) W = diag(beta exp(G)) K       by forward substitution
//               N = U - W S,   o_i = exp(G[i]) q_i S + sum_{j <= i} (q_i . k_j) D[i, j] N_j
//               S <- exp(G[last]) S + sum_j exp(G[last] - G[j]) k_j N_j^T
//   Inputs    q, k [T, K] normalised, v [T, V], log_decay (at most 0) and beta [T]; strides in elements
//   State     S [K, V] float32, V fastest, updated in place; any contents
//   Output    o [T, V] float32
//   Rounding  all float32, sums in ascending index, one rounding per operation
//   Order     a result depends on where the chunks begin: tokens fed 64 + 36 and 36 + 64 differ in the last bits
//   Memory    allocates its scratch
//   Tests     unit/gdn_chunked_test
//
// The forward uses the token-by-token form (gdn_step.h): its bits do not depend on how a prompt is cut into steps, which is what makes
// chunked prefill, batching and resumed sequences equal to the bit. The chunked form trades that for matrix products; it stands here as
// the oracle of device kernels that are built on it.

namespace tetrad::cpu {

inline constexpr int kGdnChunk = 64;

struct GdnChunkedArgs {
  int T, K, V;  // T == 0 is a no-op
  const float* q;
  const float* k;
  const float* v;
  int ld_qk, ld_v;
  const float* log_decay;  // g, not exp(g): the sums are taken before the exponential
  const float* beta;
  int ld_gates;
  float* S;
  float* o;
  int ld_o;
};
void gdn_chunked(const GdnChunkedArgs& a);

}  // namespace tetrad::cpu
