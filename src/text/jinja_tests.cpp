// The tests of `x is NAME` (jinja_ast.h, find_test).
#include <algorithm>
#include <array>

#include "text/jinja_ast.h"
#include "text/jinja_text.h"

namespace tetrad::jinja {

namespace {

void no_arguments(const Args& args) { args.bind("a test", {}); }

const Value& one_argument(const Args& args) { return *args.bind("a test", {"other"}, 1)[0]; }

bool of_kind(const Value& v, std::initializer_list<Kind> kinds) { return std::find(kinds.begin(), kinds.end(), v.kind) != kinds.end(); }

bool divides(const Value& input, Int divisor) { return !truthy(modulo(input, Value::integral(divisor))); }

bool leaves_one(const Value& input) {
  const Value rest = modulo(input, Value::integral(2));
  return rest.is(Kind::kFloat) ? rest.real == 1.0 : rest.integer == 1;
}

bool same(Heap& heap, const Value& a, const Value& b) {
  if (a.kind != b.kind) return false;
  if (a.is_none() || a.is_number() || a.is_string()) return equal(heap, a, b);
  return a.object == b.object;
}

bool ordered(Heap& heap, const Value& a, const Value& b, bool (*accept)(int)) {
  const int order = compare(heap, a, b);
  return !unordered(a, b) && accept(order);
}

bool is_iterable(const Value& v) { return v.is_sequence() || of_kind(v, {Kind::kUndefined, Kind::kString, Kind::kDict, Kind::kLoop}); }

struct TestEntry {
  std::string_view name;
  TestFunction test;
};

#define TETRAD_PLAIN_TEST(name, condition)                      \
  TestEntry {                                                   \
    name, [](Heap&, const Value& v, const Args& args) -> bool { \
      no_arguments(args);                                       \
      return condition;                                         \
    }                                                           \
  }
#define TETRAD_BINARY_TEST(name, condition)                          \
  TestEntry {                                                        \
    name, [](Heap& heap, const Value& v, const Args& args) -> bool { \
      const Value& other = one_argument(args);                       \
      return condition;                                              \
    }                                                                \
  }

constexpr std::array kTests = {
    TETRAD_PLAIN_TEST("defined", !v.is_undefined()),
    TETRAD_PLAIN_TEST("undefined", v.is_undefined()),
    TETRAD_PLAIN_TEST("none", v.is_none()),
    TETRAD_PLAIN_TEST("boolean", v.is(Kind::kBool)),
    TETRAD_PLAIN_TEST("true", v.is(Kind::kBool) && v.integer == 1),
    TETRAD_PLAIN_TEST("false", v.is(Kind::kBool) && v.integer == 0),
    TETRAD_PLAIN_TEST("integer", v.is(Kind::kInt)),
    TETRAD_PLAIN_TEST("float", v.is(Kind::kFloat)),
    TETRAD_PLAIN_TEST("number", v.is_number()),
    TETRAD_PLAIN_TEST("string", v.is_string()),
    TETRAD_PLAIN_TEST("mapping", v.is_dict()),
    TETRAD_PLAIN_TEST("iterable", is_iterable(v)),
    TETRAD_PLAIN_TEST("sequence", of_kind(v, {Kind::kUndefined, Kind::kString, Kind::kList, Kind::kTuple, Kind::kRange, Kind::kDict})),
    TETRAD_PLAIN_TEST("callable", of_kind(v, {Kind::kUndefined, Kind::kMacro, Kind::kMethod, Kind::kFunction})),
    TETRAD_PLAIN_TEST("odd", leaves_one(v)),
    TETRAD_PLAIN_TEST("even", divides(v, 2)),
    TestEntry{"lower",
              [](Heap& heap, const Value& v, const Args& args) {
                no_arguments(args);
                return all_of_class(to_text(heap, v), "islower");
              }},
    TestEntry{"upper",
              [](Heap& heap, const Value& v, const Args& args) {
                no_arguments(args);
                return all_of_class(to_text(heap, v), "isupper");
              }},
    TestEntry{"divisibleby",
              [](Heap&, const Value& v, const Args& args) { return !truthy(modulo(v, *args.bind("divisibleby", {"num"}, 1)[0])); }},
    TETRAD_BINARY_TEST("sameas", same(heap, v, other)),
    TETRAD_BINARY_TEST("in", contains(heap, other, v)),
    TETRAD_BINARY_TEST("eq", equal(heap, v, other)),
    TETRAD_BINARY_TEST("equalto", equal(heap, v, other)),
    TETRAD_BINARY_TEST("==", equal(heap, v, other)),
    TETRAD_BINARY_TEST("ne", !equal(heap, v, other)),
    TETRAD_BINARY_TEST("!=", !equal(heap, v, other)),
    TETRAD_BINARY_TEST("lt", ordered(heap, v, other, [](int c) { return c < 0; })),
    TETRAD_BINARY_TEST("lessthan", ordered(heap, v, other, [](int c) { return c < 0; })),
    TETRAD_BINARY_TEST("<", ordered(heap, v, other, [](int c) { return c < 0; })),
    TETRAD_BINARY_TEST("le", ordered(heap, v, other, [](int c) { return c <= 0; })),
    TETRAD_BINARY_TEST("<=", ordered(heap, v, other, [](int c) { return c <= 0; })),
    TETRAD_BINARY_TEST("gt", ordered(heap, v, other, [](int c) { return c > 0; })),
    TETRAD_BINARY_TEST("greaterthan", ordered(heap, v, other, [](int c) { return c > 0; })),
    TETRAD_BINARY_TEST(">", ordered(heap, v, other, [](int c) { return c > 0; })),
    TETRAD_BINARY_TEST("ge", ordered(heap, v, other, [](int c) { return c >= 0; })),
    TETRAD_BINARY_TEST(">=", ordered(heap, v, other, [](int c) { return c >= 0; })),
};

#undef TETRAD_PLAIN_TEST
#undef TETRAD_BINARY_TEST

}  // namespace

TestFunction find_test(std::string_view name) {
  const auto at = std::find_if(kTests.begin(), kTests.end(), [&](const TestEntry& entry) { return entry.name == name; });
  return at == kTests.end() ? nullptr : at->test;
}

}  // namespace tetrad::jinja
