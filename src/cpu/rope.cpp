#include "cpu/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/bf16.h"
#include "cpu/mutants.h"

namespace tetrad::cpu {
namespace {

float round_product(float x) { return mutant(Mutant::kFloatRope) ? x : round_bf16(x); }

// Dimension index at which a frequency makes `rotations` turns over the original context (yarn).
double correction_dim(double rotations, int dim, double theta, int positions) {
  return dim * std::log(positions / (rotations * 2.0 * std::numbers::pi)) / (2.0 * std::log(theta));
}

}  // namespace

RopeTable::RopeTable(const RopeConfig& rope) {
  const int half = rope.rotary_dim / 2;
  inverse_frequencies_.resize(static_cast<std::size_t>(half));
  for (int i = 0; i < half; ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(rope.rotary_dim);
    inverse_frequencies_[static_cast<std::size_t>(i)] = 1.0f / std::pow(static_cast<float>(rope.theta), exponent);
  }
  if (rope.type == RopeType::kDefault) return;
  double low = std::floor(correction_dim(rope.yarn_beta_fast, rope.rotary_dim, rope.theta, rope.yarn_original_positions));
  double high = std::ceil(correction_dim(rope.yarn_beta_slow, rope.rotary_dim, rope.theta, rope.yarn_original_positions));
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(rope.rotary_dim - 1));
  if (low == high) high += 0.001;  // the ramp below divides by the difference
  for (int i = 0; i < half; ++i) {
    const auto ramp = static_cast<float>(std::clamp((i - low) / (high - low), 0.0, 1.0));
    float& f = inverse_frequencies_[static_cast<std::size_t>(i)];
    f = f / static_cast<float>(rope.yarn_factor) * ramp + f * (1.0f - ramp);
  }
  attention_factor_ = static_cast<float>(rope.yarn_attention_factor.value_or(0.1 * std::log(rope.yarn_factor) + 1.0));
}

void RopeTable::angles(int position, float* cos, float* sin) const {
  for (std::size_t i = 0; i < inverse_frequencies_.size(); ++i) {
    const float angle = static_cast<float>(position) * inverse_frequencies_[i];
    cos[i] = round_bf16(std::cos(angle) * attention_factor_);
    sin[i] = round_bf16(std::sin(angle) * attention_factor_);
  }
}

void RopeTable::rotate(float* x, const float* cos, const float* sin, int rotary_dim) {
  const int half = rotary_dim / 2;
  for (int i = 0; i < half; ++i) {
    const int a = mutant(Mutant::kRopeInterleaved) ? 2 * i : i;
    const int b = mutant(Mutant::kRopeInterleaved) ? 2 * i + 1 : i + half;
    const float first = x[a], second = x[b];
    x[a] = round_product(round_product(first * cos[i]) - round_product(second * sin[i]));
    x[b] = round_product(round_product(second * cos[i]) + round_product(first * sin[i]));
  }
}

}  // namespace tetrad::cpu
