#include "grammar/json_schema.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "grammar/regex.h"
#include "text/unicode.h"

namespace tetrad::grammar {
namespace {

bool has(const Json& schema, const char* key) { return schema.find(key) != schema.end(); }

constexpr const char* kObjectKeywords[] = {"properties", "required", "additionalProperties", "minProperties", "maxProperties"};
constexpr const char* kArrayKeywords[] = {"items", "prefixItems", "additionalItems", "minItems", "maxItems", "uniqueItems"};
constexpr const char* kStringKeywords[] = {"minLength", "maxLength", "pattern"};
constexpr const char* kNumberKeywords[] = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"};

template <std::size_t N>
bool has_any(const Json& schema, const char* const (&keywords)[N]) {
  return std::any_of(std::begin(keywords), std::end(keywords), [&](const char* keyword) { return has(schema, keyword); });
}

// One that says no more than its type.
bool is_plain(const Json& schema) {
  return std::all_of(schema.items().begin(), schema.items().end(),
                     [](const auto& item) { return item.key() == "type" || is_annotation(item.key()); });
}

unsigned bits_of_name(const Json& name, const std::string& path) {
  static constexpr std::pair<std::string_view, unsigned> kNames[] = {
      {"null", kNullBit},     {"boolean", kBooleanBit}, {"integer", kIntegerBit}, {"number", kNumberBit | kIntegerBit},
      {"string", kStringBit}, {"array", kArrayBit},     {"object", kObjectBit},
  };
  if (name.is_string())
    for (const auto& [known, bits] : kNames)
      if (name.get_ref<const std::string&>() == known) return bits;
  fail<GrammarError>("{}.type: expected null, boolean, integer, number, string, array or object", path);
}

}  // namespace

unsigned type_bit(const Json& value) {
  switch (value.type()) {
    case Json::value_t::null: return kNullBit;
    case Json::value_t::boolean: return kBooleanBit;
    case Json::value_t::number_integer:
    case Json::value_t::number_unsigned: return kIntegerBit;
    case Json::value_t::number_float:
      return value.get<double>() == std::floor(value.get<double>()) ? unsigned{kIntegerBit} : unsigned{kNumberBit};
    case Json::value_t::string: return kStringBit;
    case Json::value_t::array: return kArrayBit;
    default: return kObjectBit;
  }
}

unsigned SchemaCompiler::types_of(const Json& schema, const std::string& path) {
  if (schema.is_boolean()) return schema.get<bool>() ? unsigned{kAllTypes} : 0u;
  const auto type = schema.find("type");
  if (type != schema.end()) {
    if (!type->is_array()) return bits_of_name(*type, path);
    if (type->empty()) fail<GrammarError>("{}.type: an empty list", path);
    unsigned types = 0;
    for (const Json& name : *type) types |= bits_of_name(name, path);
    return types;
  }
  if (has(schema, "enum") || has(schema, "const")) return kAllTypes;
  unsigned types = 0;
  if (has_any(schema, kObjectKeywords)) types |= kObjectBit;
  if (has_any(schema, kArrayKeywords)) types |= kArrayBit;
  if (has_any(schema, kStringKeywords) || has(schema, "format")) types |= kStringBit;
  if (has_any(schema, kNumberKeywords)) types |= kNumberBit | kIntegerBit;
  return types == 0 ? kAllTypes : types;
}

std::optional<std::vector<Json>> listed_values(const Json& schema, unsigned types, const std::string& path) {
  const auto list = schema.find("enum"), single = schema.find("const");
  if (list == schema.end() && single == schema.end()) return std::nullopt;
  if (list != schema.end() && (!list->is_array() || list->empty())) fail<GrammarError>("{}.enum: expected a list of values", path);
  if (list != schema.end() && list->size() > kMaxEnumValues)
    fail<GrammarError>("{}.enum: at most {} values, got {}", path, kMaxEnumValues, list->size());
  for (const auto& [key, value] : schema.items())
    if (key != "enum" && key != "const" && key != "type" && !is_annotation(key))
      fail<GrammarError>("{}: {} beside enum or const is not supported", path, key);
  std::vector<Json> values;
  for (const Json& value : list != schema.end() ? *list : Json::array({*single}))
    if ((type_bit(value) & types) != 0 && (single == schema.end() || value == *single)) values.push_back(value);
  if (values.empty()) fail<GrammarError>("{}: none of the values has the type", path);
  return values;
}

std::uint32_t count_of(const Json& schema, const char* keyword, std::uint32_t fallback, const std::string& path) {
  const auto found = schema.find(keyword);
  if (found == schema.end()) return fallback;
  if (!found->is_number() || found->get<double>() < 0 || found->get<double>() != std::floor(found->get<double>()))
    fail<GrammarError>("{}.{}: expected a whole number, at least 0", path, keyword);
  const double count = found->get<double>();
  if (count > kMaxRepetitions) {
    if (fallback == kUnbounded) return kUnbounded;  // an upper bound that no answer reaches
    fail<GrammarError>("{}.{}: at most {}", path, keyword, kMaxRepetitions);
  }
  return static_cast<std::uint32_t>(count);
}

Pc SchemaCompiler::value(const Json& schema, const std::string& path, Pc next) {
  try {
    const int rule = rule_of(schema, path);
    define_waiting();
    return builder_->call(rule, next);
  } catch (const GrammarError&) {
    waiting_.clear();
    throw;
  }
}

int SchemaCompiler::rule_of(const Json& schema, const std::string& path) {
  const Json& flat = document_.flat(schema, path);
  if (const auto known = rules_.find(&flat); known != rules_.end()) return known->second;
  if (flat == true || (flat.is_object() && is_plain(flat))) {
    const unsigned types = types_of(flat, path);
    if (types == kAllTypes) return builder_->any_value();
    if (types == kStringBit) return builder_->any_string();
    if (types == kObjectBit) return builder_->any_object();
    if (types == kArrayBit) return builder_->any_array();
    if (types == kIntegerBit) return builder_->any_integer();
    if (types == (kNumberBit | kIntegerBit)) return builder_->any_number();
  }
  const bool nests = flat.is_object() && (types_of(flat, path) & (kArrayBit | kObjectBit)) != 0;
  const int rule = builder_->add_rule(nests);
  rules_.emplace(&flat, rule);
  waiting_.push_back({rule, &flat, path});
  return rule;
}

void SchemaCompiler::define_waiting() {
  while (!waiting_.empty()) {
    const Waiting next = std::move(waiting_.back());
    waiting_.pop_back();
    document_.pay(1);
    builder_->define(next.rule, define_value(*next.schema, next.path));
  }
}

std::vector<const Json*> SchemaCompiler::alternatives(const Json& schema, const std::string& path) {
  std::vector<const Json*> ways;
  for (const char* keyword : {"anyOf", "oneOf"}) {
    const auto list = schema.is_object() ? schema.find(keyword) : schema.end();
    if (!schema.is_object() || list == schema.end()) continue;
    if (!list->is_array() || list->empty()) fail<GrammarError>("{}.{}: expected a list of schemas", path, keyword);
    if (list->size() > kMaxAlternatives)
      fail<GrammarError>("{}.{}: at most {} alternatives, got {}", path, keyword, kMaxAlternatives, list->size());
    Json rest = schema;
    rest.erase(keyword);
    const bool alone = is_plain(rest) && !has(rest, "type");
    const Json& beside = document_.keep(std::move(rest));
    for (std::size_t i = 0; i < list->size(); ++i) {
      const std::string way_path = fmt::format("{}.{}[{}]", path, keyword, i);
      const Json& way = alone ? document_.flat((*list)[i], way_path) : document_.both(beside, (*list)[i], way_path);
      if (way != false) ways.push_back(&way);
    }
    if (keyword == std::string_view("oneOf")) check_disjoint(ways, path);
    if (ways.empty()) fail<GrammarError>("{}.{}: none of the alternatives can hold", path, keyword);
    return ways;  // the other keyword, if it is there too, is in each of them
  }
  return ways;
}

Pc SchemaCompiler::define_value(const Json& schema, const std::string& path) {
  const Pc end = builder_->end();
  if (schema == false) return builder_->nowhere();
  if (schema == true) return builder_->call(builder_->any_value(), end);
  if (const std::vector<const Json*> ways = alternatives(schema, path); !ways.empty()) {
    std::vector<Pc> calls;
    for (const Json* way : ways) calls.push_back(builder_->call(rule_of(*way, path), end));
    return builder_->choice(calls);
  }
  const unsigned types = types_of(schema, path);
  if (has(schema, "enum") || has(schema, "const")) return literal_values(schema, path, end);
  if (has(schema, "format") && (types & kStringBit) == 0 && (types & (kNumberBit | kIntegerBit)) == 0)
    fail<GrammarError>("{}.format: only for strings and numbers", path);
  std::vector<Pc> ways;
  if ((types & kObjectBit) != 0) ways.push_back(object(schema, path, end));
  if ((types & kArrayBit) != 0) ways.push_back(array(schema, path, end));
  if ((types & kStringBit) != 0)
    ways.push_back(builder_->byte('"', string_content(schema, path, TextForm::kJson, builder_->byte('"', end))));
  if ((types & (kNumberBit | kIntegerBit)) != 0) ways.push_back(number(schema, path, (types & kNumberBit) == 0, end));
  if ((types & kBooleanBit) != 0) ways.push_back(builder_->split(builder_->literal("true", end), builder_->literal("false", end)));
  if ((types & kNullBit) != 0) ways.push_back(builder_->literal("null", end));
  return builder_->choice(ways);
}

Pc SchemaCompiler::literal_values(const Json& schema, const std::string& path, Pc next) {
  const std::vector<Json> values = *listed_values(schema, types_of(schema, path), path);
  std::vector<std::string> strings, others;
  std::vector<Pc> ways;
  for (const Json& value : values) {
    if (value.is_string())
      strings.push_back(value.get<std::string>());
    else if (value.is_primitive())
      others.push_back(value.dump());
    else
      ways.push_back(literal(value, next, 0));
  }
  if (!strings.empty())
    ways.push_back(builder_->byte('"', builder_->one_of(std::move(strings), TextForm::kJson, builder_->byte('"', next))));
  if (!others.empty()) ways.push_back(builder_->one_of(std::move(others), TextForm::kPlain, next));
  return builder_->choice(ways);
}

// As deep as values of a schema nest.
Pc SchemaCompiler::literal(const Json& value, Pc next, int depth) {
  document_.pay(1);
  if (value.is_string())
    return builder_->byte('"', builder_->text(value.get_ref<const std::string&>(), TextForm::kJson, builder_->byte('"', next)));
  if (value.is_primitive()) return builder_->literal(value.dump(), next);
  const bool object = value.is_object();
  Pc at = builder_->byte(object ? '}' : ']', next);
  if (!value.empty()) at = builder_->space_or_break(at);
  std::vector<std::pair<std::string, const Json*>> members;
  for (const auto& [key, member] : value.items()) members.emplace_back(key, &member);
  for (std::size_t i = members.size(); i > 0; --i) {
    at = literal(*members[i - 1].second, at, depth + 1);
    if (object)
      at = builder_->byte('"', builder_->text(members[i - 1].first, TextForm::kJson, builder_->literal("\":", builder_->space(at))));
    at = builder_->space_or_break(at);
    if (i > 1) at = builder_->byte(',', at);
  }
  return builder_->byte(object ? '{' : '[', at);
}

Pc SchemaCompiler::string_content(const Json& schema, const std::string& path, TextForm form, Pc next) {
  const bool plain = form == TextForm::kPlain;
  const Pc after = plain ? builder_->literal("\n</parameter>", next) : next;
  if (const auto values = schema.is_object() ? listed_values(schema, kStringBit, path) : std::nullopt) {
    std::vector<std::string> strings;
    for (const Json& value : *values) strings.push_back(value.get<std::string>());
    return builder_->one_of(std::move(strings), form, after);
  }
  const bool any = schema.is_boolean();
  const std::uint32_t min = any ? 0 : count_of(schema, "minLength", 0, path),
                      max = any ? kUnbounded : count_of(schema, "maxLength", kUnbounded, path);
  if (min > max) fail<GrammarError>("{}: minLength is above maxLength", path);
  const bool has_pattern = !any && has(schema, "pattern"), has_format = !any && has(schema, "format");
  if (has_pattern && has_format) fail<GrammarError>("{}: pattern together with format is not supported", path);
  if (!has_pattern && !has_format) {
    if (plain) return builder_->parameter_text(min, max, next);
    const Builder::OpenLoop loop = builder_->open_loop(min, max);
    if (min == 0 && max == kUnbounded) {
      builder_->patch(
          loop.head, {.op = Op::kSplit, .a = builder_->split(builder_->text_mark(false), builder_->json_character(loop.head)), .b = after});
      return loop.head;
    }
    return builder_->close_loop(loop, builder_->split(builder_->text_mark(true), builder_->json_character(loop.tick)), after);
  }
  const Json& given = schema[has_pattern ? "pattern" : "format"];
  const std::string where = path + (has_pattern ? ".pattern" : ".format");
  if (!given.is_string()) fail<GrammarError>("{}: expected a string", where);
  const std::string& text = given.get_ref<const std::string&>();
  const char* pattern = has_pattern ? text.c_str() : format_pattern(text);
  if (pattern == nullptr)
    fail<GrammarError>("{}: the format {} is not supported", where,
                       Json(text.substr(0, 100)).dump(-1, ' ', false, Json::error_handler_t::replace));
  try {
    const RegexUse use{.form = form, .search = has_pattern, .min_length = min, .max_length = max, .without_tags = plain};
    return Regex::parse(has_pattern ? std::string_view(text) : std::string_view(pattern)).emit(*builder_, use, after);
  } catch (const GrammarError& error) {
    fail<GrammarError>("{}: {}", where, error.what());
  }
}

Pc SchemaCompiler::number(const Json& schema, const std::string& path, bool whole, Pc next) {
  NumberRange range;
  range.whole = whole;
  const auto bound = [&](const char* keyword, bool low, bool exclusive) {
    const auto given = schema.find(keyword);
    if (given == schema.end()) return;
    if (!given->is_number()) fail<GrammarError>("{}.{}: expected a number", path, keyword);
    Bound found;
    try {
      found = {Decimal::parse(given->is_number_float() ? fmt::format("{}", given->get<double>()) : given->dump()), exclusive};
    } catch (const GrammarError& error) {
      fail<GrammarError>("{}.{}: {}", path, keyword, error.what());
    }
    auto& at = low ? range.low : range.high;
    const int order = at ? compare(found.value, at->value) : 0;
    if (!at || (low ? order > 0 : order < 0) || (order == 0 && exclusive)) at = found;
  };
  bound("minimum", true, false);
  bound("exclusiveMinimum", true, true);
  bound("maximum", false, false);
  bound("exclusiveMaximum", false, true);
  if (const auto format = schema.find("format"); format != schema.end()) {
    if (*format == "int32") {
      const Bound least{Decimal::parse("-2147483648")}, most{Decimal::parse("2147483647")};
      if (!range.low || compare(range.low->value, least.value) < 0) range.low = least;
      if (!range.high || compare(range.high->value, most.value) > 0) range.high = most;
    } else if (*format != "int64" && *format != "float" && *format != "double" && (types_of(schema, path) & kStringBit) == 0) {
      fail<GrammarError>("{}.format: of numbers only int32, int64, float and double are supported", path);
    }
  }
  if (!has(schema, "multipleOf")) {
    if (!range.low && !range.high) return builder_->call(whole ? builder_->any_integer() : builder_->any_number(), next);
    try {
      return emit_number(*builder_, range, next);
    } catch (const GrammarError& error) {
      fail<GrammarError>("{}: {}", path, error.what());
    }
  }
  const Json& divisor = schema["multipleOf"];
  if (!divisor.is_number() || divisor.get<double>() <= 0) fail<GrammarError>("{}.multipleOf: expected a number above 0", path);
  const Decimal step = Decimal::parse(divisor.is_number_float() ? fmt::format("{}", divisor.get<double>()) : divisor.dump());
  if (step.whole == "1" && step.fraction.empty()) {
    range.whole = true;
    return emit_number(*builder_, range, next);
  }
  // A power of ten below 1 bounds the digits behind the point.
  if (!whole && step.whole.empty() && step.fraction.size() < kMaxDigits &&
      step.fraction.find_first_not_of('0') == step.fraction.size() - 1 && step.fraction.back() == '1') {
    range.fraction_digits = static_cast<int>(step.fraction.size());
    return emit_number(*builder_, range, next);
  }
  const bool from_zero = range.low && range.low->value.is_zero();
  if (step.fraction.empty() && step.whole.size() <= 3 && std::stoi(step.whole) <= kMaxDivisor && !range.high && (!range.low || from_zero))
    return emit_multiples(*builder_, std::stoi(step.whole),
                          !range.low             ? Signs::kAll
                          : range.low->exclusive ? Signs::kPositive
                                                 : Signs::kFromZero,
                          next);
  fail<GrammarError>("{}.multipleOf: supported are whole numbers up to {} with no bound but 0, and 1, 0.1, 0.01 and so on", path,
                     kMaxDivisor);
}

}  // namespace tetrad::grammar
