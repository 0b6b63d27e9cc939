#include "model/rope_frequencies.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace tetrad {
namespace {

// Dimension index at which a frequency makes `rotations` turns over the original context (yarn).
double correction_dim(double rotations, int dim, double theta, int positions) {
  return dim * std::log(positions / (rotations * 2.0 * std::numbers::pi)) / (2.0 * std::log(theta));
}

}  // namespace

RopeFrequencies rope_frequencies(const RopeConfig& rope) {
  RopeFrequencies f;
  const int half = rope.rotary_dim / 2;
  f.inverse.resize(static_cast<std::size_t>(half));
  for (int i = 0; i < half; ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(rope.rotary_dim);
    f.inverse[static_cast<std::size_t>(i)] = 1.0f / std::pow(static_cast<float>(rope.theta), exponent);
  }
  if (rope.type == RopeType::kDefault) return f;
  double low = std::floor(correction_dim(rope.yarn_beta_fast, rope.rotary_dim, rope.theta, rope.yarn_original_positions));
  double high = std::ceil(correction_dim(rope.yarn_beta_slow, rope.rotary_dim, rope.theta, rope.yarn_original_positions));
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(rope.rotary_dim - 1));
  if (low == high) high += 0.001;  // the ramp below divides by the difference
  for (int i = 0; i < half; ++i) {
    const auto ramp = static_cast<float>(std::clamp((i - low) / (high - low), 0.0, 1.0));
    float& frequency = f.inverse[static_cast<std::size_t>(i)];
    frequency = frequency / static_cast<float>(rope.yarn_factor) * ramp + frequency * (1.0f - ramp);
  }
  f.attention_factor = static_cast<float>(rope.yarn_attention_factor.value_or(0.1 * std::log(rope.yarn_factor) + 1.0));
  return f;
}

}  // namespace tetrad
