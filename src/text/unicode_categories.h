#pragma once
// General categories for the split expression, up to Unicode 16 as the reference's expression library has them. PCRE2 10.42 stops at
// Unicode 14, and the 9,272 letters since then (CJK extensions H and I) would split like punctuation.
#include <optional>
#include <string>
#include <string_view>

namespace tetrad::text {

// The general category ("Lu", ...) in Unicode 16, by what utf8proc knows and the ranges added here.
std::string_view category_of(char32_t code_point);

// Letters, marks, digits, connectors, joiners and enclosed letters: what `\w` means to the reference's test for `single_word`.
bool is_word(char32_t code_point);

// The items of a PCRE2 character class that match general category `name` ("L", "Lu", "N", ...), or nothing when the name is no
// supported category. Latin-1 members are spelled out: PCRE2 finds those by bitmap, and a property by table.
std::optional<std::string> category_class_items(std::string_view name);

// `text` (valid UTF-8) with every code point assigned after Unicode 14 replaced by an older one of the same category and length in
// UTF-8, for matching only: offsets stay the same. Returns `text` itself when it has none, else `storage`.
std::string_view with_known_categories(std::string_view text, std::string& storage);

}  // namespace tetrad::text
