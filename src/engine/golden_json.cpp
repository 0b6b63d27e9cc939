#include "engine/golden_json.h"

#include <limits>

#include "base/error.h"
#include "io/mapped_file.h"
#include "text/json_bounded.h"

namespace tetrad {

nlohmann::ordered_json read_golden_json(const std::filesystem::path& file) {
  const MappedFile mapped = MappedFile::open(file);
  try {
    return parse_json_bounded({reinterpret_cast<const char*>(mapped.bytes().data()), mapped.bytes().size()}, file.string());
  } catch (const InputError& error) {
    throw LoadError(error.what());
  }
}

void GoldenValue::refuse(std::string_view reason) const { fail<LoadError>("{}: {}; the golden file is damaged", where_, reason); }

void GoldenValue::expected(std::string_view kind) const { refuse(fmt::format("expected {}, got {}", kind, value_->type_name())); }

GoldenValue GoldenValue::field(std::string_view name) const {
  if (!value_->is_object()) expected("an object");
  const auto found = value_->find(name);
  const char* separator = where_.find(": ") == std::string::npos ? ": " : ".";
  std::string where = fmt::format("{}{}{}", where_, separator, name);
  if (found == value_->end()) fail<LoadError>("{}: missing; the golden file is damaged", where);
  return {*found, std::move(where)};
}

std::vector<GoldenValue> GoldenValue::entries() const {
  if (!value_->is_array()) expected("a list");
  if (value_->empty()) refuse("the list is empty, there is nothing to compare with");
  const char* separator = where_.find(": ") == std::string::npos ? ": " : "";
  std::vector<GoldenValue> entries;
  for (std::size_t i = 0; i < value_->size(); ++i) entries.emplace_back((*value_)[i], fmt::format("{}{}[{}]", where_, separator, i));
  return entries;
}

std::string GoldenValue::text() const {
  if (!value_->is_string()) expected("a string");
  return value_->get<std::string>();
}

std::vector<int> GoldenValue::ids() const {
  if (!value_->is_array()) expected("a list of token ids");
  std::vector<int> ids;
  for (const auto& id : *value_) {
    if (!id.is_number_unsigned() || id.get<std::uint64_t>() > std::numeric_limits<int>::max())
      refuse(fmt::format("entry {} is {}, expected a token id", ids.size(), id.dump().substr(0, 40)));
    ids.push_back(id.get<int>());
  }
  return ids;
}

std::vector<double> GoldenValue::numbers() const {
  if (!value_->is_array()) expected("a list of numbers");
  std::vector<double> numbers;
  for (const auto& number : *value_) {
    if (!number.is_number()) refuse(fmt::format("entry {} is {}, expected a number", numbers.size(), number.type_name()));
    numbers.push_back(number.get<double>());
  }
  return numbers;
}

}  // namespace tetrad
