#include "engine/stop_strings.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace tetrad {
namespace {

std::vector<std::size_t> borders(std::string_view text) {
  std::vector<std::size_t> fallback(text.size() + 1, 0);
  std::size_t border = 0;
  for (std::size_t i = 1; i < text.size(); ++i) {
    while (border > 0 && text[i] != text[border]) border = fallback[border];
    if (text[i] == text[border]) ++border;
    fallback[i + 1] = border;
  }
  return fallback;
}

}  // namespace

StopStrings::StopStrings(std::vector<std::string> strings, bool include_stop) : include_stop_(include_stop) {
  if (strings.size() > kMaxStopStrings) fail<InputError>("stop: at most {} strings, got {}", kMaxStopStrings, strings.size());
  for (std::size_t i = 0; i < strings.size(); ++i) {
    if (strings[i].empty()) fail<InputError>("stop[{}] is empty: a stop string needs at least one character", i);
    if (strings[i].size() > kMaxStopStringBytes)
      fail<InputError>("stop[{}] must be at most {} bytes long, got {}", i, kMaxStopStringBytes, strings[i].size());
    patterns_.push_back({strings[i], borders(strings[i]), 0});
  }
}

std::string StopStrings::feed(std::string_view text) {
  if (stopped()) return {};
  if (patterns_.empty()) return std::string(text);
  for (const char byte : text) {
    held_ += byte;
    for (std::size_t i = 0; i < patterns_.size(); ++i) {
      Pattern& pattern = patterns_[i];
      while (pattern.state > 0 && pattern.text[pattern.state] != byte) pattern.state = pattern.fallback[pattern.state];
      if (pattern.text[pattern.state] == byte) ++pattern.state;
      if (pattern.state == pattern.text.size() && (!matched_ || pattern.state > patterns_[*matched_].text.size())) matched_ = i;
    }
    if (!matched_) continue;
    if (!include_stop_) held_.resize(held_.size() - patterns_[*matched_].text.size());
    return std::exchange(held_, {});
  }
  std::size_t keep = 0;
  for (const Pattern& pattern : patterns_) keep = std::max(keep, pattern.state);
  std::string safe = held_.substr(0, held_.size() - keep);
  held_.erase(0, safe.size());
  return safe;
}

std::string StopStrings::finish() { return std::exchange(held_, {}); }

}  // namespace tetrad
