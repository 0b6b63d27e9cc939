#pragma once
// Gated DeltaNet sub-block (docs/model.md, "GDN").
#include "cpu/packed_weights.h"
#include "cpu/step_context.h"

namespace tetrad::cpu {

// x [T, D] -> y [T, D]; updates the convolution window and the matrices S [HV, K, V] of every sequence in the step.
void gdn_layer(const PackedGdn& w, int layer, const float* x, float* y, StepContext& step);

}  // namespace tetrad::cpu
