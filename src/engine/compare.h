#pragma once
// How far two tensors are apart, in the measures that the gates use.
#include <cstdint>
#include <span>
#include <string>

namespace tetrad {

struct Distance {
  double max_abs = 0;  // infinity if either side is not finite where the other is, or differs in NaN
  double mean_abs = 0;
  double p99_abs = 0;        // 99th percentile of the absolute differences
  double worst_row_l2 = 0;   // largest over rows of |a - b|_2 / |b|_2
  double l2 = 0;             // |a - b|_2 / |b|_2 of all elements
  std::int64_t worst = -1;   // flat index of max_abs
  std::int64_t unequal = 0;  // elements that differ at all
  std::int64_t count = 0;
};

// `expected` is the reference; rows of `row` elements.
Distance distance(std::span<const float> got, std::span<const float> expected, std::int64_t row);

// Largest over rows of expected[its own best] - expected[the best of got]: what the other pick costs by the reference's own judgement.
double pick_regret(std::span<const float> got, std::span<const float> expected, std::int64_t row);

std::string coordinate_text(std::int64_t flat, std::int64_t row);  // "[row 3, 17]"

}  // namespace tetrad
