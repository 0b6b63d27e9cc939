#include "server/request_json.h"

#include <cmath>

#include "text/json_bounded.h"

namespace tetrad {

using Json = nlohmann::ordered_json;

namespace {

constexpr std::size_t kShown = 60;  // bytes of a value that a message quotes

[[noreturn]] void refuse_type(const std::string& path, std::string_view wanted, const Json& got) {
  refuse(path, "{}: expected {}, got {}", path, wanted, described(got));
}

}  // namespace

Json parse_request_body(std::string_view body) {
  Json parsed;
  try {
    parsed = parse_json_bounded(body, "body", kMaxRequestNesting, EqualKeys::kRefused);
  } catch (const InputError& error) {
    throw RequestError({}, error.what());
  }
  if (!parsed.is_object()) refuse_type("body", "an object", parsed);
  return parsed;
}

std::string described(const Json& value) {
  if (value.is_string() && value.get_ref<const std::string&>().size() > kShown) return "a string";
  if (value.is_primitive()) return value.dump(-1, ' ', false, Json::error_handler_t::replace);
  return value.is_array() ? "a list" : "an object";
}

RequestFields::RequestFields(const Json& object, std::string path) : object_(&object), path_(std::move(path)) {
  const std::string name = path_.empty() ? "body" : path_;
  if (!object.is_object()) refuse_type(name, "an object", object);
  if (object.size() > kMaxRequestFields) refuse(path_, "{}: {} fields, at most {} are read", name, object.size(), kMaxRequestFields);
}

std::string RequestFields::path_of(std::string_view field) const {
  return path_.empty() ? std::string(field) : fmt::format("{}.{}", path_, field);
}

const Json* RequestFields::find(std::string_view field) {
  asked_.emplace(field);
  const auto it = object_->find(std::string(field));
  return it == object_->end() || it->is_null() ? nullptr : &*it;
}

std::optional<bool> RequestFields::boolean(std::string_view field) {
  const Json* value = find(field);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) refuse_type(path_of(field), "true or false", *value);
  return value->get<bool>();
}

std::optional<double> RequestFields::number(std::string_view field) {
  const Json* value = find(field);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number()) refuse_type(path_of(field), "a number", *value);
  return value->get<double>();
}

std::int64_t whole_number(const Json& value, const std::string& path, std::int64_t low, std::int64_t high, bool saturate) {
  constexpr double kExact = 9007199254740992.0;  // up to 2^53 a double tells whole numbers apart
  bool above = false, below = false;
  std::int64_t number = 0;
  if (value.is_number_unsigned()) {
    above = value.get<std::uint64_t>() > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
    if (!above) number = value.get<std::int64_t>();
  } else if (value.is_number_integer()) {
    number = value.get<std::int64_t>();
  } else if (value.is_number_float() && value.get<double>() == std::floor(value.get<double>())) {
    const double real = value.get<double>();
    above = real > kExact;
    below = real < -kExact;
    if (!above && !below) number = static_cast<std::int64_t>(real);
  } else {
    refuse_type(path, "a whole number", value);
  }
  above = above || (!below && number > high);
  below = below || (!above && number < low);
  if (above && saturate) return high;
  if (above || below) {
    if (saturate || high == std::numeric_limits<std::int64_t>::max())
      refuse(path, "{}: must be at least {}, got {}", path, low, described(value));
    refuse(path, "{}: must be between {} and {}, got {}", path, low, high, described(value));
  }
  return number;
}

std::optional<std::int64_t> RequestFields::integer(std::string_view field, std::int64_t low, std::int64_t high, bool saturate) {
  const Json* value = find(field);
  if (value == nullptr) return std::nullopt;
  return whole_number(*value, path_of(field), low, high, saturate);
}

std::optional<std::string> RequestFields::text(std::string_view field) {
  const Json* value = find(field);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) refuse_type(path_of(field), "a string", *value);
  return value->get<std::string>();
}

std::string RequestFields::required_text(std::string_view field) {
  std::optional<std::string> value = text(field);
  if (!value) refuse(path_of(field), "{}: missing: a string is required", path_of(field));
  return *std::move(value);
}

const Json* RequestFields::object(std::string_view field) {
  const Json* value = find(field);
  if (value != nullptr && !value->is_object()) refuse_type(path_of(field), "an object", *value);
  return value;
}

const Json* RequestFields::list(std::string_view field, std::size_t max_items) {
  const Json* value = find(field);
  if (value == nullptr) return nullptr;
  const std::string path = path_of(field);
  if (!value->is_array()) refuse_type(path, "a list", *value);
  if (value->size() > max_items) refuse(path, "{}: at most {} items, got {}", path, max_items, value->size());
  return value;
}

void RequestFields::refuse_field(std::string_view field, std::string_view why) {
  const Json* value = find(field);
  if (value == nullptr || (value->is_boolean() && !value->get<bool>())) return;
  if (!value->is_number() && !value->is_boolean() && (value->empty() || *value == "")) return;
  refuse(path_of(field), "{}: not supported: {}", path_of(field), why);
}

void RequestFields::accept_field(std::string_view field) { asked_.emplace(field); }

std::vector<std::string> RequestFields::unknown() const {
  std::vector<std::string> fields;
  for (const auto& [key, value] : object_->items())
    if (asked_.find(key) == asked_.end()) fields.push_back(path_of(std::string_view(key).substr(0, kShown)));
  return fields;
}

}  // namespace tetrad
