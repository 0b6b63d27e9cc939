#include "cuda/step_context.h"

#include <algorithm>

namespace tetrad::cuda {
namespace {

float as_float(float x) { return x; }
float as_float(bf16 x) { return to_float(x); }
void assign(float& to, float x) { to = x; }
void assign(bf16& to, float x) { to = to_bf16(x); }

template <class T>
void tap_tensor(const StepContext& step, int layer, std::string_view stage, T* values, const TapView& view) {
  TapSink* sink = step.batch.taps;
  if (sink == nullptr) return;
  std::int64_t row_size = 1;
  for (std::size_t i = 1; i < view.shape.size(); ++i) row_size *= view.shape[i];
  const std::int64_t rows = view.shape[0], ld = view.ld == 0 ? row_size : view.ld, piece = row_size / view.pieces;
  const std::int64_t span = (rows - 1) * ld + (view.pieces - 1) * view.piece_stride + piece;
  std::vector<T> host(static_cast<std::size_t>(span));
  step.stream.copy(host.data(), values, host.size() * sizeof(T));
  step.stream.synchronize();
  std::vector<float> packed(static_cast<std::size_t>(rows * row_size));
  const auto each = [&](auto body) {
    for (std::int64_t i = 0; i < rows * row_size; ++i)
      body(packed[static_cast<std::size_t>(i)],
           host[static_cast<std::size_t>(i / row_size * ld + i % row_size / piece * view.piece_stride + i % row_size % piece)]);
  };
  each([](float& to, T from) { to = as_float(from); });
  sink->record(layer, stage, packed, view.shape);
  if (!sink->replace(layer, stage, packed)) return;
  each([](float from, T& to) { assign(to, from); });
  step.stream.copy(values, host.data(), host.size() * sizeof(T));
  step.stream.synchronize();  // `host` goes away
}

}  // namespace

void StepContext::tap(int layer, std::string_view stage, bf16* values, const TapView& view) const {
  tap_tensor(*this, layer, stage, values, view);
}
void StepContext::tap(int layer, std::string_view stage, float* values, const TapView& view) const {
  tap_tensor(*this, layer, stage, values, view);
}

}  // namespace tetrad::cuda
