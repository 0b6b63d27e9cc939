#pragma once
// Finds stop strings in text that arrives in pieces, wherever the pieces are cut. The result depends on the text alone: the stop string
// that ends first wins, among those that end together the longest.
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tetrad {

inline constexpr std::size_t kMaxStopStrings = 64;
inline constexpr std::size_t kMaxStopStringBytes = 4096;

class StopStrings {
 public:
  // Throws InputError for an empty string, too many or too long ones. include_stop keeps the stop string itself in the text.
  explicit StopStrings(std::vector<std::string> strings, bool include_stop = false);

  // The text that is safe to show: never a byte that belongs to a stop string or may still turn out to. Empty once stopped.
  std::string feed(std::string_view text);
  std::string finish();  // no more text comes: what was held back
  bool stopped() const { return matched_.has_value(); }
  const std::string* matched() const { return matched_ ? &patterns_[*matched_].text : nullptr; }

 private:
  struct Pattern {
    std::string text;
    std::vector<std::size_t> fallback;  // fallback[n]: longest proper border of the first n bytes
    std::size_t state = 0;              // longest prefix of text that ends what was fed
  };
  std::vector<Pattern> patterns_;
  bool include_stop_;
  std::optional<std::size_t> matched_;
  std::string held_;
};

}  // namespace tetrad
