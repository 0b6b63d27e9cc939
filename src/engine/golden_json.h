#pragma once
// Golden JSON files, read with every step checked: what is missing or of another kind is a LoadError that names the file and the field.
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

namespace tetrad {

nlohmann::ordered_json read_golden_json(const std::filesystem::path& file);

// A value inside such a file, and the way to it. The file's tree must outlive it.
class GoldenValue {
 public:
  GoldenValue(const nlohmann::ordered_json& value, std::string where) : value_(&value), where_(std::move(where)) {}

  GoldenValue field(std::string_view name) const;
  std::vector<GoldenValue> entries() const;  // of a list that holds at least one
  std::string text() const;
  std::vector<int> ids() const;  // whole numbers of at least 0
  std::vector<double> numbers() const;
  const nlohmann::ordered_json& json() const { return *value_; }
  const std::string& where() const { return where_; }  // "golden-generate.json: cases[3].ids"

  [[noreturn]] void refuse(std::string_view reason) const;

 private:
  [[noreturn]] void expected(std::string_view kind) const;

  const nlohmann::ordered_json* value_;
  std::string where_;
};

}  // namespace tetrad
