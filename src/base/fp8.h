#pragma once
// float8 e4m3 (finite, "fn"): 1 sign, 4 exponent (bias 7), 3 mantissa bits; largest 448; 0x7f and 0xff are NaN; no infinities.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

namespace tetrad {

inline constexpr float kMaxE4m3 = 448.0f;

inline float e4m3_to_float(std::uint8_t code) {
  const std::uint32_t magnitude = code & 0x7fu;
  const std::uint32_t sign = static_cast<std::uint32_t>(code & 0x80u) << 24;
  if (magnitude == 0x7fu) return std::bit_cast<float>(sign | 0x7fc00000u);
  // Read as a float the bits are the value times 2^-120, subnormals included.
  const float scaled = std::bit_cast<float>(magnitude << 20) * 0x1p+120f;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(scaled) | sign);
}

// Nearest code, ties to even; values past the largest saturate; a NaN stays a NaN.
inline std::uint8_t to_e4m3(float x) {
  const std::uint8_t sign = std::signbit(x) ? 0x80 : 0;
  const float magnitude = std::fabs(x);
  if (std::isnan(x)) return sign | 0x7f;
  if (magnitude == 0.0f) return sign;
  if (magnitude >= kMaxE4m3) return sign | 0x7e;
  int exponent = 0;
  std::frexp(magnitude, &exponent);                                                   // magnitude = m * 2^exponent, m in [0.5, 1)
  const int step = std::max(exponent - 4, -9);                                        // exponent of one unit of the mantissa
  const auto units = static_cast<int>(std::nearbyint(std::ldexp(magnitude, -step)));  // in [0, 16]
  // Below step -9 lie only subnormals (0..7 units); 16 units carry into the next binade, which the sum does by itself.
  return static_cast<std::uint8_t>(sign | ((step + 9) * 8 + units));
}

}  // namespace tetrad
