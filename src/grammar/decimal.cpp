#include "grammar/decimal.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

namespace tetrad::grammar {
namespace {

// Bounds of what a number may be without its sign; high absent: none.
struct MagnitudeRange {
  Bound low;
  std::optional<Bound> high;
};

class NumberEmitter {
 public:
  NumberEmitter(Builder& builder, const NumberRange& range, Pc next)
      : builder_(builder), fraction_digits_(range.whole ? 0 : range.fraction_digits), next_(next) {}

  Pc emit(const MagnitudeRange& range) {
    if (range.high) {
      const int order = compare(range.low.value, range.high->value);
      if (order > 0 || (order == 0 && (range.low.exclusive || range.high->exclusive))) return builder_.nowhere();
    }
    low_ = range.low;
    high_ = range.high;
    fractions_.clear();
    const std::string& low = low_.value.whole;
    // Whole parts strictly between those of the bounds take any fraction; those of the bounds themselves take some.
    const std::string top = high_ ? high_->value.whole : std::string(std::max<std::size_t>(kMaxDigits, low.size()), '9');
    if (high_ && low == top) return whole_part(low, fraction(0, true, true));
    std::vector<Pc> ways = {whole_part(low, fraction(0, true, false)), whole_parts_between(low, top, !high_)};
    if (high_) ways.push_back(whole_part(top, fraction(0, false, true)));
    return builder_.choice(ways);
  }

 private:
  Pc whole_part(const std::string& digits, Pc next) { return builder_.literal(digits.empty() ? "0" : digits, next); }

  // Above low and below high, or up to high.
  Pc whole_parts_between(const std::string& low, const std::string& high, bool up_to_high) {
    const Pc any = fraction(0, false, false);
    std::vector<Pc> ways;
    for (std::size_t length = std::max<std::size_t>(low.size(), 1); length <= high.size(); ++length) {
      std::map<std::tuple<std::size_t, bool, bool>, Pc> known;
      const bool at_low = length == low.size(), at_high = length == high.size();
      // Position by position from the last: whether all digits so far are those of a bound.
      for (std::size_t i = length + 1; i > 0; --i) {
        const std::size_t at = i - 1;
        for (const bool tight_low : {false, true}) {
          for (const bool tight_high : {false, true}) {
            if ((tight_low && !at_low) || (tight_high && !at_high)) continue;  // a bound of another length holds no digit back
            Pc& place = known[{at, tight_low, tight_high}];
            if (at == length) {
              place = tight_low || (tight_high && !up_to_high) ? builder_.nowhere() : any;
              continue;
            }
            std::vector<Pc> digits;
            for (char d = at == 0 ? '1' : '0'; d <= '9'; ++d) {
              if ((tight_low && d < low[at]) || (tight_high && d > high[at])) continue;
              const Pc after = known[{at + 1, tight_low && d == low[at], tight_high && d == high[at]}];
              if (after != builder_.nowhere()) digits.push_back(builder_.byte(d, after));
            }
            place = builder_.choice(digits);
          }
        }
      }
      ways.push_back(known[{0, at_low, at_high}]);
    }
    return builder_.choice(ways);
  }

  static bool zeros_from(const std::string& digits, std::size_t at) {
    return at >= digits.size() || digits.find_first_not_of('0', at) == std::string::npos;
  }

  // From `at` digits behind the point on (0: before the point); whether all before are those of a bound.
  Pc fraction(int at, bool tight_low, bool tight_high) {
    const auto key = std::tuple(at, tight_low, tight_high);
    if (const auto known = fractions_.find(key); known != fractions_.end()) return known->second;
    const auto from = static_cast<std::size_t>(at);
    const std::string none;
    const std::string& low = tight_low ? low_.value.fraction : none;
    const std::string& high = tight_high ? high_->value.fraction : none;
    const bool low_met = !tight_low || (zeros_from(low, from) && !low_.exclusive);
    const bool high_met = !tight_high || !high_->exclusive || !zeros_from(high, from);
    Pc here = low_met && high_met ? next_ : builder_.nowhere();
    if (at < fraction_digits_) {
      std::vector<Pc> digits;
      for (char d = '0'; d <= '9'; ++d) {
        const char low_digit = tight_low && from < low.size() ? low[from] : '0',
                   high_digit = tight_high && from < high.size() ? high[from] : '0';
        if ((tight_low && d < low_digit) || (tight_high && d > high_digit)) continue;
        const Pc after = fraction(at + 1, tight_low && d == low_digit, tight_high && d == high_digit);
        if (after != builder_.nowhere()) digits.push_back(builder_.byte(d, after));
      }
      const Pc more = builder_.choice(digits);
      if (more != builder_.nowhere()) here = builder_.split(at == 0 ? builder_.byte('.', more) : more, here);
    }
    fractions_[key] = here;
    return here;
  }

