#pragma once
// e4m3fn as checkpoints store it: 4 exponent bits (bias 7), 3 mantissa bits, no infinities, 0x7f and 0xff are NaN. Every value is exact in
// bf16.
#include <bit>
#include <cstdint>
#include <limits>

namespace tetrad {

inline float e4m3_to_float(std::uint8_t code) {
  const std::uint32_t magnitude = code & 0x7fu;
  const std::uint32_t sign = static_cast<std::uint32_t>(code & 0x80u) << 24;
  if (magnitude == 0x7fu) return std::bit_cast<float>(sign | 0x7fc00000u);
  // Read as a float the bits are the value times 2^-120, subnormals included.
  const float scaled = std::bit_cast<float>(magnitude << 20) * 0x1p+120f;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(scaled) | sign);
}

}  // namespace tetrad
