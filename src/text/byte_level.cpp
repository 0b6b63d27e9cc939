#include "text/byte_level.h"

#include <array>

#include "text/unicode.h"

namespace tetrad::text {
namespace {

constexpr char32_t kFirstSubstitute = 0x100;
constexpr int kAlphabetEnd = 0x144;  // 256 + the 68 bytes that do not print

constexpr bool prints(int byte) { return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE; }

struct Alphabet {
  std::array<char32_t, 256> code_point{};
  std::array<int, kAlphabetEnd> byte{};  // -1 where the code point stands for no byte
};

constexpr Alphabet make_alphabet() {
  Alphabet alphabet;
  alphabet.byte.fill(-1);
  char32_t next = kFirstSubstitute;
  for (int byte = 0; byte < 256; ++byte) {
    const char32_t code_point = prints(byte) ? static_cast<char32_t>(byte) : next++;
    alphabet.code_point[static_cast<std::size_t>(byte)] = code_point;
    alphabet.byte[code_point] = byte;
  }
  return alphabet;
}

constexpr Alphabet kAlphabet = make_alphabet();

}  // namespace

char32_t byte_to_code_point(unsigned char byte) { return kAlphabet.code_point[byte]; }

std::optional<std::string> byte_level_decode(std::string_view token) {
  std::string bytes;
  for (std::size_t i = 0; i < token.size();) {
    const Utf8Step step = utf8_step(token.substr(i));
    if (step.kind != Utf8Step::Kind::kCodePoint || step.code_point >= kAlphabet.byte.size()) return std::nullopt;
    const int byte = kAlphabet.byte[step.code_point];
    if (byte < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(static_cast<unsigned char>(byte)));
    i += step.length;
  }
  return bytes;
}

}  // namespace tetrad::text
