#pragma once
// The byte-level alphabet of tokenizer.json: every byte is written as one printable code point.
#include <optional>
#include <string>
#include <string_view>

namespace tetrad::text {

// The code point that stands for `byte`: itself where it prints in Latin-1, else the next free one from U+0100 on.
char32_t byte_to_code_point(unsigned char byte);

// The bytes that a vocabulary entry stands for; nothing when it holds a character outside the alphabet.
std::optional<std::string> byte_level_decode(std::string_view token);

}  // namespace tetrad::text
