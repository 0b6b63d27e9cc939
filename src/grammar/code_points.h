#pragma once
// Sets of Unicode scalar values, and how their UTF-8 forms fall into ranges of bytes.
#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

namespace tetrad::grammar {

inline constexpr char32_t kLastCodePoint = 0x10FFFF;

class CodePoints {
 public:
  using Range = std::pair<char32_t, char32_t>;  // both ends belong to it

  CodePoints() = default;
  CodePoints(std::initializer_list<Range> ranges) {
    for (const auto& [first, last] : ranges) add(first, last);
  }
  static CodePoints all() { return {{0, kLastCodePoint}}; }

  void add(char32_t first, char32_t last) { ranges_.emplace_back(first, last); }
  void add(const CodePoints& other) { ranges_.insert(ranges_.end(), other.ranges_.begin(), other.ranges_.end()); }

  // Ordered, disjoint, without surrogates.
  std::vector<Range> ranges() const;
  CodePoints complement() const;
  CodePoints without(const CodePoints& other) const;
  bool contains_all(const CodePoints& other) const { return other.without(*this).ranges().empty(); }
  bool empty() const { return ranges().empty(); }

 private:
  std::vector<Range> ranges_;
};

struct ByteRange {
  std::uint8_t low, high;
};

// Calls `add` with sequences of 1 to 4 byte ranges that together match exactly the UTF-8 forms of the code points first to last.
void for_each_utf8_sequence(char32_t first, char32_t last, const std::function<void(std::span<const ByteRange>)>& add);

}  // namespace tetrad::grammar
