#pragma once
// IEEE half precision, read only: checkpoints may hold F16 tensors, the engine computes in bf16 and float.
#include <bit>
#include <cstdint>

namespace tetrad {

inline float f16_to_float(std::uint16_t half) {
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000u) << 16;
  const std::uint32_t magnitude = half & 0x7fffu;
  if (magnitude >= 0x7c00u) return std::bit_cast<float>(sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13));
  // Read as a float the bits are the value times 2^-112, subnormals included.
  const float scaled = std::bit_cast<float>(magnitude << 13) * 0x1p+112f;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(scaled) | sign);
}

}  // namespace tetrad
