#include "cli/value_checks.h"

#include <fmt/format.h>

#include <charconv>
#include <string>

namespace tetrad::cli {

CLI::Validator whole_number(std::uint64_t least) {
  const auto check = [least](std::string& text) -> std::string {
    std::uint64_t value = 0;
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, value);
    if (error == std::errc() && stop == end && value >= least) return {};
    return fmt::format("must be a whole number of at least {}, got '{}'", least, text);
  };
  return {check, ""};
}

CLI::Validator some_number() {
  return {[](std::string& text) -> std::string { return text.empty() ? "must be a number, got nothing" : ""; }, ""};
}

}  // namespace tetrad::cli
