#include "cli/serve_log.h"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <ctime>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "cli/terminal.h"

namespace tetrad::cli {
namespace {

std::string json_head(std::string_view event) {
  const auto micros = std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
  return fmt::format(R"({{"time":"{:%Y-%m-%dT%H:%M:%S}.{:06d}Z","event":"{}",)", fmt::gmtime(static_cast<std::time_t>(micros / 1'000'000)),
                     micros % 1'000'000, event);
}

}  // namespace

void ServeLog::line(std::string_view text) const {
  if (!json_) return say("tetrad: {}\n", printable(text));
  const std::string quoted = nlohmann::json(text).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  say("{}\"message\":{}}}\n", json_head("log"), quoted);
}

void ServeLog::event(std::string_view name, std::string_view text, const std::string& fields) const {
  if (json_)
    say("{}{}}}\n", json_head(name), fields);
  else
    line(text);
}

void ServeLog::object(const std::string& json) const { say("{}\n", json); }

LineFile::LineFile(const std::string& path) : path_(path) {
  constexpr mode_t kOwnerOnly = 0600;
  file_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, kOwnerOnly);
  if (file_ < 0) fail<InputError>("--request-log-jsonl {}: {}", path, std::strerror(errno));
}

LineFile::~LineFile() { ::close(file_); }

void LineFile::write(std::string line) {
  line += '\n';
  const char* next = line.data();
  for (std::size_t left = line.size(); left > 0;) {
    const ssize_t written = ::write(file_, next, left);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {
      if (!told_) say("tetrad: --request-log-jsonl {}: {}: entries are lost\n", printable(path_), std::strerror(errno));
      told_ = true;
      return;
    }
    next += written;
    left -= static_cast<std::size_t>(written);
  }
}

}  // namespace tetrad::cli
