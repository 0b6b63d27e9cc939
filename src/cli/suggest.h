#pragma once
// The known name nearest to a mistyped one.
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace tetrad::cli {

// Insertions, deletions, replacements and swaps of neighbours that turn one into the other. '_' equals '-'. Case is ignored.
std::size_t edit_distance(std::string_view a, std::string_view b);

// Of equals the first; empty if nothing known is near enough to be meant.
std::string nearest_name(std::string_view given, const std::vector<std::string>& known);

}  // namespace tetrad::cli
