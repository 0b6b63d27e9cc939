#include "engine/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/error.h"

namespace tetrad {

Distance distance(std::span<const float> got, std::span<const float> expected, std::int64_t row) {
  TETRAD_CHECK(got.size() == expected.size() && row > 0 && got.size() % static_cast<std::size_t>(row) == 0, "{} against {} in rows of {}",
               got.size(), expected.size(), row);
  Distance d;
  d.count = static_cast<std::int64_t>(got.size());
  if (got.empty()) return d;
  std::vector<double> differences(got.size());
  double row_error = 0, row_norm = 0, error = 0, norm = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const bool both_nan = std::isnan(got[i]) && std::isnan(expected[i]);
    double difference = got[i] == expected[i] || both_nan ? 0.0 : std::fabs(static_cast<double>(got[i]) - expected[i]);
    if (std::isnan(difference)) difference = std::numeric_limits<double>::infinity();
    differences[i] = difference;
    d.unequal += difference != 0.0;
    d.mean_abs += difference;
    if (d.worst < 0 || difference > d.max_abs) d.max_abs = difference, d.worst = static_cast<std::int64_t>(i);
    row_error += difference * difference;
    row_norm += static_cast<double>(expected[i]) * expected[i];
    if ((i + 1) % static_cast<std::size_t>(row) == 0) {
      if (row_error > 0) d.worst_row_l2 = std::max(d.worst_row_l2, std::sqrt(row_error / std::max(row_norm, 1e-30)));
      error += row_error, norm += row_norm;
      row_error = row_norm = 0;
    }
  }
  if (error > 0) d.l2 = std::sqrt(error / std::max(norm, 1e-30));
  d.mean_abs /= static_cast<double>(got.size());
  const auto rank = static_cast<std::ptrdiff_t>(0.99 * static_cast<double>(differences.size() - 1));
  std::nth_element(differences.begin(), differences.begin() + rank, differences.end());
  d.p99_abs = differences[static_cast<std::size_t>(rank)];
  return d;
}

double pick_regret(std::span<const float> got, std::span<const float> expected, std::int64_t row) {
  TETRAD_CHECK(got.size() == expected.size() && row > 0, "{} against {}", got.size(), expected.size());
  double worst = 0;
  for (std::size_t first = 0; first < got.size(); first += static_cast<std::size_t>(row)) {
    const auto mine = got.subspan(first, static_cast<std::size_t>(row));
    const auto reference = expected.subspan(first, static_cast<std::size_t>(row));
    const auto pick = std::max_element(mine.begin(), mine.end()) - mine.begin();
    const float best = *std::max_element(reference.begin(), reference.end());
    worst = std::max(worst, static_cast<double>(best) - reference[static_cast<std::size_t>(pick)]);
  }
  return worst;
}

std::string coordinate_text(std::int64_t flat, std::int64_t row) {
  return flat < 0 ? std::string("-") : fmt::format("[{}, {}]", flat / row, flat % row);
}

}  // namespace tetrad
