#pragma once
// Typed, range-checked access to the text fields of a config.json. In the nested layout they stand in "text_config"; a field that also
// stands at the top level must agree, and one that stands only there is taken from there. Null means absent, as in the reference.
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "model/config.h"

namespace tetrad {

class ConfigReader {
 public:
  ConfigReader(const nlohmann::json& json, std::string_view where);  // LoadError unless it is an object of this model line

  std::string model_type() const { return model_type_; }
  const nlohmann::json* find(std::string_view key) const;        // null if absent; LoadError if the two levels contradict each other
  const nlohmann::json* outer_find(std::string_view key) const;  // top level only

  // Each refuses a value of another type or out of [low, high], and an absent field without a fallback.
  int integer(std::string_view key, int low, int high, std::optional<int> fallback = std::nullopt) const;
  std::int64_t integer64(std::string_view key, std::int64_t low, std::int64_t high, std::optional<std::int64_t> fallback) const;
  double number(std::string_view key, double low, double high, std::optional<double> fallback) const;  // low is excluded
  bool boolean(std::string_view key, bool fallback) const;
  bool outer_boolean(std::string_view key, bool fallback) const;  // the top level decides, text_config is asked only without it
  std::string text(std::string_view key, std::string_view fallback) const;

  void require_divisible(std::string_view key, std::int64_t value, std::string_view by_key, std::int64_t by) const;
  [[noreturn]] void refuse(std::string_view field, std::string_view expected, std::string_view got) const;

 private:
  const nlohmann::json& value_or_refuse(std::string_view key, std::string_view expected) const;

  const nlohmann::json& outer_;
  const nlohmann::json* nested_ = nullptr;  // null in the flat layout
  std::string where_;
  std::string model_type_;
};

bool in_range(const nlohmann::json& integer, std::int64_t low, std::int64_t high);

RopeConfig read_rope(const ConfigReader& in, int head_dim, int index_head_dim, int max_positions);
std::optional<QuantizationConfig> read_quantization(const ConfigReader& in);

}  // namespace tetrad
