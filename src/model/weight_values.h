#pragma once
// Elements of a weight as floats, with the rounding that the reference does on loading.
#include <cstdint>
#include <vector>

#include "model/weights.h"

namespace tetrad {

// BF16 as it is; F16 and F32 rounded to bf16; F8_E4M3 the code's own value, unscaled. Throws LoadError naming the tensor for another dtype.
float weight_element(const WeightView& view, std::int64_t index);
std::vector<float> weight_floats(const WeightView& view);

}  // namespace tetrad
