#pragma once
// Oracles with their tolerance: a value in exact (double) arithmetic together with a bound on how far a float32 computation that rounds
// some tensors to bf16 may lie from it. Every operation passes on the errors of its inputs and adds its own rounding, in whatever order
// sums are taken, so a formula written once gives both what is expected and how closely.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <string>
#include <vector>

namespace tetrad::test {

inline constexpr double kFloatHalfStep = 0x1p-24;  // of a float32 rounding, relative
inline constexpr double kBf16HalfStep = 0x1p-8;    // of a bf16 rounding, relative
inline constexpr double kFunctionError = 0x1p-21;  // exp and what is built on it: a few units in the last place

struct Bounded {
  double value = 0.0, error = 0.0;
  Bounded() = default;
  Bounded(double exact) : value(exact) {}  // NOLINT(google-explicit-constructor): a number is a value without error
  Bounded(double v, double e) : value(v), error(e) {}
  double reach() const { return std::abs(value) + error; }
};

inline Bounded rounded(double value, double error) { return {value, error + kFloatHalfStep * (std::abs(value) + error) + 0x1p-149}; }
inline Bounded operator+(Bounded a, Bounded b) { return rounded(a.value + b.value, a.error + b.error); }
inline Bounded operator-(Bounded a, Bounded b) { return rounded(a.value - b.value, a.error + b.error); }
inline Bounded operator*(Bounded a, Bounded b) {
  return rounded(a.value * b.value, std::abs(a.value) * b.error + std::abs(b.value) * a.error + a.error * b.error);
}
inline Bounded operator/(Bounded a, Bounded b) {
  const double q = a.value / b.value, least = std::abs(b.value) - b.error;
  return rounded(q, least > 0.0 ? (a.error + std::abs(q) * b.error) / least : std::numeric_limits<double>::infinity());
}

// The rounding to bf16 of a materialised tensor.
inline Bounded bf(Bounded a) { return {a.value, a.error + kBf16HalfStep * a.reach() + 0x1p-134}; }

inline Bounded bounded_exp(Bounded a) {
  const double e = std::exp(a.value);
  return {e, e * (std::expm1(a.error) + kFunctionError * std::exp(a.error))};
}
inline double exact_sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }
inline Bounded bounded_sigmoid(Bounded a) {  // slope at most 1/4
  const double s = exact_sigmoid(a.value);
  return {s, 0.25 * a.error + kFunctionError * s};
}
inline Bounded bounded_silu(Bounded a) {  // slope below 1.1
  const double y = a.value * exact_sigmoid(a.value);
  return {y, 1.1 * a.error + kFunctionError * (std::abs(y) + a.error)};
}
inline Bounded bounded_softplus(Bounded a) {  // slope at most 1
  const double y = std::max(a.value, 0.0) + std::log1p(std::exp(-std::abs(a.value)));
  return {y, a.error + kFunctionError * y + 0x1p-30};  // the linear branch above 20 is off by less than exp(-20)
}
inline Bounded bounded_sqrt(Bounded a) {  // the lower side of the interval is the steeper one
  const double y = std::sqrt(a.value);
  return rounded(y, y - std::sqrt(std::max(a.value - a.error, 0.0)));
}

// A sum in any order: n terms, each partial sum no larger than the sum of magnitudes.
inline Bounded bounded_sum(std::span<const Bounded> terms) {
  double value = 0.0, error = 0.0, reach = 0.0;
  for (const Bounded& t : terms) value += t.value, error += t.error, reach += t.reach();
  return {value, error + kFloatHalfStep * static_cast<double>(terms.size()) * reach};
}
inline Bounded bounded_dot(std::span<const Bounded> a, std::span<const Bounded> b) {
  std::vector<Bounded> products(a.size());
  for (std::size_t i = 0; i < a.size(); ++i) products[i] = a[i] * b[i];
  return bounded_sum(products);
}

using BoundedRow = std::vector<Bounded>;

inline BoundedRow exactly(std::span<const float> values) { return {values.begin(), values.end()}; }
inline std::span<const Bounded> part(const BoundedRow& row, int first, int count) {
  return std::span(row).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count));
}

// Every element of `got` within the bound of `expected`; and the bounds together small against the values (root mean squares, ratio
// `sharp` at most), so that a wrong formula cannot hide in them.
inline void expect_within(std::span<const float> got, std::span<const Bounded> expected, double sharp, const std::string& what) {
  ASSERT_EQ(got.size(), expected.size()) << what;
  double squares = 0.0, errors = 0.0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    squares += expected[i].value * expected[i].value;
    errors += expected[i].error * expected[i].error;
    ASSERT_LE(std::abs(got[i] - expected[i].value), expected[i].error)
        << what << ", element " << i << " of " << got.size() << ": got " << got[i] << ", expected " << expected[i].value;
  }
  EXPECT_LE(std::sqrt(errors), sharp * std::sqrt(squares)) << what << ": the bound is too wide to tell";
}

}  // namespace tetrad::test
