#pragma once
// Rotary embedding over the first DR dimensions of a head, rotate-half pairing (docs/model.md, "RoPE"). Text only: the three axes of
// M-RoPE carry the same position, so the section split changes nothing.
#include "model/rope_frequencies.h"

namespace tetrad::cpu {

class RopeTable {
 public:
  RopeTable() = default;
  explicit RopeTable(const RopeConfig& rope);

  int rotary_dim() const { return 2 * static_cast<int>(frequencies_.inverse.size()); }

  // cos and sin of one position, rounded to bf16 as the reference holds them; each [DR/2].
  void angles(int position, float* cos, float* sin) const;

  // x [DR ...] in place: out[i] = bf(bf(x[i] cos) - bf(x[i+DR/2] sin)), out[i+DR/2] = bf(bf(x[i+DR/2] cos) + bf(x[i] sin)).
  static void rotate(float* x, const float* cos, const float* sin, int rotary_dim);

 private:
  RopeFrequencies frequencies_;
};

}  // namespace tetrad::cpu
