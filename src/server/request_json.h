#pragma once
// Reading the JSON of a request: every field is checked for its type and range, and what nobody asked for is remembered as unknown.
// Everything throws RequestError with the path of the field.
#include <cstdint>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "server/api_error.h"

namespace tetrad {

inline constexpr int kMaxInt = std::numeric_limits<int>::max();  // the largest count that a field takes
inline constexpr int kMaxRequestNesting = 64;
inline constexpr std::size_t kMaxRequestFields = 256;  // of one object that is read by name

// A body: an object, not nested deeper than kMaxRequestNesting, no key given twice, UTF-8, key order kept.
nlohmann::ordered_json parse_request_body(std::string_view body);

// How a value is named in messages: a number or a short string as it is, else its type.
std::string described(const nlohmann::ordered_json& value);

// A whole number, which may be written as 5.0, between low and high; one above high is refused, or becomes high where `saturate` says so.
std::int64_t whole_number(const nlohmann::ordered_json& value, const std::string& path, std::int64_t low, std::int64_t high,
                          bool saturate = false);

// One object of a request. A field that is null counts as absent. `object` outlives this.
class RequestFields {
 public:
  RequestFields(const nlohmann::ordered_json& object, std::string path);  // path "" for the body itself

  std::string path_of(std::string_view field) const;
  const nlohmann::ordered_json* find(std::string_view field);
  std::optional<bool> boolean(std::string_view field);
  std::optional<double> number(std::string_view field);
  std::optional<std::int64_t> integer(std::string_view field, std::int64_t low, std::int64_t high, bool saturate = false);
  std::optional<std::string> text(std::string_view field);
  std::string required_text(std::string_view field);
  const nlohmann::ordered_json* object(std::string_view field);
  const nlohmann::ordered_json* list(std::string_view field, std::size_t max_items);

  // Refuses a field that asks for something: neither null, false, nor an empty string, list or object.
  void refuse_field(std::string_view field, std::string_view why);
  void accept_field(std::string_view field);  // known, and without effect here
  std::vector<std::string> unknown() const;   // fields that nothing above was asked for, as paths

 private:
  const nlohmann::ordered_json* object_;
  std::string path_;
  std::set<std::string, std::less<>> asked_;
};

}  // namespace tetrad
