#pragma once
// What every sub-block of a step needs besides its weights.
#include <span>
#include <string_view>
#include <vector>

#include "cuda/kernels/prefetch.h"
#include "cuda/kernels/step_rows.h"
#include "cuda/workspace.h"
#include "model/backend.h"

namespace tetrad::cuda {

// How a stage's tensor lies in device memory: rows `ld` apart, each row in `pieces` equal parts `piece_stride` apart.
struct TapView {
  std::vector<std::int64_t> shape;  // [rows, ...]
  std::int64_t ld = 0;              // 0: contiguous
  std::int64_t pieces = 1;
  std::int64_t piece_stride = 0;
};

struct StepContext {
  const Config& config;
  const StepBatch& batch;
  const StateLayout& layout;
  const StepRows& rows;
  const int* logit_rows;  // on the device
  int most_blocks;        // complete blocks of the row that sees most
  Workspace& ws;
  const Stream& stream;
  WeightPrefetch& prefetch;

  int T() const { return rows.T; }

  // Hands a tensor to the sink when there is one, and takes back what the sink puts in its place (teacher forcing). Waits for the device.
  void tap(int layer, std::string_view stage, bf16* values, const TapView& view) const;
  void tap(int layer, std::string_view stage, float* values, const TapView& view) const;
  template <class Id>
  void tap_ids(int layer, std::string_view stage, const Id* ids, std::int64_t rows_, std::int64_t columns) const {
    if (batch.taps == nullptr) return;
    std::vector<Id> host(static_cast<std::size_t>(rows_ * columns));
    stream.copy(host.data(), ids, host.size() * sizeof(Id));
    stream.synchronize();
    const std::vector<std::int64_t> values(host.begin(), host.end());
    batch.taps->record_ids(layer, stage, values, {rows_, columns});
  }

  std::size_t slot_offset(StateKind kind, int layer) const { return layout.slot_section(kind, layer).offset; }
};

}  // namespace tetrad::cuda
