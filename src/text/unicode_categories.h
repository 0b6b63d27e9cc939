#pragma once
// General categories for the split expression.
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace tetrad::text {

// The items of a PCRE2 character class that match general category `name` ("L", "Lu", "N", ...), or nothing when the name is no
// supported category. The category's members of Unicode 15 and 16 are spelled out, because the reference's expression library knows them
// and PCRE2 10.42 stops at Unicode 14: without them CJK extensions H and I would split like punctuation.
std::optional<std::string> category_class_items(std::string_view name);

}  // namespace tetrad::text
