#pragma once
// Python's string operations on UTF-8. Positions and lengths that templates see count code points.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja_value.h"

namespace tetrad::jinja {

bool valid_utf8(std::string_view text);
char32_t next_code_point(std::string_view text, std::size_t& position);  // text is valid UTF-8, position < size
void append_code_point(std::string& out, char32_t c);
std::size_t count_code_points(std::string_view text);
std::size_t byte_offset(std::string_view text, std::size_t code_points);  // of the code point with that index; size() past the end

bool is_space(char32_t c);  // str.isspace
enum class Side { kBoth, kLeft, kRight };
std::string_view strip(std::string_view text, Side side);  // white space
std::string_view strip(std::string_view text, std::string_view chars, Side side);
std::size_t find_bytes(std::string_view text, std::string_view needle, std::size_t from = 0);  // linear time; npos
std::size_t rfind_bytes(std::string_view text, std::string_view needle);                       // linear time; npos
std::vector<std::string_view> split(std::string_view text, std::string_view separator, std::int64_t max_split, bool from_right);
std::vector<std::string_view> split_space(std::string_view text, std::int64_t max_split, bool from_right);
std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends);
std::string replace(Heap& heap, std::string_view text, std::string_view from, std::string_view to, std::int64_t count);

std::string upper(std::string_view text);
std::string lower(std::string_view text);
std::string capitalize(std::string_view text);
std::string title(std::string_view text);                              // str.title
bool all_of_class(std::string_view text, std::string_view predicate);  // "isdigit", "isalpha", ...; false for an empty string

std::string int_text(Int value);
std::string float_text(double value);                         // repr(float)
std::string string_repr(std::string_view text);               // repr(str)
bool parse_int(std::string_view text, int base, Int& value);  // int(text, base); false where Python raises
bool parse_float(std::string_view text, double& value);       // float(text)

}  // namespace tetrad::jinja
