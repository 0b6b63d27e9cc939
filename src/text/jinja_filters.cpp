#include "text/jinja_filters.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "text/jinja_text.h"

namespace tetrad::jinja {

namespace {

Value filter_default(Heap& heap, const Value& input, const Args& args) {
  const auto a = args.bind("default", {"default_value", "boolean"});
  const bool replace_false = a[1] != nullptr && truthy(*a[1]);
  if (!input.is_undefined() && !(replace_false && !truthy(input))) return input;
  return a[0] != nullptr ? *a[0] : heap.string("");
}

Value filter_trim(Heap& heap, const Value& input, const Args& args) {
  const auto a = args.bind("trim", {"chars"});
  const std::string text = to_text(heap, input);
  heap.step_bytes(text.size());
  if (a[0] == nullptr || a[0]->is_none()) return heap.string(std::string(strip(text, Side::kBoth)));
  if (!a[0]->is_string()) refuse("trim needs a string of characters, got {}", type_name(*a[0]));
  return heap.string(std::string(strip(text, a[0]->text(), Side::kBoth)));
}

Value filter_string(Heap& heap, const Value& input, const Args& args) {
  args.bind("string", {});
  return input.is_string() ? input : heap.string(to_text(heap, input));
}

Value filter_length(Heap& heap, const Value& input, const Args& args) {
  args.bind("length", {});
  return length_of(heap, input);
}

template <std::string (*kMap)(std::string_view)>
Value filter_text(Heap& heap, const Value& input, const Args& args) {
  args.bind("a filter of text", {});
  const std::string text = to_text(heap, input);
  heap.step_bytes(text.size() * 8);
  return heap.string(kMap(text));
}

// The filter's own idea of words: they begin after a hyphen, white space or an opening bracket.
std::string title_words(std::string_view text) {
  std::string out;
  std::size_t start = 0;
  const auto word = [&](std::size_t end) {
    if (end == start) return;
    std::size_t rest = start;
    next_code_point(text, rest);
    out += upper(text.substr(start, rest - start)) + lower(text.substr(rest, end - rest));
  };
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t at = i;
    const char32_t c = next_code_point(text, i);
    if (!is_space(c) && (c >= 0x80 || std::string_view("-({[<").find(static_cast<char>(c)) == std::string_view::npos)) continue;
    word(at);
    out.append(text.substr(at, i - at));
    start = i;
  }
  word(text.size());
  return out;
}

Value filter_replace(Heap& heap, const Value& input, const Args& args) {
  const auto a = args.bind("replace", {"old", "new", "count"}, 2);
  Int count = -1;
  if (a[2] != nullptr && !a[2]->is_none()) {
    if (!a[2]->is_integer()) refuse("replace needs an integer count, got {}", type_name(*a[2]));
    count = std::clamp<Int>(a[2]->integer, -1, 1 << 30);
  }
  const std::string text = to_text(heap, input);
  heap.step_bytes(text.size());
  return heap.string(replace(heap, text, to_text(heap, *a[0]), to_text(heap, *a[1]), static_cast<std::int64_t>(count)));
}

Value filter_safe(Heap& heap, const Value& input, const Args& args) { return filter_string(heap, input, args); }

constexpr Int kMaxIndent = 1000;

Value filter_indent(Heap& heap, const Value& input, const Args& args) {
  const auto a = args.bind("indent", {"width", "first", "blank"});
  std::string indent = "    ";
  if (a[0] != nullptr) {
    if (a[0]->is_string())
      indent = a[0]->text();
    else if (a[0]->is_integer() && a[0]->integer <= kMaxIndent)
      indent.assign(static_cast<std::size_t>(std::max<Int>(a[0]->integer, 0)), ' ');
    else
      refuse("indent needs a string or an integer of at most {}", static_cast<int>(kMaxIndent));
  }
  const bool first = a[1] != nullptr && truthy(*a[1]), blank = a[2] != nullptr && truthy(*a[2]);
  if (!input.is_string()) refuse("indent needs a string, got {}", type_name(input));
  const std::string text = input.text() + "\n";
  const auto lines = split_lines(text, false);
  std::string out = first ? indent : "";
  for (std::size_t i = 0; i < lines.size(); ++i) {
    heap.check_string(out.size() + indent.size() + lines[i].size() + 1);
    if (i > 0) out += "\n";
    if (i > 0 && (blank || !lines[i].empty())) out += indent;
    out += lines[i];
  }
  return heap.string(std::move(out));
}

// Whole part of a float, as int() takes it.
Value truncated(double d) {
  if (!std::isfinite(d) || std::fabs(d) >= 18446744073709551616.0) refuse("integer overflow: a result lies outside -2^63 .. 2^64-1");
  return Value::integral(static_cast<Int>(d));
}

Value filter_int(Heap& heap, const Value& input, const Args& args) {
  const auto a = args.bind("int", {"default", "base"});
  const Value fallback = a[0] != nullptr ? *a[0] : Value::integral(0);
  if (input.is_undefined()) refuse_undefined(input);
  if (input.is_integer()) return Value::integral(input.integer);
  if (input.is(Kind::kFloat)) return std::isfinite(input.real) ? truncated(input.real) : fallback;
  if (!input.is_string()) return fallback;
  heap.step_bytes(input.text().size());
  Int base = 10;
  if (a[1] != nullptr) {
    if (!a[1]->is_integer() || (a[1]->integer != 0 && (a[1]->integer < 2 || a[1]->integer > 36)))
      refuse("int needs a base of 0 or 2 to 36");
    base = a[1]->integer;
  }
  Int parsed = 0;
  if (parse_int(input.text(), static_cast<int>(base), parsed)) return Value::integral(parsed);
  double real = 0.0;
  return parse_float(input.text(), real) && std::isfinite(real) ? truncated(real) : fallback;
}

Value filter_float(Heap& heap, const Value& input, const Args& args) {
  const auto a = args.bind("float", {"default"});
  if (input.is_undefined()) refuse_undefined(input);
  if (input.is(Kind::kFloat)) return input;
  if (input.is_integer()) return Value::floating(static_cast<double>(input.integer));
  double real = 0.0;
  if (input.is_string()) {
    heap.step_bytes(input.text().size());
    if (parse_float(input.text(), real)) return Value::floating(real);
  }
  return a[0] != nullptr ? *a[0] : Value::floating(0.0);
}

Value filter_abs(Heap&, const Value& input, const Args& args) {
  args.bind("abs", {});
  if (input.is(Kind::kFloat)) return Value::floating(std::fabs(input.real));
  return input.is_integer() && input.integer >= 0 ? Value::integral(input.integer) : negate(input);
}

Value filter_round(Heap&, const Value& input, const Args& args) {
  const auto a = args.bind("round", {"precision", "method"});
  if (!input.is_number()) refuse("round needs a number, got {}", type_name(input));
  if (a[0] != nullptr && (!a[0]->is_integer() || a[0]->integer < 0 || a[0]->integer > 15)) refuse("round needs a precision of 0 to 15");
  const int precision = a[0] != nullptr ? static_cast<int>(a[0]->integer) : 0;
  const std::string method = a[1] != nullptr && a[1]->is_string() ? a[1]->text() : "common";
  if (method != "common" && method != "ceil" && method != "floor") refuse("round knows the methods common, ceil and floor");
  if (method == "common") {
    if (input.is_integer()) return Value::integral(input.integer);
    double rounded = 0.0;
    if (!std::isfinite(input.real) || !parse_float(fmt::format("{:.{}f}", input.real, precision), rounded)) return input;
    return Value::floating(rounded);
  }
  const double scale = std::pow(10.0, precision);
  const double scaled = (input.is_integer() ? static_cast<double>(input.integer) : input.real) * scale;
  return Value::floating((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale);
}

struct FilterEntry {
  std::string_view name;
  FilterFunction filter;
};

constexpr std::array kFilters = {
    FilterEntry{"abs", filter_abs},
    FilterEntry{"capitalize", filter_text<capitalize>},
    FilterEntry{"count", filter_length},
    FilterEntry{"d", filter_default},
    FilterEntry{"default", filter_default},
    FilterEntry{"dictsort", filter_dictsort},
    FilterEntry{"first", filter_first},
    FilterEntry{"float", filter_float},
    FilterEntry{"indent", filter_indent},
    FilterEntry{"int", filter_int},
    FilterEntry{"items", filter_items},
    FilterEntry{"join", filter_join},
    FilterEntry{"last", filter_last},
    FilterEntry{"length", filter_length},
    FilterEntry{"list", filter_list},
    FilterEntry{"lower", filter_text<lower>},
    FilterEntry{"map", filter_map},
    FilterEntry{"max", filter_max},
    FilterEntry{"min", filter_min},
    FilterEntry{"reject", filter_reject},
    FilterEntry{"rejectattr", filter_rejectattr},
    FilterEntry{"replace", filter_replace},
    FilterEntry{"reverse", filter_reverse},
    FilterEntry{"round", filter_round},
    FilterEntry{"safe", filter_safe},
    FilterEntry{"select", filter_select},
    FilterEntry{"selectattr", filter_selectattr},
    FilterEntry{"sort", filter_sort},
    FilterEntry{"string", filter_string},
    FilterEntry{"sum", filter_sum},
    FilterEntry{"title", filter_text<title_words>},
    FilterEntry{"tojson", filter_tojson},
    FilterEntry{"trim", filter_trim},
    FilterEntry{"unique", filter_unique},
    FilterEntry{"upper", filter_text<upper>},
};

}  // namespace

FilterFunction find_filter(std::string_view name) {
  const auto at = std::find_if(kFilters.begin(), kFilters.end(), [&](const FilterEntry& entry) { return entry.name == name; });
  return at == kFilters.end() ? nullptr : at->filter;
}

}  // namespace tetrad::jinja
