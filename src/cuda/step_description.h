#pragma once
// What varies from step to step, as integers in one piece of memory at a fixed address: a recorded step reads it there.
#include "cuda/kernels/step_rows.h"
#include "cuda/runtime/memory.h"
#include "cuda/runtime/stream.h"
#include "model/backend.h"

namespace tetrad::cuda {

class StepDescription {
 public:
  StepDescription(int max_rows, int num_slots, int max_pages);

  // Fills the pinned copy from a checked batch, sends it, and returns pointers into the device copy; *logit_rows: the rows wanted. The
  // memory of the state and the sizes of StepRows are the caller's to fill in.
  StepRows send(const StepBatch& batch, const Stream& stream, const int** logit_rows);

 private:
  int max_pages_;
  PinnedBuffer<int> host_;
  DeviceBuffer<int> device_;
};

}  // namespace tetrad::cuda
