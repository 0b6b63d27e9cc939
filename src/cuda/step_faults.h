#pragma once
// Faults that kernels recorded by row (kernels/step_rows.h), told by sequence.
#include "model/backend.h"

namespace tetrad::cuda {

// faults [T], on the host. The first fault of a sequence names the cause: the earliest layer, then the earliest row.
void report_faults(const StepBatch& batch, const int* faults, StepResult& result);

}  // namespace tetrad::cuda
