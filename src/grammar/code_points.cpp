#include "grammar/code_points.h"

#include <algorithm>
#include <array>

namespace tetrad::grammar {
namespace {

constexpr char32_t kFirstSurrogate = 0xD800, kLastSurrogate = 0xDFFF;
constexpr std::array<char32_t, 4> kLastOfLength = {0x7F, 0x7FF, 0xFFFF, kLastCodePoint};

int encode_utf8(char32_t c, std::array<std::uint8_t, 4>& bytes) {
  if (c <= kLastOfLength[0]) {
    bytes[0] = static_cast<std::uint8_t>(c);
    return 1;
  }
  const int length = c <= kLastOfLength[1] ? 2 : c <= kLastOfLength[2] ? 3 : 4;
  for (int i = length - 1; i > 0; --i, c >>= 6) bytes[static_cast<std::size_t>(i)] = static_cast<std::uint8_t>(0x80 | (c & 0x3F));
  constexpr std::array<unsigned, 5> kLead = {0, 0, 0xC0, 0xE0, 0xF0};
  bytes[0] = static_cast<std::uint8_t>(kLead[static_cast<std::size_t>(length)] | c);
  return length;
}

}  // namespace

std::vector<CodePoints::Range> CodePoints::ranges() const {
  std::vector<Range> sorted;
  for (const auto& [first, last] : ranges_) {
    if (first > last) continue;
    if (first < kFirstSurrogate) sorted.emplace_back(first, std::min<char32_t>(last, kFirstSurrogate - 1));
    if (last > kLastSurrogate) sorted.emplace_back(std::max<char32_t>(first, kLastSurrogate + 1), std::min(last, kLastCodePoint));
  }
  std::sort(sorted.begin(), sorted.end());
  std::vector<Range> merged;
  for (const Range& range : sorted) {
    if (!merged.empty() && range.first <= merged.back().second + 1)
      merged.back().second = std::max(merged.back().second, range.second);
    else
      merged.push_back(range);
  }
  return merged;
}

CodePoints CodePoints::complement() const {
  CodePoints result;
  char32_t next = 0;
  for (const auto& [first, last] : ranges()) {
    if (first > next) result.add(next, first - 1);
    next = last + 1;
  }
  if (next <= kLastCodePoint) result.add(next, kLastCodePoint);
  return result;
}

CodePoints CodePoints::without(const CodePoints& other) const {
  CodePoints outside = complement();
  outside.add(other);
  return outside.complement();
}

void for_each_utf8_sequence(char32_t first, char32_t last, const std::function<void(std::span<const ByteRange>)>& add) {
  for (const char32_t end : kLastOfLength) {
    if (first <= end && end < last) {
      for_each_utf8_sequence(first, end, add);
      first = end + 1;
    }
  }
  if (first > last) return;
  // Where the low bits do not run through all their values, the range is cut so that they do.
  for (int shift = 6; shift < 24; shift += 6) {
    const char32_t low_bits = (char32_t{1} << shift) - 1;
    if (first <= kLastOfLength[0] || (first | low_bits) >= (last | low_bits)) break;
    if ((first & low_bits) != 0) {
      for_each_utf8_sequence(first, first | low_bits, add);
      return for_each_utf8_sequence((first | low_bits) + 1, last, add);
    }
    if ((last & low_bits) != low_bits) {
      for_each_utf8_sequence(first, (last & ~low_bits) - 1, add);
      return for_each_utf8_sequence(last & ~low_bits, last, add);
    }
  }
  std::array<std::uint8_t, 4> low{}, high{};
  const int length = encode_utf8(first, low);
  encode_utf8(last, high);
  std::array<ByteRange, 4> sequence{};
  for (std::size_t i = 0; i < static_cast<std::size_t>(length); ++i) sequence[i] = {low[i], high[i]};
  add(std::span<const ByteRange>(sequence.data(), static_cast<std::size_t>(length)));
}

}  // namespace tetrad::grammar
