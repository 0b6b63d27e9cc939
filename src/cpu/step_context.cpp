#include "cpu/step_context.h"

#include <algorithm>
#include <vector>

namespace tetrad::cpu {

void StepContext::tap(int layer, std::string_view stage, float* values, const TapView& view) const {
  if (batch.taps == nullptr) return;
  std::vector<std::int64_t> shape;
  for (const std::int64_t size : view.shape)
    if (size > 0) shape.push_back(size);
  std::int64_t row_size = 1;
  for (std::size_t i = 1; i < shape.size(); ++i) row_size *= shape[i];
  const std::int64_t row_stride = view.row_stride == 0 ? row_size : view.row_stride;
  const std::int64_t piece = row_size / view.pieces;
  const auto place = [&](std::int64_t t, std::int64_t p) { return values + t * row_stride + p * view.piece_stride; };
  std::vector<float> packed(static_cast<std::size_t>(view.shape[0] * row_size));
  for (std::int64_t t = 0; t < view.shape[0]; ++t)
    for (std::int64_t p = 0; p < view.pieces; ++p) std::copy_n(place(t, p), piece, packed.data() + t * row_size + p * piece);
  batch.taps->record(layer, stage, packed, std::move(shape));
  if (!batch.taps->replace(layer, stage, packed)) return;
  for (std::int64_t t = 0; t < view.shape[0]; ++t)
    for (std::int64_t p = 0; p < view.pieces; ++p) std::copy_n(packed.data() + t * row_size + p * piece, piece, place(t, p));
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
