#include "cli/terminal.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <system_error>

#include "base/error.h"
#include "cli/text_input.h"

namespace tetrad::cli {
namespace {

volatile std::sig_atomic_t interrupt_seen = 0;
struct sigaction previous_action;

extern "C" void note_interrupt(int) { interrupt_seen = 1; }

}  // namespace

void hold_standard_streams() {
  // open() takes the lowest free number, so in this order each lands on its own.
  for (const int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    if (::fcntl(descriptor, F_GETFD) == -1 && errno == EBADF) (void)::open("/dev/null", descriptor == STDIN_FILENO ? O_WRONLY : O_RDONLY);
}

bool is_terminal(Stream stream) {
  switch (stream) {
    case Stream::kInput: return ::isatty(STDIN_FILENO) == 1;
    case Stream::kOutput: return ::isatty(STDOUT_FILENO) == 1;
    case Stream::kError: return ::isatty(STDERR_FILENO) == 1;
  }
  return false;
}

bool wants_colour() {
  const char* no_colour = std::getenv("NO_COLOR");
  const char* kind = std::getenv("TERM");
  const bool dumb = kind == nullptr || std::string_view(kind) == "dumb";
  return is_terminal(Stream::kOutput) && !dumb && (no_colour == nullptr || *no_colour == '\0');
}

std::string printable(std::string_view text) {
  constexpr unsigned char kFirstPrinted = 0x20, kDelete = 0x7f;
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const bool control = (byte < kFirstPrinted && c != '\n' && c != '\t') || byte == kDelete;
    out += control ? fmt::format("\\x{:02x}", byte) : std::string(1, c);
  }
  return out;
}

void write_out(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0) return;
  fail<Error>("writing to standard output failed: {}", std::generic_category().message(errno));
}

void write_error(std::string_view text) noexcept {
  (void)std::fwrite(text.data(), 1, text.size(), stderr);
  (void)std::fflush(stderr);
}

InterruptGuard::InterruptGuard() {
  interrupt_seen = 0;
  struct sigaction action = {};
  action.sa_handler = note_interrupt;
  sigemptyset(&action.sa_mask);
  action.sa_flags = 0;  // no SA_RESTART: a read at the prompt returns
  ::sigaction(SIGINT, &action, &previous_action);
}

InterruptGuard::~InterruptGuard() { ::sigaction(SIGINT, &previous_action, nullptr); }

bool InterruptGuard::interrupted() { return interrupt_seen != 0; }
void InterruptGuard::reset() { interrupt_seen = 0; }

LineStatus LineReader::read(std::string& line) {
  for (std::size_t searched = 0;;) {
    const std::size_t end = buffer_.find('\n', searched);
    if (end != std::string::npos) {
      line = buffer_.substr(0, end);
      buffer_.erase(0, end + 1);
      if (line.ends_with('\r')) line.pop_back();
      return LineStatus::kLine;
    }
    searched = buffer_.size();
    if (ended_) {
      if (buffer_.empty()) return LineStatus::kEnd;
      line.swap(buffer_);
      buffer_.clear();
      return LineStatus::kLine;
    }
    if (InterruptGuard::interrupted()) return LineStatus::kInterrupted;
    char piece[1 << 12];
    const ssize_t count = ::read(STDIN_FILENO, piece, sizeof piece);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail<InputError>("reading standard input failed: {}", std::generic_category().message(errno));
    if (count == 0) ended_ = true;
    if (buffer_.size() + static_cast<std::size_t>(count) > kMaxInputBytes)
      fail<InputError>("standard input: a line of more than {} bytes", kMaxInputBytes);
    buffer_.append(piece, static_cast<std::size_t>(count));
  }
}

}  // namespace tetrad::cli
