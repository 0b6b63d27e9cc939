#pragma once
// What the commands need of a terminal: whether there is one, lines from it, and Ctrl-C as a question instead of a death.
#include <fmt/format.h>

#include <string>
#include <string_view>
#include <utility>

namespace tetrad::cli {

// Opens what is closed among standard input, output and error on something that refuses every read or write: the next file opened does not
// get its number, and the loss is noticed where it matters.
void hold_standard_streams();

enum class Stream { kInput, kOutput, kError };
bool is_terminal(Stream stream);
bool wants_colour();  // stdout is a terminal, not a dumb one, and NO_COLOR is not set

// What a file or an argument says reaches the terminal as text, never as a command to it: control bytes as \x1b.
std::string printable(std::string_view text);

// Writes to stdout and flushes; throws Error if that fails (a full disk).
void write_out(std::string_view text);

// Writes to stderr and flushes. A closed or full stderr is no reason to lose an answer: failures are ignored.
void write_error(std::string_view text) noexcept;
template <class... Args>
void say(fmt::format_string<Args...> format, Args&&... args) {
  write_error(fmt::format(format, std::forward<Args>(args)...));
}

// While one exists, Ctrl-C is counted and nothing else happens. One at a time.
class InterruptGuard {
 public:
  InterruptGuard();
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

  static bool interrupted();  // since the last reset
  static void reset();
};

enum class LineStatus { kLine, kEnd, kInterrupted };

// Lines of standard input, without their line ends. A last line without an end counts. Throws InputError for a line that is too long.
class LineReader {
 public:
  LineStatus read(std::string& line);

 private:
  std::string buffer_;
  bool ended_ = false;
};

}  // namespace tetrad::cli
