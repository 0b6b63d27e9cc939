#include "model/weight_values.h"

#include <cstring>

#include "base/bf16.h"
#include "base/error.h"
#include "base/float16.h"
#include "base/fp8.h"

namespace tetrad {
namespace {

template <class T>
T load(const std::byte* data, std::int64_t index) {
  T value;
  std::memcpy(&value, data + static_cast<std::size_t>(index) * sizeof(T), sizeof(T));  // a shard may start at any byte
  return value;
}

}  // namespace

float weight_element(const WeightView& view, std::int64_t index) {
  switch (view.dtype) {
    case DType::kBF16: return to_float(load<bf16>(view.data, index));
    case DType::kF16: return round_bf16(f16_to_float(load<std::uint16_t>(view.data, index)));
    case DType::kF32: return round_bf16(load<float>(view.data, index));
    case DType::kF8E4M3: return e4m3_to_float(load<std::uint8_t>(view.data, index));
    default: fail<LoadError>("tensor {} is {}; a float type is needed here", view.name, dtype_name(view.dtype));
  }
}

std::vector<float> weight_floats(const WeightView& view) {
  const std::int64_t count = view.num_elements();
  std::vector<float> values(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) values[static_cast<std::size_t>(i)] = weight_element(view, i);
  return values;
}

}  // namespace tetrad
