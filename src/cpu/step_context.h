#pragma once
// What every sub-block of a step needs besides its weights and activations.
#include <array>
#include <span>
#include <string_view>

#include "base/thread_pool.h"
#include "cpu/rope.h"
#include "cpu/state_memory.h"
#include "cpu/workspace.h"
#include "model/backend.h"

namespace tetrad::cpu {

// How a stage's tensor lies in memory: rows `row_stride` apart, each row in `pieces` equal parts `piece_stride` apart. No allocation: it
// is built in every step, with a sink or without.
struct TapView {
  std::array<std::int64_t, 3> shape{};  // [rows, ...], zero past the rank
  std::int64_t row_stride = 0;          // 0: contiguous
  std::int64_t pieces = 1;
  std::int64_t piece_stride = 0;
};

struct StepContext {
  const Config& config;
  const StepBatch& batch;
  StateMemory& state;
  Workspace& ws;
  ThreadPool& pool;
  const RopeTable& rope;
  StepResult& result;

  int T() const { return static_cast<int>(batch.token_ids.size()); }

  // Hands a tensor to the sink when there is one, and takes back what the sink puts in its place (teacher forcing).
  void tap(int layer, std::string_view stage, float* values, const TapView& view) const;
  void fault(int row, int layer, std::string_view what);
};

}  // namespace tetrad::cpu
