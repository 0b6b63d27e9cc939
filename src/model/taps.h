#pragma once
// Named stage boundaries at which the two forwards and the reference meet. The names are those of tests/goldens/README.md.
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace tetrad {

// Receives copies of intermediate tensors during a step; absent (null) in normal runs. Rows are the packed rows of the step.
class TapSink {
 public:
  virtual ~TapSink() = default;
  // `stage` is a golden's stage name ("attn.mixed", "stream_out", "final.mixed"); layer is -1 for stages outside the layers.
  // Shape is [T, ...]. Values of bf16 tensors arrive as floats.
  virtual void record(int layer, std::string_view stage, std::span<const float> values, std::vector<std::int64_t> shape) = 0;
  // Integer stages: "moe.experts" [T, EK] (in descending order of weight), "ple.rows" [T, NG].
  virtual void record_ids(int layer, std::string_view stage, std::span<const std::int64_t> values, std::vector<std::int64_t> shape) = 0;
  // "qsa.selected": for packed row `row`, the attended token positions, ascending, and the scores of its complete blocks (empty when the
  // budget holds them all). The sink may change the positions: the row then attends to those.
  virtual void record_selected(int layer, int row, std::vector<int>& positions, std::span<const float> block_scores) = 0;
  // Teacher forcing: called after record() of a stage, may overwrite its values, contiguous in its shape, with the reference's; true if it
  // did, and the step then goes on from them.
  virtual bool replace(int layer, std::string_view stage, std::span<float> values) {
    (void)layer, (void)stage, (void)values;
    return false;
  }
};

}  // namespace tetrad
