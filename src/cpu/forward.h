#pragma once
// The reference program: one step of the model, straight down in the order of docs/model.md, nothing fused, every rounding point written
// out.
#include <span>

#include "cpu/packed_weights.h"
#include "cpu/step_context.h"

namespace tetrad::cpu {

// Runs the step; logits [logit_rows, V] bf16 values as floats. Updates every state of every sequence.
void forward(const PackedModel& model, StepContext& step, std::span<float> logits);

}  // namespace tetrad::cpu
