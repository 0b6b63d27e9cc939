#include "model/config_reader.h"

#include <cmath>
#include <limits>

#include "base/error.h"

namespace tetrad {
namespace {

using nlohmann::json;

const json* find_in(const json& object, std::string_view key) {
  const auto found = object.find(std::string(key));
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

std::string shown(const json& value) {
  constexpr std::size_t kMaxShown = 200;
  std::string text = value.dump(-1, ' ', false, json::error_handler_t::replace);
  if (text.size() > kMaxShown) text = text.substr(0, kMaxShown) + "...";
  return text;
}

bool is_model_type(const std::string& type) { return type == "qwen4_exp" || type == "qwen4_exp_text"; }

}  // namespace

bool in_range(const json& integer, std::int64_t low, std::int64_t high) {
  if (integer.is_number_unsigned()) {
    const auto value = integer.get<std::uint64_t>();
    return value <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()) && static_cast<std::int64_t>(value) >= low &&
           static_cast<std::int64_t>(value) <= high;
  }
  const auto value = integer.get<std::int64_t>();
  return value >= low && value <= high;
}

ConfigReader::ConfigReader(const json& json, std::string_view where) : outer_(json), where_(where) {
  if (!json.is_object()) fail<LoadError>("{}: expected a JSON object, got {}", where_, shown(json));
  if (const auto* nested = find_in(json, "text_config"); nested != nullptr) {
    if (!nested->is_object()) refuse("text_config", "an object", shown(*nested));
    nested_ = nested;
  }
  const auto* type = find_in(json, "model_type");
  if (type == nullptr && nested_ != nullptr) type = find_in(*nested_, "model_type");
  if (type == nullptr) refuse("model_type", "qwen4_exp or qwen4_exp_text", "no such field");
  if (!type->is_string() || !is_model_type(type->get<std::string>())) refuse("model_type", "qwen4_exp or qwen4_exp_text", shown(*type));
  model_type_ = type->get<std::string>();
  if (nested_ == nullptr) return;
  const auto* inner = find_in(*nested_, "model_type");
  if (inner != nullptr && (!inner->is_string() || !is_model_type(inner->get<std::string>())))
    refuse("text_config.model_type", "qwen4_exp_text", shown(*inner));
}

const json* ConfigReader::outer_find(std::string_view key) const { return find_in(outer_, key); }

const json* ConfigReader::find(std::string_view key) const {
  const json* outer = find_in(outer_, key);
  if (nested_ == nullptr) return outer;
  const json* inner = find_in(*nested_, key);
  if (inner == nullptr) return outer;
  // The wrapper may carry its own special tokens (generation defaults); every other field has one meaning.
  const bool own_meaning = key == "eos_token_id" || key == "bos_token_id" || key == "quantization_config";
  if (outer != nullptr && *outer != *inner && !own_meaning)
    fail<LoadError>("{}: {} is {} at the top level and {} in text_config; make them agree", where_, key, shown(*outer), shown(*inner));
  return inner;
}

const json& ConfigReader::value_or_refuse(std::string_view key, std::string_view expected) const {
  const json* value = find(key);
  if (value == nullptr) refuse(key, expected, "no such field");
  return *value;
}

int ConfigReader::integer(std::string_view key, int low, int high, std::optional<int> fallback) const {
  return static_cast<int>(integer64(key, low, high, fallback));
}

std::int64_t ConfigReader::integer64(std::string_view key, std::int64_t low, std::int64_t high,
                                     std::optional<std::int64_t> fallback) const {
  if (fallback && find(key) == nullptr) return *fallback;
  const std::string expected = fmt::format("a whole number in [{}, {}]", low, high);
  const json& value = value_or_refuse(key, expected);
  if (!value.is_number_integer() || !in_range(value, low, high)) refuse(key, expected, shown(value));
  return value.get<std::int64_t>();
}

double ConfigReader::number(std::string_view key, double low, double high, std::optional<double> fallback) const {
  if (fallback && find(key) == nullptr) return *fallback;
  const std::string expected = fmt::format("a number in ({}, {}]", low, high);
  const json& value = value_or_refuse(key, expected);
  if (!value.is_number() || !(value.get<double>() > low && value.get<double>() <= high)) refuse(key, expected, shown(value));
  return value.get<double>();
}

bool ConfigReader::boolean(std::string_view key, bool fallback) const {
  const json* value = find(key);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) refuse(key, "true or false", shown(*value));
  return value->get<bool>();
}

bool ConfigReader::outer_boolean(std::string_view key, bool fallback) const {
  const json* inner = nested_ == nullptr ? nullptr : find_in(*nested_, key);
  const json* outer = find_in(outer_, key);
  for (const json* value : {inner, outer})
    if (value != nullptr && !value->is_boolean()) refuse(key, "true or false", shown(*value));
  if (outer != nullptr) return outer->get<bool>();
  return inner != nullptr ? inner->get<bool>() : fallback;
}

std::string ConfigReader::text(std::string_view key, std::string_view fallback) const {
  const json* value = find(key);
  if (value == nullptr) return std::string(fallback);
  if (!value->is_string()) refuse(key, "a text", shown(*value));
  return value->get<std::string>();
}

void ConfigReader::require_divisible(std::string_view key, std::int64_t value, std::string_view by_key, std::int64_t by) const {
  if (value % by != 0) refuse(key, fmt::format("a multiple of {} = {}", by_key, by), fmt::format("{}", value));
}

void ConfigReader::refuse(std::string_view field, std::string_view expected, std::string_view got) const {
  fail<LoadError>("{}: {}: expected {}, got {}", where_, field, expected, got);
}

std::optional<QuantizationConfig> read_quantization(const ConfigReader& in) {
  const json* group = in.find("quantization_config");
  if (group == nullptr) return std::nullopt;
  if (!group->is_object()) in.refuse("quantization_config", "an object", shown(*group));
  constexpr std::string_view kAdvice = "fp8 (use the BF16 or the official FP8 release; NVFP4, GPTQ, AWQ and others are not supported)";
  const json* method = find_in(*group, "quant_method");
  if (method == nullptr || *method != "fp8")
    in.refuse("quantization_config.quant_method", kAdvice, method ? shown(*method) : "no such field");
  if (const json* format = find_in(*group, "fmt"); format != nullptr && *format != "e4m3")
    in.refuse("quantization_config.fmt", "e4m3", shown(*format));
  if (const json* scheme = find_in(*group, "activation_scheme"); scheme != nullptr && *scheme != "dynamic")
    in.refuse("quantization_config.activation_scheme", "dynamic", shown(*scheme));
  QuantizationConfig result;
  result.method = "fp8";
  if (const json* block = find_in(*group, "weight_block_size"); block != nullptr) {
    constexpr int kMaxBlock = 1 << 16;
    const auto good = [](const json& n) { return n.is_number_integer() && in_range(n, 1, kMaxBlock); };
    if (!block->is_array() || block->size() != 2 || !good((*block)[0]) || !good((*block)[1]))
      in.refuse("quantization_config.weight_block_size", fmt::format("two numbers in [1, {}]", kMaxBlock), shown(*block));
    result.block_rows = (*block)[0].get<int>();
    result.block_columns = (*block)[1].get<int>();
  }
  return result;
}

}  // namespace tetrad
