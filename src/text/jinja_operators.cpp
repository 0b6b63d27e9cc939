// Python's operators over template values (jinja_value.h).
#include <algorithm>
#include <cmath>
#include <limits>

#include "text/jinja_text.h"

namespace tetrad::jinja {

namespace {

double as_double(const Value& v) { return v.kind == Kind::kFloat ? v.real : static_cast<double>(v.integer); }

// Orders an integer against a float exactly: a long double holds every integer of 64 bits.
int compare_numbers(const Value& a, const Value& b) {
  if (a.is_integer() && b.is_integer()) return a.integer < b.integer ? -1 : a.integer > b.integer ? 1 : 0;
  const auto wide = [](const Value& v) {
    return v.kind == Kind::kFloat ? static_cast<long double>(v.real) : static_cast<long double>(v.integer);
  };
  const long double x = wide(a), y = wide(b);
  return x < y ? -1 : x > y ? 1 : 0;
}

bool is_nan(const Value& v) { return v.kind == Kind::kFloat && std::isnan(v.real); }

[[noreturn]] void refuse_operands(std::string_view op, const Value& a, const Value& b) {
  if (a.is_undefined()) refuse_undefined(a);
  if (b.is_undefined()) refuse_undefined(b);
  refuse("{} does not work on {} and {}", op, type_name(a), type_name(b));
}

void need_numbers(std::string_view op, const Value& a, const Value& b) {
  if (!a.is_number() || !b.is_number()) refuse_operands(op, a, b);
}

Value checked_float(double d, bool operands_finite) {
  if (operands_finite && std::isinf(d)) refuse("floating point overflow");
  return Value::floating(d);
}

}  // namespace

bool equal(Heap& heap, const Value& a, const Value& b) {
  heap.step();
  if (a.is_number() && b.is_number()) return !is_nan(a) && !is_nan(b) && compare_numbers(a, b) == 0;
  if (a.kind != b.kind) return false;
  switch (a.kind) {
    case Kind::kUndefined:
    case Kind::kNone: return true;
    case Kind::kString:
      if (a.text().size() != b.text().size()) return false;
      heap.step_bytes(a.text().size());
      return a.text() == b.text();
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kRange: {
      const auto &x = a.sequence().items, &y = b.sequence().items;
      return x.size() == y.size() &&
             std::equal(x.begin(), x.end(), y.begin(), [&](const Value& i, const Value& j) { return equal(heap, i, j); });
    }
    case Kind::kDict: {
      const Dict &x = a.dict(), &y = b.dict();
      if (x.entries.size() != y.entries.size()) return false;
      return std::all_of(x.entries.begin(), x.entries.end(), [&](const auto& entry) {
        const Value* other = find(heap, y, entry.first);
        return other != nullptr && equal(heap, entry.second, *other);
      });
    }
    default: return a.object == b.object;
  }
}

int compare(Heap& heap, const Value& a, const Value& b) {
  heap.step();
  if (a.is_number() && b.is_number()) return compare_numbers(a, b);
  if (a.is_string() && b.is_string()) {
    heap.step_bytes(std::min(a.text().size(), b.text().size()));
    return a.text().compare(b.text());
  }
  if (a.kind == b.kind && (a.is(Kind::kList) || a.is(Kind::kTuple))) {
    const auto &x = a.sequence().items, &y = b.sequence().items;
    for (std::size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
      if (!equal(heap, x[i], y[i])) return compare(heap, x[i], y[i]);
    }
    return x.size() < y.size() ? -1 : x.size() > y.size() ? 1 : 0;
  }
  refuse_operands("ordering", a, b);
}

bool unordered(const Value& a, const Value& b) { return is_nan(a) || is_nan(b); }

bool contains(Heap& heap, const Value& container, const Value& item) {
  if (container.is_string()) {
    if (item.is_undefined()) refuse_undefined(item);
    if (!item.is_string()) refuse("'in <string>' needs a string on its left, not {}", type_name(item));
    heap.step_bytes(container.text().size());
    return find_bytes(container.text(), item.text()) != std::string_view::npos;
  }
  if (container.is_dict()) {
    if (item.is(Kind::kList) || item.is_dict()) refuse("a {} cannot be a key", type_name(item));
    return find(heap, container.dict(), item) != nullptr;
  }
  if (container.is_undefined()) return false;
  if (!container.is_sequence()) refuse("a {} cannot be searched with 'in'", type_name(container));
  const Sequence& sequence = container.sequence();
  std::size_t i = container.kind == Kind::kIterator ? sequence.next : 0;
  bool found = false;
  while (i < sequence.items.size() && !found) found = equal(heap, sequence.items[i++], item);
  if (container.kind == Kind::kIterator) sequence.next = i;
  return found;
}

Value add(Heap& heap, const Value& a, const Value& b) {
  if (a.is_string() && b.is_string()) {
    heap.check_string(a.text().size() + b.text().size());
    return heap.string(a.text() + b.text());
  }
  if (a.kind == b.kind && (a.is(Kind::kList) || a.is(Kind::kTuple))) {
    heap.check_list(a.sequence().items.size() + b.sequence().items.size());
    std::vector<Value> items = a.sequence().items;
    items.insert(items.end(), b.sequence().items.begin(), b.sequence().items.end());
    return heap.list(std::move(items), a.kind);
  }
  need_numbers("+", a, b);
  if (a.is_integer() && b.is_integer()) return Value::integral(a.integer + b.integer);
  return Value::floating(as_double(a) + as_double(b));
}

Value subtract(const Value& a, const Value& b) {
  need_numbers("-", a, b);
  if (a.is_integer() && b.is_integer()) return Value::integral(a.integer - b.integer);
  return Value::floating(as_double(a) - as_double(b));
}

Value multiply(Heap& heap, const Value& a, const Value& b) {
  const bool repeats = b.is_integer() && (a.is_string() || a.is(Kind::kList) || a.is(Kind::kTuple));
  if (!repeats && a.is_integer() && (b.is_string() || b.is(Kind::kList) || b.is(Kind::kTuple))) return multiply(heap, b, a);
  if (repeats) {
    const Int times = std::max<Int>(b.integer, 0);
    if (a.is_string()) {
      const Int bytes = times * static_cast<Int>(a.text().size());
      heap.check_string(static_cast<std::size_t>(std::min<Int>(bytes, std::numeric_limits<std::int64_t>::max())));
      const auto wanted = static_cast<std::size_t>(bytes);
      std::string text = wanted > 0 ? a.text() : std::string();
      text.reserve(wanted);
      while (text.size() < wanted) text.append(text, 0, std::min(text.size(), wanted - text.size()));
      return heap.string(std::move(text));
    }
    const auto& unit = a.sequence().items;
    const Int total = times * static_cast<Int>(unit.size());
    heap.check_list(static_cast<std::size_t>(std::min<Int>(total, std::numeric_limits<std::int64_t>::max())));
    std::vector<Value> items;
    items.reserve(static_cast<std::size_t>(total));
    for (Int i = 0; i < times && !unit.empty(); ++i) items.insert(items.end(), unit.begin(), unit.end());
    return heap.list(std::move(items), a.kind);
  }
  need_numbers("*", a, b);
  if (a.is_integer() && b.is_integer()) {
    Int product = 0;
    if (__builtin_mul_overflow(a.integer, b.integer, &product)) refuse("integer overflow: a result lies outside -2^63 .. 2^64-1");
    return Value::integral(product);
  }
  return Value::floating(as_double(a) * as_double(b));
}

Value true_divide(const Value& a, const Value& b) {
  need_numbers("/", a, b);
  if (as_double(b) == 0.0) refuse("division by zero");
  if (a.is_integer() && b.is_integer()) {
    return Value::floating(static_cast<double>(static_cast<long double>(a.integer) / static_cast<long double>(b.integer)));
  }
  return Value::floating(as_double(a) / as_double(b));
}

namespace {

// Remainder with the sign of the divisor.
double float_modulo(double a, double b) {
  double r = std::fmod(a, b);
  if (r != 0.0) {
    if ((b < 0) != (r < 0)) r += b;
  } else {
    r = std::copysign(0.0, b);
  }
  return r;
}

}  // namespace

Value floor_divide(const Value& a, const Value& b) {
  need_numbers("//", a, b);
  if (as_double(b) == 0.0) refuse("division by zero");
  if (a.is_integer() && b.is_integer()) {
    const Int quotient = a.integer / b.integer;
    const bool rounds_up = a.integer % b.integer != 0 && (a.integer < 0) != (b.integer < 0);
    return Value::integral(rounds_up ? quotient - 1 : quotient);
  }
  const double x = as_double(a), y = as_double(b);
  double r = std::fmod(x, y);
  double quotient = (x - r) / y;
  if (r != 0.0 && (y < 0) != (r < 0)) quotient -= 1.0;
  if (quotient == 0.0) return Value::floating(std::copysign(0.0, x / y));
  double whole = std::floor(quotient);
  if (quotient - whole > 0.5) whole += 1.0;
  return Value::floating(whole);
}

Value modulo(const Value& a, const Value& b) {
  if (a.is_string()) refuse("formatting a string with % is not supported");
  need_numbers("%", a, b);
  if (as_double(b) == 0.0) refuse("division by zero");
  if (a.is_integer() && b.is_integer()) {
    const Int r = a.integer % b.integer;
    return Value::integral(r != 0 && (r < 0) != (b.integer < 0) ? r + b.integer : r);
  }
  return Value::floating(float_modulo(as_double(a), as_double(b)));
}

Value power(const Value& a, const Value& b) {
  need_numbers("**", a, b);
  if (a.is_integer() && b.is_integer() && b.integer >= 0) {
    Int base = a.integer, exponent = b.integer, result = 1;
    if (base == 0 || base == 1) return Value::integral(exponent == 0 ? Int(1) : base);
    if (base == -1) return Value::integral(exponent % 2 == 0 ? 1 : -1);
    if (exponent > 64) refuse("integer overflow: a result lies outside -2^63 .. 2^64-1");
    for (Int i = 0; i < exponent; ++i) {
      if (__builtin_mul_overflow(result, base, &result)) refuse("integer overflow: a result lies outside -2^63 .. 2^64-1");
    }
    return Value::integral(result);
  }
  const double x = as_double(a), y = as_double(b);
  if (x == 0.0 && y < 0.0) refuse("0.0 cannot be raised to a negative power");
  if (x < 0.0 && std::isfinite(x) && std::isfinite(y) && y != std::floor(y)) refuse("a negative number has no real power of that kind");
  return checked_float(std::pow(x, y), std::isfinite(x) && std::isfinite(y));
}

Value negate(const Value& a) {
  if (a.is_integer()) return Value::integral(-a.integer);
  if (a.is(Kind::kFloat)) return Value::floating(-a.real);
  if (a.is_undefined()) refuse_undefined(a);
  refuse("- does not work on {}", type_name(a));
}

Value positive(const Value& a) {
  if (a.is_integer()) return Value::integral(a.integer);
  if (a.is(Kind::kFloat)) return a;
  if (a.is_undefined()) refuse_undefined(a);
  refuse("+ does not work on {}", type_name(a));
}

}  // namespace tetrad::jinja
