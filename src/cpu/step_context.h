#pragma once
// What every sub-block of a step needs besides its weights and activations.
#include <span>
#include <string_view>
#include <vector>

#include "base/thread_pool.h"
#include "cpu/rope.h"
#include "cpu/state_memory.h"
#include "cpu/workspace.h"
#include "model/backend.h"

namespace tetrad::cpu {

struct StepContext {
  const Config& config;
  const StepBatch& batch;
  StateMemory& state;
  Workspace& ws;
  ThreadPool& pool;
  const RopeTable& rope;
  StepResult& result;

  int T() const { return static_cast<int>(batch.token_ids.size()); }

  // Hands a [T, ...] tensor to the sink when there is one. `row_stride` is the distance between rows; a row is the product of the shape
  // after T.
  void tap(int layer, std::string_view stage, const float* values, std::vector<std::int64_t> shape, std::int64_t row_stride = 0) const;
  void fault(int row, int layer, std::string_view what);
};

}  // namespace tetrad::cpu
