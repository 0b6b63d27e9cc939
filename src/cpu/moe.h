#pragma once
// Mixture of experts with a shared expert (docs/model.md, "MoE").
#include "cpu/packed_weights.h"
#include "cpu/step_context.h"

namespace tetrad::cpu {

// x [T, D] -> y [T, D]. A row whose router logits are not finite is reported as a fault of its sequence; its output is not a number.
void moe_layer(const PackedMoe& w, int layer, const float* x, float* y, StepContext& step);

// Softmax over E, the EK largest (higher probability first, then lower index), renormalised if asked, weights rounded to bf16.
//   logits [E]; probs [E] scratch and result of the softmax; ids, weights [EK]. Returns false when a logit is not finite: ids are then
//   0 .. EK-1 and weights NaN.
bool route(const float* logits, int E, int EK, bool renormalise, float* probs, int* ids, float* weights);

}  // namespace tetrad::cpu
