#pragma once
// From the answers that a load client got to the figures that are quoted.
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "cli/load_stream.h"

namespace tetrad::cli {

// The smallest value that at least `share` of the values do not exceed (nearest rank); 0 of none. share in (0, 1].
double percentile(std::vector<double> values, double share);

// What an answer must keep to to count as good: milliseconds, 0: anything.
struct LoadGoal {
  double ttft = 0, itl = 0, tpot = 0, e2e = 0;
  bool stated() const { return ttft > 0 || itl > 0 || tpot > 0 || e2e > 0; }
  bool met_by(const LoadAnswer& answer) const;
};
LoadGoal parse_goodput(const std::string& text);  // "ttft:500,itl:50"; throws InputError

// seconds: from the first request to the last answer. Times are in milliseconds. Requests that failed are counted by kind and are in no
// other figure.
nlohmann::ordered_json load_report(std::span<const LoadAnswer> answers, double seconds, const LoadGoal& goal);
std::string load_table(const nlohmann::ordered_json& report);

}  // namespace tetrad::cli
