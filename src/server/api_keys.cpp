#include "server/api_keys.h"

#include <algorithm>
#include <cctype>
#include <fstream>

#include "base/error.h"

namespace tetrad {
namespace {

constexpr std::size_t kMaxKeyBytes = 4096;

std::string_view bearer_of(std::string_view authorization) {
  constexpr std::string_view kScheme = "bearer ";
  if (authorization.size() < kScheme.size()) return {};
  for (std::size_t i = 0; i < kScheme.size(); ++i)
    if (std::tolower(static_cast<unsigned char>(authorization[i])) != kScheme[i]) return {};
  authorization.remove_prefix(kScheme.size());
  while (authorization.starts_with(' ')) authorization.remove_prefix(1);
  return authorization;
}

}  // namespace

ApiKeys::ApiKeys(std::vector<std::string> keys) : keys_(std::move(keys)) {
  for (const std::string& key : keys_) {
    const bool printable = std::all_of(key.begin(), key.end(), [](char c) { return c > ' ' && c < '\x7f'; });
    if (key.empty() || key.size() > kMaxKeyBytes || !printable)
      fail<InputError>("an API key must have 1 to {} printable characters without blanks", kMaxKeyBytes);
  }
}

bool ApiKeys::allows(const HttpRequest& request) const {
  if (keys_.empty()) return true;
  const std::string_view bearer = bearer_of(request.header("authorization")), plain = request.header("x-api-key");
  bool allowed = false;
  for (const std::string& key : keys_) {  // all of them: the time does not tell which one matched
    allowed |= equal_in_constant_time(key, bearer);
    allowed |= equal_in_constant_time(key, plain);
  }
  return allowed;
}

bool equal_in_constant_time(std::string_view secret, std::string_view given) {
  // Every byte of what was given is looked at, whatever came before it.
  unsigned difference = secret.size() == given.size() ? 0 : 1;
  for (std::size_t i = 0; i < given.size(); ++i) {
    const unsigned char expected = secret.empty() ? 0 : static_cast<unsigned char>(secret[i % secret.size()]);
    difference |= static_cast<unsigned>(expected ^ static_cast<unsigned char>(given[i]));
  }
  return difference == 0 && !secret.empty();
}

std::vector<std::string> read_key_file(const std::string& file) {
  std::ifstream in(file);
  if (!in) fail<InputError>("--api-key-file {}: cannot be read", file);
  std::vector<std::string> keys;
  std::string line;
  while (std::getline(in, line)) {
    while (!line.empty() && std::isspace(static_cast<unsigned char>(line.back()))) line.pop_back();
    if (!line.empty() && line.front() != '#') keys.push_back(line);
  }
  if (keys.empty()) fail<InputError>("--api-key-file {}: holds no key", file);
  return keys;
}

}  // namespace tetrad
