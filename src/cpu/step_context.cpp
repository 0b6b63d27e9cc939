#include "cpu/step_context.h"

#include <algorithm>

namespace tetrad::cpu {

void StepContext::tap(int layer, std::string_view stage, const float* values, std::vector<std::int64_t> shape, std::int64_t row_stride) const {
  if (batch.taps == nullptr) return;
  std::int64_t row_size = 1;
  for (std::size_t i = 1; i < shape.size(); ++i) row_size *= shape[i];
  const std::int64_t stride = row_stride == 0 ? row_size : row_stride;
  std::vector<float> packed(static_cast<std::size_t>(shape[0] * row_size));
  for (std::int64_t t = 0; t < shape[0]; ++t) std::copy_n(values + t * stride, row_size, packed.data() + t * row_size);
  batch.taps->record(layer, stage, packed, std::move(shape));
}

void StepContext::fault(int row, int layer, std::string_view what) {
  const auto owns = [&](const SequenceRows& s) { return row >= s.first_row && row < s.first_row + s.num_rows; };
  const auto sequence = std::find_if(batch.sequences.begin(), batch.sequences.end(), owns);
  const int index = static_cast<int>(sequence - batch.sequences.begin());
  for (const SequenceFault& known : result.faults)
    if (known.sequence == index) return;  // the first fault of a sequence names the cause
  result.faults.push_back({index, row, layer, std::string(what)});
}

}  // namespace tetrad::cpu
