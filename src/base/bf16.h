#pragma once
// bfloat16 storage and rounding. Arithmetic is done in float; a value is rounded where the reference materialises a tensor.
#include <bit>
#include <cstdint>

namespace tetrad {

struct bf16 {
  std::uint16_t bits = 0;
  friend bool operator==(bf16, bf16) = default;  // compares bits: -0 differs from +0, a NaN equals itself
};

inline float to_float(bf16 x) { return std::bit_cast<float>(static_cast<std::uint32_t>(x.bits) << 16); }

// Round to nearest, ties to even; a NaN stays a NaN.
inline bf16 to_bf16(float x) {
  const auto u = std::bit_cast<std::uint32_t>(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return {static_cast<std::uint16_t>((u >> 16) | 0x40u)};
  return {static_cast<std::uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16)};
}

inline float round_bf16(float x) { return to_float(to_bf16(x)); }

}  // namespace tetrad
