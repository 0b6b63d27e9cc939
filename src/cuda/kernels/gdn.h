#pragma once
// gdn: Gated DeltaNet between its two projections: convolution, gates, the recurrence, the gated norm.
//   Math      c = silu(sum_j w[j] p[t - (W-1) + j]);  q, k = unit(c), q / sqrt(K);  beta = sigmoid(b)
//             decay = exp(-exp(A) softplus(a + dt));  r = k^T S;  u = beta (v - decay r);  S <- decay S + k u;  o = q^T S
//             y = (rms_norm(o) * w) * gate(z)
//   Inputs    projected [T, row] bf16: q | k | v channels, z, b, a; conv [W, conv_dim] f32; neg_exp_a, dt_bias [HV] f32; norm [V] f32
//   State     window: last W-1 rows of the channels, bf16; S [HV, K, V] f32, V fastest; read and written in the sequence's slot, and
//             copied to save_slot[t] after row t. A slot out of range traps
//   Output    conv_out [T, conv_dim] bf16; decay, beta [T, HV], unit_scales [T, 2*HK] f32, by which q and k are multiplied; core, then
//             y [T, HV*V] bf16
//   Rounding  conv sum and silu to bf16; q, k, S, r, u float32; beta, o, norm, product to bf16
//   Order     taps ascending. Over K: sixteen shares, share g of rows 64j + 4g + i, j then i ascending, multiply-adds fused; shares add up
//             in a tree, neighbours first. Squares: 32 shares, share l of elements 128j + 4l + i in that order, then a tree, far ones
//             first. Independent of T, of what shares the batch and of the kernel; one step is what T rows do one by one
//   Hazards   the window is read by gdn_conv and moved on by gdn_move_window, a launch of its own. gdn_step fetches state and window of
//             its layer before it waits for the kernels before it: none of the same step may write them
//   Launch    recurrence: grid (HK * ceil(HV/HK * V / 48), B), 384 threads, sixteen lanes for two columns of S, tokens a batch ahead;
//             gdn_step: grid (HV, B), 256 threads, for few rows per sequence
//   Bytes     8*HV*K*V per sequence; the recurrence is bound by issue and the latency of a row's sum, not by bytes
//   Oracle    cpu::gdn_layer
//   Tests     gpu/gdn_test, gpu/index_trap_test; properties/state_test on the device; verify: gdn.core, gdn.normed
#include "base/bf16.h"
#include "cuda/kernels/step_rows.h"
#include "cuda/runtime/stream.h"

namespace tetrad::cuda {

inline constexpr int kGdnMaxKey = 512;  // K of the general path; the loader refuses more

struct GdnShape {
  int HK, HV, K, V, W;
  int conv;                               // channels of the convolution
  int z, b, a, row;                       // offsets in a projected row, and its length rounded up to 8
  bool sigmoid_gate;                      // else silu
  float eps;                              // of the norm
  std::size_t conv_offset, state_offset;  // in a slot
};

struct GdnWeightsView {
  const float *conv, *neg_exp_a, *dt_bias, *norm;
};

struct GdnBuffers {
  const bf16* projected;  // [T, row]
  bf16* conv;             // [T, conv_dim]
  float *decay, *beta;    // [T, HV]
  float* unit_scales;     // [T, 2*HK] of q, then of k
  bf16* core;             // [T, HV*V]
  unsigned* arrivals;     // [B, HK] zero before and after each step
};

void gdn_conv(const GdnShape& s, const GdnWeightsView& w, const GdnBuffers& b, const StepRows& r, const Stream& stream);
void gdn_move_window(const GdnShape& s, const GdnBuffers& b, const StepRows& r, const Stream& stream);
void gdn_gates(const GdnShape& s, const GdnWeightsView& w, const GdnBuffers& b, int T, const Stream& stream);
void gdn_recurrence(const GdnShape& s, const GdnBuffers& b, const StepRows& r, const Stream& stream);
void gdn_gated_norm(const GdnShape& s, const GdnWeightsView& w, const GdnBuffers& b, int T, const Stream& stream);  // core in place

// All of the above at once for steps of up to kGdnStepRows rows per sequence, of projected, window and state to y alone. The same bits.
inline constexpr int kGdnStepRows = 4;
bool takes_gdn_step(const GdnShape& s, const StepRows& r);
void gdn_step(const GdnShape& s, const GdnWeightsView& w, const GdnBuffers& b, const StepRows& r, const Stream& stream);

// The window of a causal convolution over rows of `width` channels: after row t of a sequence it holds rows t-history+1 .. t. Also of PLE.
struct MoveWindowArgs {
  int width, history;
  const bf16* rows;  // [T, width], ld apart
  int ld;
  std::size_t offset;  // of the window in a slot
};
void move_window(const MoveWindowArgs& a, const StepRows& r, const Stream& stream);

}  // namespace tetrad::cuda
