#include "grammar/schema_document.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <span>
#include <utility>

namespace tetrad::grammar {
namespace {

constexpr int kMaxMadeDepth = 256;  // of schemas that merging nests in each other

constexpr Keyword kKeywords[] = {
    {"type", KeywordUse::kSupported},
    {"properties", KeywordUse::kSupported},
    {"required", KeywordUse::kSupported},
    {"additionalProperties", KeywordUse::kSupported},
    {"minProperties", KeywordUse::kSupported},
    {"maxProperties", KeywordUse::kSupported},
    {"items", KeywordUse::kSupported},
    {"prefixItems", KeywordUse::kSupported},
    {"additionalItems", KeywordUse::kSupported},
    {"minItems", KeywordUse::kSupported},
    {"maxItems", KeywordUse::kSupported},
    {"uniqueItems", KeywordUse::kSupported},
    {"enum", KeywordUse::kSupported},
    {"const", KeywordUse::kSupported},
    {"anyOf", KeywordUse::kSupported},
    {"oneOf", KeywordUse::kSupported},
    {"allOf", KeywordUse::kSupported},
    {"$ref", KeywordUse::kSupported},
    {"$defs", KeywordUse::kSupported},
    {"definitions", KeywordUse::kSupported},
    {"minLength", KeywordUse::kSupported},
    {"maxLength", KeywordUse::kSupported},
    {"pattern", KeywordUse::kSupported},
    {"format", KeywordUse::kSupported},
    {"minimum", KeywordUse::kSupported},
    {"maximum", KeywordUse::kSupported},
    {"exclusiveMinimum", KeywordUse::kSupported},
    {"exclusiveMaximum", KeywordUse::kSupported},
    {"multipleOf", KeywordUse::kSupported},
    {"nullable", KeywordUse::kSupported},
    {"title", KeywordUse::kAnnotation},
    {"description", KeywordUse::kAnnotation},
    {"default", KeywordUse::kAnnotation},
    {"example", KeywordUse::kAnnotation},
    {"examples", KeywordUse::kAnnotation},
    {"deprecated", KeywordUse::kAnnotation},
    {"readOnly", KeywordUse::kAnnotation},
    {"writeOnly", KeywordUse::kAnnotation},
    {"discriminator", KeywordUse::kAnnotation},
    {"$schema", KeywordUse::kAnnotation},
    {"$id", KeywordUse::kAnnotation},
    {"$comment", KeywordUse::kAnnotation},
    {"strict", KeywordUse::kAnnotation},
    {"not", KeywordUse::kRefused},
    {"if", KeywordUse::kRefused},
    {"then", KeywordUse::kRefused},
    {"else", KeywordUse::kRefused},
    {"patternProperties", KeywordUse::kRefused},
    {"propertyNames", KeywordUse::kRefused},
    {"dependencies", KeywordUse::kRefused},
    {"dependentRequired", KeywordUse::kRefused},
    {"dependentSchemas", KeywordUse::kRefused},
    {"unevaluatedProperties", KeywordUse::kRefused},
    {"unevaluatedItems", KeywordUse::kRefused},
    {"contains", KeywordUse::kRefused},
    {"minContains", KeywordUse::kRefused},
    {"maxContains", KeywordUse::kRefused},
    {"contentEncoding", KeywordUse::kRefused},
    {"contentMediaType", KeywordUse::kRefused},
    {"contentSchema", KeywordUse::kRefused},
    {"$anchor", KeywordUse::kRefused},
    {"$dynamicAnchor", KeywordUse::kRefused},
    {"$dynamicRef", KeywordUse::kRefused},
    {"$recursiveRef", KeywordUse::kRefused},
    {"$vocabulary", KeywordUse::kRefused},
};

bool says_nothing(const Json& schema) {
  if (schema.is_boolean()) return schema.get<bool>();
  return schema.is_object() &&
         std::all_of(schema.items().begin(), schema.items().end(), [](const auto& item) { return is_annotation(item.key()); });
}

bool states(const Json& schema, std::string_view key) { return schema.find(std::string(key)) != schema.end(); }

Json types_in_common(const Json& a, const Json& b, const std::string& path) {
  const auto list = [](const Json& types) { return types.is_array() ? types : Json::array({types}); };
  Json common = Json::array();
  const Json left = list(a), right = list(b);
  const auto names = [](const Json& types, const char* name) { return std::find(types.begin(), types.end(), name) != types.end(); };
  for (const Json& type : left) {
    if (std::find(right.begin(), right.end(), type) != right.end())
      common.push_back(type);
    else if ((type == "integer" && names(right, "number")) || (type == "number" && names(right, "integer")))
      common.push_back("integer");
  }
  if (common.empty()) fail<GrammarError>("{}: no type is left that all parts of it allow", path);
  return common;
}

}  // namespace

std::span<const Keyword> schema_keywords() { return kKeywords; }

bool is_annotation(std::string_view keyword) {
  if (keyword.starts_with("x-")) return true;
  const auto* known = std::find_if(std::begin(kKeywords), std::end(kKeywords), [&](const Keyword& k) { return k.name == keyword; });
  return known != std::end(kKeywords) && (known->use == KeywordUse::kAnnotation || keyword == "$defs" || keyword == "definitions");
}

void check_keywords(const Json& schema, const std::string& path) {
  for (const auto& [key, value] : schema.items()) {
    if (key.starts_with("x-")) continue;
    const auto* known =
        std::find_if(std::begin(kKeywords), std::end(kKeywords), [&, &name = key](const Keyword& k) { return k.name == name; });
    if (known == std::end(kKeywords)) fail<GrammarError>("{}: the keyword {} is not known", path, Json(key.substr(0, 100)).dump());
    if (known->use == KeywordUse::kRefused) fail<GrammarError>("{}: {} is not supported", path, key);
  }
}

void SchemaDocument::pay(std::size_t steps) {
  steps_ += steps;
  if (steps_ > kMaxSchemaSteps) fail<GrammarError>("too large: compiling it takes more than {} steps", kMaxSchemaSteps);
}

std::size_t SchemaDocument::size_of(const Json& value, int depth) const {
  if (depth > kMaxMadeDepth) fail<GrammarError>("it nests more than {} deep", kMaxMadeDepth);
  std::size_t size = 1;
  if (value.is_structured())
    for (const Json& item : value) size += size_of(item, depth + 1);
  return size;
}

// A schema that was made is none of the document's: the root's name, which it may have been copied with, means nothing in it.
const Json& SchemaDocument::keep(Json schema) {
  pay(size_of(schema));
  if (schema.is_object()) schema.erase("$id");
  made_.push_back(std::move(schema));
  return made_.back();
}

// Below the root it would be the base of the references in it: "#" would no longer be the root.
void SchemaDocument::check_base(const Json& schema, const std::string& path) const {
  const auto id = schema.find("$id");
  if (&schema != root_ && id != schema.end())
    fail<GrammarError>("{}: $id below the root of a schema is not supported: references would start from there", path);
}

// "#" or "#/a/b", where ~1 stands for a slash, ~0 for a tilde, and %XX for a byte.
const Json& SchemaDocument::resolve(const std::string& reference, const std::string& path) {
  if (reference.empty() || reference[0] != '#')
    fail<GrammarError>("{}: $ref {}: only references inside the schema are supported (#/...)", path,
                       Json(reference.substr(0, 100)).dump(-1, ' ', false, Json::error_handler_t::replace));
  const Json* at = root_;
  std::size_t from = 1;
  while (from < reference.size()) {
    const std::size_t end = std::min(reference.find('/', from + 1), reference.size());
    if (reference[from] != '/') fail<GrammarError>("{}: $ref: names of anchors are not supported", path);
    std::string key;
    for (std::size_t i = from + 1; i < end; ++i) {
      const char c = reference[i];
      if (c == '~' && i + 1 < end && (reference[i + 1] == '0' || reference[i + 1] == '1'))
        key += reference[++i] == '0' ? '~' : '/';
      else if (c == '%' && i + 2 < end && std::isxdigit(static_cast<unsigned char>(reference[i + 1])) &&
               std::isxdigit(static_cast<unsigned char>(reference[i + 2])))
        key += static_cast<char>(std::stoi(reference.substr(std::exchange(i, i + 2) + 1, 2), nullptr, 16));
      else
        key += c;
    }
    from = end;
    const Json* next = nullptr;
    if (at->is_object()) {
      pay(at->size() + 1);
      if (const auto id = at->find("$id"); id != at->end() && id->is_string()) check_base(*at, path);  // else a property of that name
      const auto it = at->find(key);
      if (it != at->end()) next = &*it;
    } else if (at->is_array() && !key.empty() && key.size() < 8 && key.find_first_not_of("0123456789") == std::string::npos) {
      const std::size_t index = std::stoul(key);
      if (index < at->size()) next = &(*at)[index];
    }
    if (next == nullptr)
      fail<GrammarError>("{}: $ref {} leads nowhere", path,
                         Json(reference.substr(0, 100)).dump(-1, ' ', false, Json::error_handler_t::replace));
    at = next;
  }
  return *at;
}

const Json& SchemaDocument::flat(const Json& schema, const std::string& path, int depth) {
  if (schema.is_boolean()) return schema;
  if (!schema.is_object()) fail<GrammarError>("{}: a schema must be an object, true or false", path);
  pay(schema.size() + 1);
  if (depth > kMaxReferenceDepth) fail<GrammarError>("{}: more than {} references in a row", path, kMaxReferenceDepth);
  if (const auto known = flattened_.find(&schema); known != flattened_.end()) return *known->second;
  check_keywords(schema, path);
  check_base(schema, path);
  const auto reference = schema.find("$ref"), all = schema.find("allOf"), nullable = schema.find("nullable");
  if (reference == schema.end() && all == schema.end() && nullable == schema.end()) return schema;

  Json rest = schema;
  pay(size_of(schema));
  for (const char* key : {"$ref", "allOf", "nullable"}) rest.erase(key);
  if (nullable != schema.end()) {
    if (!nullable->is_boolean()) fail<GrammarError>("{}.nullable: expected true or false", path);
    if (nullable->get<bool>() && states(rest, "type")) {
      Json types = rest["type"].is_array() ? rest["type"] : Json::array({rest["type"]});
      if (std::find(types.begin(), types.end(), "null") == types.end()) types.push_back("null");
      rest["type"] = std::move(types);
    } else if (nullable->get<bool>() && (reference != schema.end() || all != schema.end())) {
      fail<GrammarError>("{}: nullable beside $ref or allOf is not supported: use anyOf with type null", path);
    }
  }
  const Json* result = nullptr;
  const auto join = [&](const Json& part) {
    if (result == nullptr || says_nothing(*result))
      result = &part;
    else if (!says_nothing(part))
      result = &keep(merge(*result, part, path));
  };
  if (!says_nothing(rest)) result = &keep(std::move(rest));
  if (reference != schema.end()) {
    if (!reference->is_string()) fail<GrammarError>("{}.$ref: expected a string", path);
    join(flat(resolve(reference->get_ref<const std::string&>(), path), path, depth + 1));
  }
  if (all != schema.end()) {
    if (!all->is_array() || all->empty()) fail<GrammarError>("{}.allOf: expected a list of schemas", path);
    for (std::size_t i = 0; i < all->size(); ++i) join(flat((*all)[i], fmt::format("{}.allOf[{}]", path, i), depth + 1));
  }
  if (result == nullptr) result = &keep(Json::object());
  flattened_.emplace(&schema, result);
  return *result;
}

const Json& SchemaDocument::both(const Json& a, const Json& b, const std::string& path) {
  const Json& left = flat(a, path);
  const Json& right = flat(b, path);
  if (says_nothing(left)) return right;
  if (says_nothing(right)) return left;
  return keep(merge(left, right, path));
}

// Properties of both: each must satisfy what either says about it, be it by name or by additionalProperties.
void SchemaDocument::merge_objects(Json& into, const Json& a, const Json& b) {
  const auto side = [](const Json& schema) {
    const auto properties = schema.find("properties"), others = schema.find("additionalProperties");
    return std::pair(properties != schema.end() && properties->is_object() ? *properties : Json::object(),
                     others != schema.end() ? *others : Json(true));
  };
  const auto [left, left_others] = side(a);
  const auto [right, right_others] = side(b);
  pay(size_of(left) + size_of(right));
  const auto combined = [](const Json& x, const Json& y) {
    if (x == false || y == false) return Json(false);
    if (x == true || x == y) return y;
    return y == true ? x : Json{{"allOf", Json::array({x, y})}};
  };
  std::map<std::string, const Json*> right_by_name;
  for (const auto& [key, value] : right.items()) right_by_name.emplace(key, &value);
  std::map<std::string, bool> seen;
  Json::object_t members;
  for (const auto& [key, value] : left.items()) {
    const auto other = right_by_name.find(key);
    members.Json::object_t::Container::emplace_back(key, combined(value, other != right_by_name.end() ? *other->second : right_others));
    seen[key] = true;
  }
  for (const auto& [key, value] : right.items())
    if (!seen.contains(key)) members.Json::object_t::Container::emplace_back(key, combined(left_others, value));
  into["properties"] = std::move(members);
  const Json others = combined(left_others, right_others);
  if (states(a, "additionalProperties") || states(b, "additionalProperties")) into["additionalProperties"] = others;
}

Json SchemaDocument::merge(const Json& a, const Json& b, const std::string& path) {
  if (a == false || b == false) return false;
  if (a.is_boolean()) return b;
  if (b.is_boolean()) return a;
  pay(size_of(a) + size_of(b));
  Json merged = a;
  static constexpr std::string_view kHigher[] = {"minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"};
  static constexpr std::string_view kLower[] = {"maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"};
  const auto is_in = [](std::span<const std::string_view> list, std::string_view key) {
    return std::find(list.begin(), list.end(), key) != list.end();
  };
  const bool objects =
      (states(a, "properties") || states(a, "additionalProperties")) && (states(b, "properties") || states(b, "additionalProperties"));
  for (const auto& [key, value] : b.items()) {
    if (is_annotation(key) || (objects && (key == "properties" || key == "additionalProperties"))) continue;
    const auto mine = merged.find(key);
    if (mine == merged.end()) {
      merged[key] = value;
    } else if (*mine == value) {
      continue;
    } else if (key == "type") {
      *mine = types_in_common(*mine, value, path);
    } else if (key == "required" && mine->is_array() && value.is_array()) {
      for (const Json& name : value)
        if (std::find(mine->begin(), mine->end(), name) == mine->end()) mine->push_back(name);
    } else if ((is_in(kHigher, key) || is_in(kLower, key)) && mine->is_number() && value.is_number()) {
      if ((value > *mine) == is_in(kHigher, key)) *mine = value;
    } else if (key == "enum" && mine->is_array() && value.is_array()) {
      Json common = Json::array();
      for (const Json& item : *mine)
        if (std::find(value.begin(), value.end(), item) != value.end()) common.push_back(item);
      *mine = std::move(common);
    } else if (key == "items" && mine->is_object() && value.is_object()) {
      *mine = Json{{"allOf", Json::array({*mine, value})}};
    } else if (key == "anyOf" && mine->is_array() && value.is_array()) {
      constexpr std::size_t kMaxPairs = 256;
      if (mine->size() * value.size() > kMaxPairs)
        fail<GrammarError>("{}: anyOf of {} and {} alternatives that must hold together", path, mine->size(), value.size());
      Json pairs = Json::array();
      for (const Json& left : *mine)
        for (const Json& right : value) pairs.push_back({{"allOf", Json::array({left, right})}});
      *mine = std::move(pairs);
    } else {
      fail<GrammarError>("{}: {} is given by two parts that must hold together, in ways that cannot be joined", path, key);
    }
  }
  if (objects) merge_objects(merged, a, b);
  return merged;
}

}  // namespace tetrad::grammar
