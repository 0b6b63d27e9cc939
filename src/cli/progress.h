#pragma once
// Progress on stderr: a bar on a terminal, elsewhere a plain line for every tenth.
#include <cstdint>
#include <string>

namespace tetrad::cli {

class Progress {
 public:
  explicit Progress(std::string label);  // "": says nothing
  Progress(std::string label, bool terminal) : label_(std::move(label)), terminal_(terminal) {}

  void update(std::uint64_t done, std::uint64_t total);
  void finish();  // clears the bar; plain lines stay

 private:
  std::string label_;
  bool terminal_;
  int shown_percent_ = -1;
};

// What update() prints for a share, without the control codes.
std::string progress_bar(const std::string& label, int percent);

}  // namespace tetrad::cli
