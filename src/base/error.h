#pragma once
// The exceptions of the engine (docs/architecture.md, "Errors"). Libraries throw, only main prints and exits.
#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace tetrad {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A checkpoint, file or environment that cannot be used: exit code 2. The message names file, tensor or field, expected, got, what to do.
class LoadError : public Error {
 public:
  using Error::Error;
};

// A request or command line that cannot be honoured: exit code 2 from the command line, 400 from the server.
class InputError : public Error {
 public:
  using Error::Error;
};

// A broken invariant of the engine itself.
class InternalError : public Error {
 public:
  using Error::Error;
};

// A request whose numbers went non-finite; names the layer and the row.
class NumericError : public Error {
 public:
  using Error::Error;
};

template <class E, class... Args>
[[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) {
  throw E(fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace tetrad

// Checks an invariant in every build; the message carries the values that disagreed.
#define TETRAD_CHECK(condition, ...)                                                                                      \
  do {                                                                                                                    \
    if (!(condition)) [[unlikely]]                                                                                        \
      ::tetrad::fail<::tetrad::InternalError>("{}:{}: {}: {}", __FILE__, __LINE__, #condition, fmt::format(__VA_ARGS__)); \
  } while (false)
