#pragma once
// Softmax attention of one query head over a gathered set of key and value rows (docs/model.md, "Attention").
#include "base/bf16.h"

namespace tetrad::cpu {

// logits[n] = bf(bf(q . k_n) / sqrt(DH)); p = bf(softmax_f32(logits)); out = bf(sum_n p[n] v_n), n ascending in one chain per element.
// The dot product runs in a fixed 8-lane order.
struct AttendHeadArgs {
  int num_rows;  // at least 1
  int DH;
  int head_offset;            // elements from the start of a row to this kv head
  const float* q;             // [DH] bf16 values
  const bf16* const* k_rows;  // [num_rows] pointers to rows of HKV*DH
  const bf16* const* v_rows;
  float* scratch;  // [num_rows]
  float* out;      // [DH]
};
void attend_head(const AttendHeadArgs& a);

}  // namespace tetrad::cpu
