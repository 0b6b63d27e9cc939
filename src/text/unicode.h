#pragma once
// UTF-8 and the few Unicode facts that tokenization rests on.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tetrad::text {

constexpr char32_t kReplacement = 0xFFFD;

// One step through bytes that may not be UTF-8. `length` is at least 1 for non-empty input.
struct Utf8Step {
  enum class Kind { kCodePoint, kInvalid, kIncomplete };
  Kind kind;
  char32_t code_point;  // kReplacement unless kind is kCodePoint
  std::size_t length;   // bytes of the code point, or of the longest prefix of one (kInvalid, kIncomplete)
};

// Reads the start of `bytes` (not empty). kIncomplete: all of `bytes` is a proper prefix of some code point.
Utf8Step utf8_step(std::string_view bytes);

// Byte offset of the first byte that is not valid UTF-8 (surrogates, overlong forms and values above U+10FFFF included), or npos.
std::size_t find_invalid_utf8(std::string_view text);

void append_utf8(std::string& out, char32_t code_point);

// Appends `bytes` to `out`, every longest invalid stretch as one U+FFFD. An incomplete tail is left out unless `flush`; returns the
// number of bytes consumed.
std::size_t append_lossy(std::string& out, std::string_view bytes, bool flush);

// Normalisation form C of valid UTF-8, in time linear in the text but for one sort per run of combining marks.
std::string nfc(std::string_view text);

// Property White_Space.
bool is_white_space(char32_t code_point);

}  // namespace tetrad::text
