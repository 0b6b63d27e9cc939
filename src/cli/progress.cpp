#include "cli/progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "cli/terminal.h"

namespace tetrad::cli {

std::string progress_bar(const std::string& label, int percent) {
  constexpr int kWidth = 30;
  const int filled = kWidth * percent / 100;
  return fmt::format("{} [{}{}] {:3d} %", label, std::string(static_cast<std::size_t>(filled), '#'),
                     std::string(static_cast<std::size_t>(kWidth - filled), '.'), percent);
}

Progress::Progress(std::string label) : Progress(std::move(label), is_terminal(Stream::kError)) {}

void Progress::update(std::uint64_t done, std::uint64_t total) {
  if (label_.empty()) return;
  const int percent = total == 0 ? 100 : static_cast<int>(100.0 * static_cast<double>(std::min(done, total)) / static_cast<double>(total));
  if (terminal_) {
    if (percent == shown_percent_) return;
    say("\r{}", progress_bar(label_, percent));
  } else {
    if (percent / 10 <= shown_percent_ / 10 && shown_percent_ >= 0) return;
    say("{} {} %\n", label_, percent / 10 * 10);
  }
  shown_percent_ = percent;
}

void Progress::finish() {
  if (terminal_ && shown_percent_ >= 0) write_error("\r\x1b[K");
}

}  // namespace tetrad::cli
