#pragma once
// Checks of option values, with messages that say in few words what is expected.
#include <CLI/CLI.hpp>
#include <cstdint>

namespace tetrad::cli {

inline constexpr int kMaxThreads = 1024;

// A whole number of at least `least`, without a sign.
CLI::Validator whole_number(std::uint64_t least);
// Anything but an empty text, which would be read as no value at all.
CLI::Validator some_number();

}  // namespace tetrad::cli
