#include "cpu/rope.h"

#include <cmath>

#include "base/bf16.h"
#include "cpu/mutants.h"

namespace tetrad::cpu {
namespace {

float round_product(float x) { return mutant(Mutant::kFloatRope) ? x : round_bf16(x); }

}  // namespace

RopeTable::RopeTable(const RopeConfig& rope) : frequencies_(rope_frequencies(rope)) {}

void RopeTable::angles(int position, float* cos, float* sin) const {
  for (std::size_t i = 0; i < frequencies_.inverse.size(); ++i) {
    const float angle = static_cast<float>(position) * frequencies_.inverse[i];
    cos[i] = round_bf16(std::cos(angle) * frequencies_.attention_factor);
    sin[i] = round_bf16(std::sin(angle) * frequencies_.attention_factor);
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
