#pragma once
// The model on the device, in the order of src/cpu/forward.cpp and with its taps.
#include <span>

#include "cuda/device_weights.h"
#include "cuda/step_context.h"

namespace tetrad::cuda {

// logits: [batch.logit_rows.size(), V] in host memory, complete once the stream has been waited for; or empty, and they stay in
// Workspace::wide_logits, of whose rows they are no more.
void forward(const DeviceModel& model, const StepContext& step, std::span<float> logits);

}  // namespace tetrad::cuda
