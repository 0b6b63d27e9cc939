#pragma once
// ends: the first and the last of a step: embedding into the streams, rows whose logits are wanted, logits as floats, lengths.
//   Math      h[t, s] = embedding[token_ids[t]] for every stream s;  x_wanted[i] = x[logit_rows[i]];  length += rows
//   Inputs    embedding [V, D] bf16; token ids and logit rows on the device
//   State     length (int64) of the slot, and of the slots that rows save into
//   Output    streams [T, HC, D] bf16; wanted [n, D] bf16; logits [n, V] f32, whole
//   Rounding  none
//   NaN       a logits row that is not finite throughout fails (record_fault)
//   Traps     token id, logit row or slot out of range
//   Order     no sums
//   Launch    a block per row; lengths a thread per sequence
//   Oracle    cpu::forward
//   Tests     gpu/ends_test, gpu/index_trap_test; verify: logits
#include "base/bf16.h"
#include "cuda/kernels/step_rows.h"
#include "cuda/runtime/stream.h"

namespace tetrad::cuda {

void embed(const bf16* embedding, int D, int HC, bf16* streams, const StepRows& r, const Stream& stream);
void take_rows(const bf16* x, int D, const int* logit_rows, int count, bf16* wanted, const StepRows& r, const Stream& stream);
void widen_logits(const bf16* logits, int V, const int* logit_rows, int count, int num_layers, float* out, const StepRows& r,
                  const Stream& stream);
void advance_lengths(std::size_t length_offset, const StepRows& r, const Stream& stream);

}  // namespace tetrad::cuda