  Builder& builder_;
  int fraction_digits_;
  Pc next_;
  Bound low_;
  std::optional<Bound> high_;
  std::map<std::tuple<int, bool, bool>, Pc> fractions_;
};

// Of numbers from `low` to `high` those with the sign, without it.
std::optional<MagnitudeRange> magnitudes(const std::optional<Bound>& low, const std::optional<Bound>& high, bool negative) {
  const auto& near = negative ? high : low;  // the bound on the side of zero
  const auto& far = negative ? low : high;
  MagnitudeRange range;
  if (near && !near->value.is_zero() && near->value.negative == negative) range.low = *near;
  if (near && near->value.is_zero()) range.low = *near;
  if (near && near->value.is_zero() && negative) range.low.exclusive = true;  // zero has no sign here
  if (negative && !near) range.low.exclusive = true;
  if (negative && near && !near->value.is_zero() && !near->value.negative) range.low.exclusive = true;
  if (far) {
    if (!far->value.is_zero() && far->value.negative != negative) return std::nullopt;
    range.high = *far;
  }
  range.low.value.negative = false;
  if (range.high) range.high->value.negative = false;
  return range;
}

}  // namespace

Decimal Decimal::parse(std::string_view text) {
  Decimal number;
  if (text.starts_with('-')) {
    number.negative = true;
    text.remove_prefix(1);
  }
  const std::size_t e = text.find_first_of("eE");
  long exponent = 0;
  if (e != std::string_view::npos) {
    const std::string digits(text.substr(e + 1));
    exponent = digits.size() > 6 ? 1'000'000 : std::stol(digits);
    text = text.substr(0, e);
  }
  const std::size_t point = std::min(text.find('.'), text.size());
  number.whole = text.substr(0, point);
  number.fraction = text.substr(std::min(point + 1, text.size()));
  if (exponent > 400 || exponent < -400) fail<GrammarError>("the number {} has too many digits", text);
  for (; exponent > 0; --exponent) {
    number.whole += number.fraction.empty() ? '0' : number.fraction[0];
    if (!number.fraction.empty()) number.fraction.erase(0, 1);
  }
  for (; exponent < 0; ++exponent) {
    number.fraction.insert(number.fraction.begin(), number.whole.empty() ? '0' : number.whole.back());
    if (!number.whole.empty()) number.whole.pop_back();
  }
  number.whole.erase(0, std::min(number.whole.find_first_not_of('0'), number.whole.size()));
  while (number.fraction.ends_with('0')) number.fraction.pop_back();
  if (number.is_zero()) number.negative = false;
  return number;
}

int compare(const Decimal& a, const Decimal& b) {
  if (a.negative != b.negative) return a.negative ? -1 : 1;
  const int sign = a.negative ? -1 : 1;
  if (a.whole.size() != b.whole.size()) return a.whole.size() < b.whole.size() ? -sign : sign;
  if (a.whole != b.whole) return a.whole < b.whole ? -sign : sign;
  // Without zeros at the end the order of fractions is that of their text.
  return a.fraction == b.fraction ? 0 : a.fraction < b.fraction ? -sign : sign;
}

Pc emit_number(Builder& builder, const NumberRange& range, Pc next) {
  for (const auto& bound : {range.low, range.high})
    if (bound && (bound->value.whole.size() > kMaxBoundDigits || bound->value.fraction.size() >= kMaxDigits))
      fail<GrammarError>("a bound of more than {} digits before the point or {} behind it", kMaxBoundDigits, kMaxDigits - 1);
  NumberEmitter emitter(builder, range, next);
  std::vector<Pc> ways;
  if (const auto positive = magnitudes(range.low, range.high, false)) ways.push_back(emitter.emit(*positive));
  if (const auto negative = magnitudes(range.low, range.high, true)) {
    const Pc digits = emitter.emit(*negative);
    if (digits != builder.nowhere()) ways.push_back(builder.byte('-', digits));
  }
  return builder.choice(ways);
}

Pc emit_multiples(Builder& builder, int divisor, Signs signs, Pc next) {
  std::vector<Pc> by_rest;  // of the digits so far
  for (int rest = 0; rest < divisor; ++rest) by_rest.push_back(builder.reserve());
  const auto digits_from = [&](int rest, char first) {
    std::vector<Pc> ways;
    for (char d = first; d <= '9'; ++d)
      ways.push_back(builder.byte(d, by_rest[static_cast<std::size_t>((rest * 10 + (d - '0')) % divisor)]));
    return builder.choice(ways);
  };
  for (int rest = 0; rest < divisor; ++rest) {
    const Pc more = digits_from(rest, '0');
    builder.patch(by_rest[static_cast<std::size_t>(rest)], {.op = Op::kSplit, .a = more, .b = rest == 0 ? next : builder.nowhere()});
  }
  const Pc positive = digits_from(0, '1');
  std::vector<Pc> ways = {positive};
  if (signs != Signs::kPositive) ways.push_back(builder.byte('0', next));
  if (signs == Signs::kAll) ways.push_back(builder.byte('-', positive));
  return builder.choice(ways);
}

}  // namespace tetrad::grammar
