#include "server/tool_set.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/json_reason.h"
#include "server/api_error.h"
#include "text/json_bounded.h"

namespace tetrad {

using Json = nlohmann::ordered_json;

namespace {

constexpr int kMaxSchemaDepth = 32;          // of references and unions followed for one property
constexpr std::size_t kSchemaSteps = 20000;  // for one function; what costs more allows every type
constexpr int kMaxArgumentNesting = 64;

JsonTypes type_named(const Json& name) {
  static constexpr std::pair<std::string_view, JsonTypes> kNames[] = {
      {"string", kStringType},   {"integer", kIntegerType}, {"number", kNumberType | kIntegerType},
      {"boolean", kBooleanType}, {"null", kNullType},       {"array", kArrayType},
      {"object", kObjectType},
  };
  if (!name.is_string()) return kAnyType;
  for (const auto& [known, types] : kNames)
    if (name.get_ref<const std::string&>() == known) return types;
  return kAnyType;
}

JsonTypes type_of_value(const Json& value) {
  switch (value.type()) {
    case Json::value_t::null: return kNullType;
    case Json::value_t::object: return kObjectType;
    case Json::value_t::array: return kArrayType;
    case Json::value_t::string: return kStringType;
    case Json::value_t::boolean: return kBooleanType;
    case Json::value_t::number_integer:
    case Json::value_t::number_unsigned: return kIntegerType;
    case Json::value_t::number_float: return value.get<double>() == std::floor(value.get<double>()) ? kIntegerType : kNumberType;
    default: return kAnyType;
  }
}

// Which types a schema allows. Every step is paid for, so that no schema takes long.
class SchemaTypes {
 public:
  explicit SchemaTypes(const Json& root) : root_(root) {}

  JsonTypes of(const Json& schema, int depth = 0) {
    if (!schema.is_object() || depth > kMaxSchemaDepth || !pay(schema.size() + 1)) return kAnyType;
    JsonTypes types = kAnyType;
    bool nullable = false;
    for (const auto& [key, value] : schema.items()) {
      if (key == "type") {
        types &= value.is_array() ? union_of(value, [](const Json& name) { return type_named(name); }) : type_named(value);
      } else if (key == "enum" && value.is_array()) {
        types &= union_of(value, type_of_value);
      } else if (key == "const") {
        types &= type_of_value(value);
      } else if ((key == "anyOf" || key == "oneOf") && value.is_array()) {
        types &= union_of(value, [&](const Json& item) { return of(item, depth + 1); });
      } else if (key == "allOf" && value.is_array()) {
        for (const Json& item : value) types &= of(item, depth + 1);
      } else if (key == "$ref") {
        const Json* target = resolve(value);
        if (target != nullptr) types &= of(*target, depth + 1);
      } else if (key == "nullable" && value.is_boolean()) {
        nullable = value.get<bool>();
      }
    }
    if (types == 0) return kAnyType;
    return nullable ? types | kNullType : types;
  }

 private:
  bool pay(std::size_t steps) {
    steps_left_ -= std::min(steps, steps_left_);
    return steps_left_ > 0;
  }

  template <class TypesOf>
  JsonTypes union_of(const Json& list, TypesOf types_of) {
    JsonTypes types = 0;
    if (!pay(list.size() + 1)) return kAnyType;
    for (const Json& item : list) types |= types_of(item);
    return types == 0 ? kAnyType : types;
  }

  // "#" or "#/a/b", where ~1 stands for a slash and ~0 for a tilde.
  const Json* resolve(const Json& reference) {
    if (!reference.is_string()) return nullptr;
    std::string_view rest = reference.get_ref<const std::string&>();
    if (!rest.starts_with('#')) return nullptr;
    rest.remove_prefix(1);
    const Json* at = &root_;
    while (!rest.empty()) {
      if (rest[0] != '/' || !at->is_object() || !pay(at->size() + 1)) return nullptr;
      rest.remove_prefix(1);
      const std::size_t end = std::min(rest.find('/'), rest.size());
      std::string key;
      for (std::size_t i = 0; i < end; ++i) {
        if (rest[i] == '~' && i + 1 < end && (rest[i + 1] == '0' || rest[i + 1] == '1'))
          key += rest[++i] == '0' ? '~' : '/';
        else
          key += rest[i];
      }
      rest.remove_prefix(end);
      const auto next = at->find(key);
      if (next == at->end()) return nullptr;
      at = &*next;
    }
    return at;
  }

