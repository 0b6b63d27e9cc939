// Laws of grammars over random schemas: what masks let through is valid by an independent validator, what is valid is let through, and it
// does not matter how a text is cut into tokens.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>

#include "grammar/json_schema.h"
#include "grammar/token_masks.h"

namespace tetrad::grammar::grammar_properties_test {
namespace {

constexpr int kIds = 4096;

const Tokenizer& tiny_tokenizer() {
  static const Tokenizer tokenizer = Tokenizer::load(std::string(TETRAD_MODELS) + "/tetrad-tiny/tokenizer.json");
  return tokenizer;
}

TokenMasks& tiny_masks() {
  static TokenMasks masks(std::make_shared<const Vocabulary>(tiny_tokenizer(), kIds));
  return masks;
}

int below(int n) { return *rc::gen::inRange(0, n); }

std::string random_text(int max) {
  static const std::vector<std::string> kPieces = {"a", "b", "x y", "\"",  "\\", "\n", "\xC3\xA9", "\xF0\x9F\x98\x80",
                                                   "<", "{", "0",   "\x01"};
  std::string text;
  for (int i = below(max + 1); i > 0; --i) text += *rc::gen::elementOf(kPieces);
  return text;
}

Json random_schema(int depth);

Json random_object(int depth) {
  Json schema = {{"type", "object"}, {"properties", Json::object()}, {"required", Json::array()}};
  for (int i = below(4); i > 0; --i) {
    const std::string name = fmt::format("{}{}", *rc::gen::elementOf(std::vector<std::string>{"a", "ab", "key ", "\xC3\xA9", "q\""}), i);
    schema["properties"][name] = random_schema(depth - 1);
    if (below(2) == 0) schema["required"].push_back(name);
  }
  switch (below(3)) {
    case 0: schema["additionalProperties"] = false; break;
    case 1: schema["additionalProperties"] = random_schema(0); break;
    default: break;
  }
  return schema;
}

// Bounded all over, so that answers end.
Json random_schema(int depth) {
  switch (below(depth > 0 ? 9 : 5)) {
    case 0: return {{"type", "string"}, {"minLength", below(3)}, {"maxLength", 3 + below(6)}};
    case 1: {
      const int low = below(400) - 200;
      Json schema = {{"type", below(2) == 0 ? "integer" : "number"}, {"minimum", low}};
      if (below(2) == 0) schema["maximum"] = low + below(300);
      if (below(3) == 0) schema["exclusiveMaximum"] = low + 1 + below(300);
      return schema;
    }
    case 2: return {{"type", Json::array({"boolean", "null"})}};
    case 3: return {{"enum", {random_text(4), below(100), nullptr, Json::array({1, random_text(2)})}}};
    case 4: return {{"const", random_text(5)}};
    case 5: {
      const int min = below(3);
      return {{"type", "array"}, {"items", random_schema(depth - 1)}, {"minItems", min}, {"maxItems", min + below(3)}};
    }
    case 6: return {{"prefixItems", {random_schema(0), random_schema(depth - 1)}}, {"minItems", below(3)}, {"items", false}};
    case 7: return {{"anyOf", {random_schema(depth - 1), random_schema(0)}}};
    default: return random_object(depth);
  }
}

std::size_t code_points_of(const std::string& text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

bool valid(const Json& schema, const Json& value);

bool type_holds(const Json& type, const Json& value) {
  if (type.is_array()) return std::any_of(type.begin(), type.end(), [&](const Json& one) { return type_holds(one, value); });
  if (type == "integer") return value.is_number_integer() || (value.is_number() && value.get<double>() == std::floor(value.get<double>()));
  return (type == "object" && value.is_object()) || (type == "array" && value.is_array()) || (type == "string" && value.is_string()) ||
         (type == "number" && value.is_number()) || (type == "boolean" && value.is_boolean()) || (type == "null" && value.is_null());
}

bool object_holds(const Json& schema, const Json& value) {
  for (const Json& name : schema.value("required", Json::array()))
    if (!value.contains(name.get<std::string>())) return false;
  const Json properties = schema.value("properties", Json::object());
  for (const auto& [key, member] : value.items()) {
    if (properties.contains(key) ? !valid(properties[key], member)
                                 : schema.contains("additionalProperties") && !valid(schema["additionalProperties"], member))
      return false;
  }
  return true;
}

bool array_holds(const Json& schema, const Json& value) {
  if (value.size() < schema.value("minItems", 0u) || value.size() > schema.value("maxItems", 1000u)) return false;
  const Json prefix = schema.value("prefixItems", Json::array());
  for (std::size_t i = 0; i < value.size(); ++i)
    if (i < prefix.size() ? !valid(prefix[i], value[i]) : schema.contains("items") && !valid(schema["items"], value[i])) return false;
  return true;
}

// Of the keywords that the generator makes, as the specification has them.
bool valid(const Json& schema, const Json& value) {
  if (schema.is_boolean()) return schema.get<bool>();
  if (schema.contains("type") && !type_holds(schema["type"], value)) return false;
  if (schema.contains("enum") && std::find(schema["enum"].begin(), schema["enum"].end(), value) == schema["enum"].end()) return false;
  if (schema.contains("const") && schema["const"] != value) return false;
  if (schema.contains("anyOf") &&
      std::none_of(schema["anyOf"].begin(), schema["anyOf"].end(), [&](const Json& way) { return valid(way, value); }))
    return false;
  if (value.is_number()) {
    if (schema.contains("minimum") && value < schema["minimum"]) return false;
    if (schema.contains("maximum") && value > schema["maximum"]) return false;
    if (schema.contains("exclusiveMaximum") && value >= schema["exclusiveMaximum"]) return false;
  }
  if (value.is_string()) {
    const std::size_t length = code_points_of(value.get_ref<const std::string&>());
    if (length < schema.value("minLength", 0u) || length > schema.value("maxLength", 1000u)) return false;
  }
  return (!value.is_object() || object_holds(schema, value)) && (!value.is_array() || array_holds(schema, value));
}

// A value of the schema in its order; nothing where the generator made one that has none.
std::optional<Json> random_value(const Json& schema) {
  if (schema.contains("anyOf")) return random_value(*rc::gen::elementOf(std::vector<Json>(schema["anyOf"].begin(), schema["anyOf"].end())));
  if (schema.contains("const")) return schema["const"];
  if (schema.contains("enum")) return schema["enum"][static_cast<std::size_t>(below(static_cast<int>(schema["enum"].size())))];
  if (schema.contains("properties")) {
    Json object = Json::object();
    for (const auto& [name, property] : schema["properties"].items()) {
      const bool required = std::find(schema["required"].begin(), schema["required"].end(), Json(name)) != schema["required"].end();
      if (!required && below(2) == 0) continue;
      const auto member = random_value(property);
      if (!member) return std::nullopt;
      object[name] = *member;
    }
    return object;
  }
  if (schema.contains("prefixItems") || schema.contains("items")) {
    Json array = Json::array();
    const Json prefix = schema.value("prefixItems", Json::array());
    const int min = schema.value("minItems", 0), max = prefix.empty() ? schema["maxItems"].get<int>() : 2;
    for (int i = 0, n = min + below(max - min + 1); i < n; ++i) {
      const auto item = random_value(prefix.empty() ? schema["items"] : prefix[static_cast<std::size_t>(i)]);
      if (!item) return std::nullopt;
      array.push_back(*item);
    }
    return array;
  }
  if (schema["type"] == "string") {
    std::string text = random_text(3);
    while (code_points_of(text) < schema["minLength"].get<std::size_t>()) text += "z";
    return code_points_of(text) <= schema["maxLength"].get<std::size_t>() ? std::optional<Json>(text) : std::nullopt;
  }
  if (schema["type"].is_array()) return below(2) == 0 ? Json(nullptr) : Json(true);
  const Json number = schema["minimum"];
  return valid(schema, number) ? std::optional<Json>(number) : std::nullopt;
}

std::optional<GrammarPtr> compiled(const Json& schema) {
  try {
    return compile_json_schema(schema);
  } catch (const GrammarError&) {
    return std::nullopt;  // an empty range of numbers
  }
}

RC_GTEST_PROP(grammar_properties, what_masks_let_through_is_valid, ()) {
  const Json schema = random_schema(3);
  const auto grammar = compiled(schema);
  RC_PRE(grammar.has_value());
  Matcher matcher(*grammar);
  const Vocabulary& vocabulary = tiny_masks().vocabulary();
  std::string text;
  for (int step = 0; step < 2000 && !matcher.must_end(); ++step) {
    if (matcher.may_end() && below(2) == 0) break;
    std::vector<std::uint32_t> words(kIds / 32, ~0u);
    tiny_masks().narrow(matcher, words);
    std::vector<int> allowed, short_ones;
    for (int id = 0; id < kIds; ++id) {
      if ((words[static_cast<std::size_t>(id) / 32] >> (id % 32) & 1) == 0) continue;
      allowed.push_back(id);
      if (vocabulary.token_bytes(id).size() == 1) short_ones.push_back(id);
    }
    RC_ASSERT(!allowed.empty());
    const std::vector<int>& from = step % 2 == 0 && !short_ones.empty() ? short_ones : allowed;
    const std::string_view token = vocabulary.token_bytes(from[static_cast<std::size_t>(below(static_cast<int>(from.size())))]);
    RC_ASSERT(matcher.accept(token));
    text += token;
  }
  RC_ASSERT(matcher.may_end());
  const Json value = Json::parse(text, nullptr, false);
  RC_LOG() << schema.dump() << "\n" << text;
  RC_ASSERT(!value.is_discarded());
  RC_ASSERT(valid(schema, value));
}

RC_GTEST_PROP(grammar_properties, what_is_valid_is_let_through_however_it_is_cut, ()) {
  const Json schema = random_schema(3);
  const auto grammar = compiled(schema);
  const auto value = grammar ? random_value(schema) : std::nullopt;
  RC_PRE(value.has_value());
  RC_ASSERT(valid(schema, *value));
  const std::string text = value->dump(*rc::gen::element(-1, 1, 2, 4));
  RC_LOG() << schema.dump() << "\n" << text;
  Matcher bytes(*grammar), tokens(*grammar), pieces(*grammar);
  for (const char c : text) RC_ASSERT(bytes.accept(std::string_view(&c, 1)));
  RC_ASSERT(bytes.may_end());
  for (const int id : tiny_tokenizer().encode(text, false)) {
    std::vector<std::uint32_t> words(kIds / 32, ~0u);
    tiny_masks().narrow(tokens, words);
    RC_ASSERT((words[static_cast<std::size_t>(id) / 32] >> (id % 32) & 1) == 1);
    RC_ASSERT(tokens.accept(tiny_tokenizer().token_bytes(id)));
  }
  const auto cut = static_cast<std::size_t>(below(static_cast<int>(text.size()) + 1));
  RC_ASSERT(pieces.accept(std::string_view(text).substr(0, cut)));
  RC_ASSERT(pieces.accept(std::string_view(text).substr(cut)));
  RC_ASSERT(bytes.may_end() == tokens.may_end());
  RC_ASSERT(bytes.must_end() == tokens.must_end());
  RC_ASSERT(bytes.must_end() == pieces.must_end());
}

}  // namespace
}  // namespace tetrad::grammar::grammar_properties_test
