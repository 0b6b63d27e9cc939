#pragma once
// Sparse-attention sub-block (docs/model.md, "QSA"): every query attends to the tokens of its best-scoring complete blocks and to the
// tokens of the incomplete block at the end.
#include "cpu/packed_weights.h"
#include "cpu/step_context.h"

namespace tetrad::cpu {

// x [T, D] -> y [T, D]; appends K, V and block keys to the pages of every sequence in the step, and updates its pending raw keys.
void qsa_layer(const PackedQsa& w, int layer, const float* x, float* y, StepContext& step);

}  // namespace tetrad::cpu
