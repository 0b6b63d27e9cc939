#pragma once
// The frequencies of the rotary embedding (docs/model.md, "RoPE"), plain or yarn.
#include <vector>

#include "model/config.h"

namespace tetrad {

struct RopeFrequencies {
  std::vector<float> inverse;     // [DR/2] float32, as the reference computes them
  float attention_factor = 1.0f;  // yarn scales cos and sin by it
};
RopeFrequencies rope_frequencies(const RopeConfig& rope);

}  // namespace tetrad
