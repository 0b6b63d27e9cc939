#pragma once
// Reading JSON that comes from outside: nesting is bounded before any tree is built, and large objects cost linear time.
#include <string_view>

#include <nlohmann/json.hpp>

#include "base/error.h"

namespace tetrad {

enum class EqualKeys {
  kLastCounts,  // at the place of the first
  kRefused,
};

// Throws InputError "WHERE: ..." for a syntax error, nesting deeper than max_depth, an integer outside -2^63 .. 2^64-1, or text that is not
// UTF-8. Key order is kept.
nlohmann::ordered_json parse_json_bounded(std::string_view text, std::string_view where, int max_depth = 64,
                                          EqualKeys equal_keys = EqualKeys::kLastCounts);

}  // namespace tetrad
