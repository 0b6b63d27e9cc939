#pragma once
// Backend::choose on the device: choices go there in one copy, the ids come back through pinned memory. Everything is sized once.
#include <cstddef>
#include <span>

#include "cuda/kernels/sample.h"
#include "cuda/runtime/memory.h"
#include "cuda/runtime/stream.h"

namespace tetrad::cuda {

class TokenChooser {
 public:
  // At most max_choices at a time; more go in pieces, and so do choices with more than V adjustments together. plan: sample_plan of V.
  TokenChooser(int V, int max_choices, const SamplePlan& plan);

  // logits: rows [., V] on the device. The batch is checked (model/check_choices.h). Waits for the device.
  void choose(const float* logits, int num_rows, const ChoiceBatch& batch, std::span<ChosenToken> chosen, const Stream& stream);

  std::size_t bytes() const { return device_.bytes() + scratch_.bytes(); }

 private:
  std::size_t piece_of(std::span<const TokenChoice> choices) const;
  SampleArgs send(const ChoiceBatch& batch, std::span<const TokenChoice> piece, const Stream& stream);

  int V_;
  std::size_t mask_words_, max_choices_;
  SamplePlan plan_;
  PinnedBuffer<std::byte> host_;  // of a piece: choices, adjustments, holes, masks
  DeviceBuffer<std::byte> device_;
  DeviceBuffer<float> scratch_;
  PinnedBuffer<ChosenToken> chosen_;
};

}  // namespace tetrad::cuda
