#pragma once
// moe: routing, grouping by expert, activation and combination; the experts' linears run between them (linear.h, LinearGroups).
//   Math      p = softmax(logits); the EK largest, descending, then lower index; w = p / sum of them (renormalise) or p
//             hidden = silu(gate) * up;  y = sum_k w_k E_k + sigmoid(shared_gate) * shared
//   Inputs    in [T, in_ld] bf16 (MoeShape); hidden [P, 2*F] bf16, P = T*EK grouped rows; expert outputs [P, D] bf16
//   Output    ids, weights [T, EK]; first [E+1], place [P] of pair t*EK+k, token [P] of a place, active, tiles; act [P, F]; y [T, D]
//   Rounding  softmax float32; weights, silu, product, each weighted row, routed sum, gated shared row and y to bf16; the routed sum is
//             float32 over k ascending, as the reference's grouped path does
//   Order     softmax sums by lanes, then a fixed tree; k ascending. Which place of its group a pair gets is left to integer atomics: a
//             row's bits do not depend on its place
//   NaN       a row with a logit that is not finite fails (record_fault), gets experts 0 .. EK-1 and NaN weights
//   Traps     expert ids out of range
//   Launch    route: a warp per row; group: one block of 1024; the others a thread per element. Few rows: one block routes and groups; gate
//             and up by blocks of 16 columns and group; down by warps of 16 outputs and group, two blocks a multiprocessor. FP8 and up to
//             eight rows on Hopper: gate and up by a block a multiprocessor, a warp a segment of consecutive pieces of 16 columns; down by
//             16 warps a multiprocessor, each on its own with strips of 16 outputs (experts of 640 columns)
//   Oracle    cpu::route, cpu::moe_layer
//   Tests     gpu/moe_test, gpu/golden_kernels_test, gpu/index_trap_test; verify: moe.weights, moe.experts,
//             moe.routed_out, moe.shared_out
#include "base/bf16.h"
#include "cuda/kernels/linear.h"
#include "cuda/kernels/step_rows.h"
#include "cuda/runtime/stream.h"

namespace tetrad::cuda {

// A row of `in` [T, in_ld] is what one linear makes of x: router logits [E], the shared expert's gate [FS], its up [FS], its own gate.
struct MoeShape {
  int E, EK, F, FS, in_ld;
  bool renormalise;
};

// faults: [T] as in StepRows, or null.
void moe_route(const MoeShape& s, const bf16* in, int T, int layer, int* ids, float* weights, int* faults, const Stream& stream);

struct MoeGrouping {
  int* first;       // [E + 1]
  int* place;       // [T*EK]
  int* token;       // [T*EK]
  int* active;      // [min(E, T*EK)]
  int* num_active;  // [1]
  int2* tiles;      // [ceil(T*EK / kGroupTileRows) + E]
  int* num_tiles;   // [1]
  int4* records;    // [min(E, T*EK)] of the active ones: expert, first place, place past the last, 0
};
void moe_group(const int* ids, int T, int E, int EK, const MoeGrouping& g, const Stream& stream);

// act [rows, F] = bf(bf(silu(gate)) * up) of hidden [rows, gate F | up F].
void moe_activate(int rows, int F, const bf16* hidden, int ld, bf16* act, int ld_act, const Stream& stream);

void moe_combine(int T, int EK, int D, const float* weights, const int* place, const bf16* experts, bf16* routed, const Stream& stream);
// y = bf(routed + bf(bf(sigmoid(gate)) * shared)); gate of row t at gate[t * ld].
void moe_add_shared(int T, int D, const bf16* routed, const bf16* shared, const bf16* gate, int ld, bf16* y, const Stream& stream);

// Both in one, D a multiple of 8.
void moe_finish(int T, int EK, int D, const float* weights, const int* place, const bf16* experts, const bf16* shared, const bf16* gate,
                int ld, bf16* y, const Stream& stream);

// The same for few rows in four launches, the same bits: up to kMoeFewRows rows, F a multiple of 16, F and FS up to
// kMoeFewWidth, a bf16 shared expert.
inline constexpr int kMoeFewRows = 64, kMoeFewWidth = 1536;
bool moe_few_applies(const MoeShape& s, const DeviceLinear& gate_up, const DeviceLinear& shared_down, int T);
// moe_route, moe_group (records, place, token and num_active alone), and the shared expert's activation [T, FS].
void moe_route_few(const MoeShape& s, const bf16* in, int T, int layer, float* weights, bf16* shared_act, int ld_act, const MoeGrouping& g,
                   int* faults, const Stream& stream);
// act of the grouped pairs to a.y; a as for linear of gate_up.
void moe_gate_up_few(const DeviceLinear& gate_up, const LinearArgs& a, const MoeGrouping& g, int ld_act, const Stream& stream);
// y [T, D] of `routed`, the arguments for linear of down, and `shared`, those for linear of the shared down, whose y it uses on the way.
void moe_down_few(const MoeShape& s, const DeviceLinear& down, const LinearArgs& routed, const DeviceLinear& shared_down,
                  const LinearArgs& shared, const MoeGrouping& g, const float* weights, const bf16* gate, bf16* y, const Stream& stream);

}  // namespace tetrad::cuda
