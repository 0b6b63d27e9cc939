#pragma once
// Philox 4x32-10, the counter-based generator of Salmon et al. (2011): a pure function of key and counter, so a draw depends on the
// request's seed and the token's position and on nothing that happened before or beside it.
#include <array>
#include <cstdint>

namespace tetrad {

inline std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter, std::array<std::uint32_t, 2> key) {
  constexpr std::uint64_t kMultiplier0 = 0xD2511F53, kMultiplier1 = 0xCD9E8D57;
  constexpr std::uint32_t kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t product0 = kMultiplier0 * counter[0];
    const std::uint64_t product1 = kMultiplier1 * counter[2];
    counter = {static_cast<std::uint32_t>(product1 >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(product1),
               static_cast<std::uint32_t>(product0 >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(product0)};
    key[0] += kWeyl0;
    key[1] += kWeyl1;
  }
  return counter;
}

// 64 random bits. `stream` separates independent uses at one position.
inline std::uint64_t philox_bits(std::uint64_t seed, std::uint64_t position, std::uint32_t stream = 0) {
  const auto words = philox4x32({static_cast<std::uint32_t>(position), static_cast<std::uint32_t>(position >> 32), stream, 0},
                                {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)});
  return (static_cast<std::uint64_t>(words[0]) << 32) | words[1];
}

}  // namespace tetrad
