#pragma once
// hyper_connections: the residual streams. Between hc_norm, hc_activate and hc_mean stand the two linears of the mix (cuda/forward.cpp).
//   Math      normed[s] = rms_norm(h[s]) * (1 + w[s]);  low = silu(bf(down normed) / HC);  gate = sigmoid(bf(up low))
//             x = mean over s of gate[s] * normed[s];  inject = 2 sigmoid(inject_logit / HC);  h[s] += inject[s] * y
//   Inputs    h [T, HC, D] bf16; norm scale [HC*D] f32 (1 + w); low_logits [T, LR + HC] bf16 rows ld apart; gate logits [T, HC*D] bf16
//   Output    normed [T, HC*D]; low [T, LR]; inject [T, HC]; x [T, D], all bf16; h in place
//   Rounding  bf16 after the norm, after / HC, after silu and sigmoid, each product of the mean, the mean, each product and sum of inject
//   Order     sums of squares: 256 strided threads, then a fixed tree; streams ascending; independent of T. hc_down and hc_up_mean add as
//             linear does
//   NaN       passes through
//   Launch    hc_norm grid (T, HC) of 256 threads; the others one thread per eight elements, or per element where D is no multiple of 8;
//             hc_down: eight blocks, a cluster, to 32 outputs of up to 32 rows; hc_inject_down: four to 16 outputs, a stream each;
//             hc_up_mean: a block to 16 elements of x of up to 64 rows, to 64 elements of up to eight rows. There a warp has a segment of
//             16 outputs in registers
//   Bytes     hc_norm and hc_mean 4*HC*D, hc_inject 4*HC*D + 2*D, hc_inject_norm_rows 6*HC*D + 2*D per row
//   Oracle    cpu::hc_mix, cpu::hc_inject
//   Tests     gpu/hyper_connections_test, gpu/hyper_connections_few_test; properties/state_test on the device; verify:
//             attn.mixed, attn.inject, mlp.mixed
#include "base/bf16.h"
#include "cuda/kernels/linear.h"
#include "cuda/runtime/stream.h"

namespace tetrad::cuda {

struct HcShape {
  int HC, D, LR;
  float eps;
};

// rms_norm of `groups` parts of D elements of every row, with the scale of that part; also every other norm of the model.
struct NormRowsArgs {
  int T, groups, D;
  float eps;
  const bf16* x;  // [T, groups*D], rows ldx apart
  int ldx;
  const float* scale;  // [groups*D], or [D] for all groups when shared_scale
  bool shared_scale;
  bf16* out;  // may be x
  int ldo;
};
void norm_rows(const NormRowsArgs& a, const Stream& stream);

void hc_activate(const HcShape& s, int T, const bf16* low_logits, int ld, bf16* low, int ld_low, bf16* inject, const Stream& stream);
void hc_mean(const HcShape& s, int T, const bf16* gate_logits, const bf16* normed, bf16* x, const Stream& stream);
void hc_inject(const HcShape& s, int T, const bf16* inject, const bf16* y, bf16* h, const Stream& stream);
// hc_inject, then norm_rows of the streams, in one pass over them. The same bits.
void hc_inject_norm_rows(const HcShape& s, int T, const bf16* inject, const bf16* y, bf16* h, const float* scale, bf16* normed,
                         const Stream& stream);

// The same for few rows (up to hc_few_rows, D a multiple of 16), in three launches instead of six: hc_inject_norm, hc_down,
// hc_up_mean. Where there is no hc_down, linear_sums of down_inject and hc_activate_sums do the same. The same bits. h += inject * y, then
// normed = rms_norm of the next mix; inject null: norm only.
void hc_inject_norm(const HcShape& s, int T, const bf16* inject, const bf16* y, bf16* h, const float* scale, bf16* normed,
                    const Stream& stream);
// The most rows: hc_down takes kHcFewRows, without it the limit is that of linear_sums.
inline constexpr int kHcFewRows = 64;
int hc_few_rows(const HcShape& s, const Stream& stream);
// hc_inject_norm and hc_down in one, for one row; the streams and injection weights that it reads and those that it writes lie apart.
// False where it does not apply: then nothing has been launched.
struct HcInjection {
  const bf16 *inject, *y, *h;  // inject null: norm only
  const float* scale;
  bf16 *h_out, *normed;
};
bool hc_inject_down(const HcShape& s, const DeviceLinear& down_inject, int T, const HcInjection& a, bf16* low, int ld_low, bf16* inject,
                    const Stream& stream);
// low and inject of down_inject normed; false where it does not apply (no clusters, K too wide).
bool hc_down(const HcShape& s, const DeviceLinear& down_inject, int T, const bf16* normed, bf16* low, int ld_low, bf16* inject,
             const Stream& stream);
// sums [segments, T, ld] of down_inject, added up in order and rounded, then hc_activate.
void hc_activate_sums(const HcShape& s, int T, const float* sums, int segments, int ld, bf16* low, int ld_low, bf16* inject,
                      const Stream& stream);
// x = hc_mean of up low.
void hc_up_mean(const HcShape& s, const DeviceLinear& up, int T, const bf16* low, int ld_low, const bf16* normed, bf16* x,
                const Stream& stream);

}  // namespace tetrad::cuda
