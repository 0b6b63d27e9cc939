#pragma once
// Checks of option values, with messages that say in few words what is expected.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <type_traits>

namespace tetrad::cli {

inline constexpr int kMaxThreads = 1024;

// A whole number of at least `least`, without a sign.
CLI::Validator whole_number(std::uint64_t least);
// A number between low and high, whole where they are, in the form that its option reads.
template <class Number>
CLI::Validator number_in(Number low, Number high) {
  CLI::Validator range = CLI::Range(low, high);  // for its description
  range.operation([low, high](std::string& text) -> std::string {
    Number value{};
    if (CLI::detail::lexical_cast(text, value) && value >= low && value <= high) return {};
    return fmt::format("must be a {}number from {} to {}, got '{}'", std::is_integral_v<Number> ? "whole " : "", low, high, text);
  });
  return range;
}
// Anything but an empty text, which would be read as no value at all.
CLI::Validator some_number();

}  // namespace tetrad::cli