  const Json& root_;
  std::size_t steps_left_ = kSchemaSteps;
};

bool is_json_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && is_json_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_json_space(text.back())) text.remove_suffix(1);
  return text;
}

// The type of text that is JSON, 0 of one that is not. Integers of any size count.
JsonTypes type_of_json(std::string_view text) {
  if (text.empty() || nul_byte(text)) return 0;
  try {
    if (text[0] == '[' || text[0] == '{') return type_of_value(parse_json_bounded(text, "argument", kMaxArgumentNesting));
    const Json value = Json::parse(text, nullptr, false);
    return value.is_discarded() ? 0 : type_of_value(value);
  } catch (const InputError&) {
    return 0;
  }
}

}  // namespace

JsonTypes OfferedTool::types_of(std::string_view parameter) const {
  const auto it = parameters.find(parameter);
  return it == parameters.end() ? other_parameters : it->second;
}

OfferedTool OfferedTool::from_schema(std::string name, const Json& schema, const std::string& path) {
  OfferedTool tool;
  tool.name = std::move(name);
  tool.path = path;
  if (!schema.is_object()) {
    tool.other_parameters = kAnyType;
    return tool;
  }
  tool.schema = std::make_shared<const Json>(schema);
  SchemaTypes types(schema);
  const auto properties = schema.find("properties");
  const bool has_properties = properties != schema.end() && properties->is_object() && !properties->empty();
  if (has_properties) {
    if (properties->size() > kMaxToolParameters)
      refuse(path + ".properties", "{}.properties: at most {} properties, got {}", path, kMaxToolParameters, properties->size());
    for (const auto& [key, property] : properties->items()) tool.parameters.emplace(key, types.of(property));
  }
  const auto others = schema.find("additionalProperties");
  if (others != schema.end() && others->is_object())
    tool.other_parameters = types.of(*others);
  else if (!has_properties)
    tool.other_parameters = kAnyType;
  return tool;
}

const OfferedTool* ToolSet::find(std::string_view name) const {
  for (const OfferedTool& tool : tools_)
    if (tool.name == name) return &tool;
  return nullptr;
}

bool ToolSet::has_name_starting(std::string_view prefix) const {
  return std::any_of(tools_.begin(), tools_.end(), [&](const OfferedTool& tool) { return tool.name.starts_with(prefix); });
}

std::string argument_json(std::string_view text, JsonTypes types) {
  const auto as_string = [&] {
    std::string quoted = "\"";
    append_json_escaped(quoted, text);
    return quoted + '"';
  };
  if (types == kStringType) return as_string();
  const std::string_view value = trimmed(text);
  if ((types & kBooleanType) != 0 && (value == "True" || value == "False")) return value == "True" ? "true" : "false";
  if ((types & kNullType) != 0 && value == "None") return "null";
  const JsonTypes type = type_of_json(value);
  const bool string_allowed = (types & kStringType) != 0;
  // Where a string is allowed, quotes are part of it: the form writes strings without.
  if (type == 0 || (string_allowed && (type == kStringType || (type & types) == 0))) return as_string();
  return std::string(value);
}

void append_json_escaped(std::string& out, std::string_view text) {
  for (const char c : text) {
    switch (c) {
      case '"': out += "\\\""; break;
      case '\\': out += "\\\\"; break;
      case '\n': out += "\\n"; break;
      case '\r': out += "\\r"; break;
      case '\t': out += "\\t"; break;
      case '\b': out += "\\b"; break;
      case '\f': out += "\\f"; break;
      default:
        if (static_cast<unsigned char>(c) < 0x20)
          out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
        else
          out += c;
    }
  }
}

}  // namespace tetrad
