#pragma once
// Numbers in decimal, bounded from below and above, as code of a grammar. All is exact: bounds are compared digit by digit.
#include <cstdint>
#include <optional>
#include <string>

#include "grammar/builder.h"

namespace tetrad::grammar {

// A number as a sign and its digits, without zeros at the outer ends: 0.05 is {false, "", "05"}.
struct Decimal {
  bool negative = false;
  std::string whole, fraction;

  // `text` is a JSON number. Throws GrammarError for an exponent beyond 400.
  static Decimal parse(std::string_view text);
  bool is_zero() const { return whole.empty() && fraction.empty(); }
};
inline constexpr std::size_t kMaxBoundDigits = 20;  // of a bound, before the point
int compare(const Decimal& a, const Decimal& b);    // below, equal to or above zero

struct Bound {
  Decimal value;
  bool exclusive = false;
};
struct NumberRange {
  std::optional<Bound> low, high;
  bool whole = false;                // integers: no point
  int fraction_digits = kMaxDigits;  // at most
};

// Numbers of the range, written without an exponent and, where no bound has more, with at most kMaxDigits digits before the point.
Pc emit_number(Builder& builder, const NumberRange& range, Pc next);

// Multiples of `divisor` (1 to kMaxDivisor), of any size: all, those from 0 on, or the positive ones.
inline constexpr int kMaxDivisor = 256;
enum class Signs { kAll, kFromZero, kPositive };
Pc emit_multiples(Builder& builder, int divisor, Signs signs, Pc next);

}  // namespace tetrad::grammar
