#pragma once
// Who may ask. Keys are compared in a time that does not depend on how much of them is right.
#include <string>
#include <string_view>
#include <vector>

#include "server/http_message.h"

namespace tetrad {

class ApiKeys {
 public:
  ApiKeys() = default;
  explicit ApiKeys(std::vector<std::string> keys);  // throws InputError for an empty key or one with blanks; none: everyone may ask

  bool required() const { return !keys_.empty(); }
  // "Authorization: Bearer KEY" or "x-api-key: KEY".
  bool allows(const HttpRequest& request) const;

 private:
  std::vector<std::string> keys_;
};

bool equal_in_constant_time(std::string_view secret, std::string_view given);

// One key a line; blank lines and lines that start with # are left out. Throws InputError naming the file.
std::vector<std::string> read_key_file(const std::string& file);

}  // namespace tetrad
