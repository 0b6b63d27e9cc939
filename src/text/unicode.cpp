#include "text/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>
#include <vector>

#include "base/error.h"

namespace tetrad::text {
namespace {

// The second byte's legal range depends on the first (Unicode, table 3-7); the others are 80..BF.
struct LeadByte {
  std::size_t length;
  unsigned char second_low, second_high;
};

LeadByte lead_byte(unsigned char byte) {
  if (byte < 0x80) return {1, 0, 0};
  if (byte < 0xC2) return {0, 0, 0};
  if (byte < 0xE0) return {2, 0x80, 0xBF};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};
  if (byte < 0xF0) return {3, 0x80, 0xBF};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte < 0xF4) return {4, 0x80, 0xBF};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  return {0, 0, 0};
}

void append_decomposed(std::vector<utf8proc_int32_t>& out, char32_t code_point) {
  std::array<utf8proc_int32_t, 32> buffer;  // the longest canonical decomposition has 4 code points
  int boundary = UTF8PROC_BOUNDCLASS_START;
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE);
  const auto length = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(code_point), buffer.data(), buffer.size(), options, &boundary);
  TETRAD_CHECK(length >= 0 && static_cast<std::size_t>(length) <= buffer.size(), "U+{:04X} decomposes into {} code points",
               static_cast<unsigned>(code_point), length);
  out.insert(out.end(), buffer.begin(), buffer.begin() + length);
}

// Marks younger than the tables of the reference's normaliser, which leaves them where they stand; utf8proc 2.8 would order them. Recorded
// from tokenizers 0.23.3: exactly these differ.
constexpr std::array<std::pair<utf8proc_int32_t, utf8proc_int32_t>, 36> kYoungMarks = {
    {{0x07FD, 0x07FD},   {0x0898, 0x089F},   {0x08CA, 0x08D3},   {0x09FE, 0x09FE},   {0x0C3C, 0x0C3C},   {0x0D3B, 0x0D3C},
     {0x0EBA, 0x0EBA},   {0x1715, 0x1715},   {0x1ABF, 0x1ACE},   {0x1DF6, 0x1DFA},   {0xA82C, 0xA82C},   {0x10D24, 0x10D27},
     {0x10EAB, 0x10EAC}, {0x10EFD, 0x10EFF}, {0x10F46, 0x10F50}, {0x10F82, 0x10F85}, {0x11070, 0x11070}, {0x1133B, 0x1133B},
     {0x1145E, 0x1145E}, {0x11839, 0x1183A}, {0x1193D, 0x1193E}, {0x11943, 0x11943}, {0x119E0, 0x119E0}, {0x11A34, 0x11A34},
     {0x11A47, 0x11A47}, {0x11A99, 0x11A99}, {0x11D42, 0x11D42}, {0x11D44, 0x11D45}, {0x11D97, 0x11D97}, {0x11F41, 0x11F42},
     {0x16FF0, 0x16FF1}, {0x1E08F, 0x1E08F}, {0x1E130, 0x1E136}, {0x1E2AE, 0x1E2AE}, {0x1E2EC, 0x1E2EF}, {0x1E4EC, 0x1E4EF}}};

int combining_class(utf8proc_int32_t code_point) {
  const int combining = utf8proc_get_property(code_point)->combining_class;
  if (combining == 0) return 0;
  const auto* range =
      std::upper_bound(kYoungMarks.begin(), kYoungMarks.end(), code_point, [](auto c, const auto& r) { return c < r.first; });
  return range != kYoungMarks.begin() && code_point <= std::prev(range)->second ? 0 : combining;
}

// Canonical ordering. utf8proc_decompose sorts by exchanging neighbours, which is quadratic in the length of a run of marks.
void order_marks(std::vector<utf8proc_int32_t>& code_points) {
  const auto by_class = [](utf8proc_int32_t a, utf8proc_int32_t b) { return combining_class(a) < combining_class(b); };
  auto begin = code_points.begin();
  while (begin != code_points.end()) {
    if (combining_class(*begin) == 0) {
      ++begin;
      continue;
    }
    const auto end = std::find_if(begin, code_points.end(), [](utf8proc_int32_t c) { return combining_class(c) == 0; });
    std::stable_sort(begin, end, by_class);
    begin = end;
  }
}

}  // namespace

Utf8Step utf8_step(std::string_view bytes) {
  const auto first = static_cast<unsigned char>(bytes[0]);
  const LeadByte lead = lead_byte(first);
  if (lead.length == 1) return {Utf8Step::Kind::kCodePoint, first, 1};
  if (lead.length == 0) return {Utf8Step::Kind::kInvalid, kReplacement, 1};
  char32_t code_point = first & (0x7FU >> lead.length);
  for (std::size_t i = 1; i < lead.length; ++i) {
    if (i == bytes.size()) return {Utf8Step::Kind::kIncomplete, kReplacement, i};
    const auto byte = static_cast<unsigned char>(bytes[i]);
    const unsigned char low = i == 1 ? lead.second_low : 0x80;
    const unsigned char high = i == 1 ? lead.second_high : 0xBF;
    if (byte < low || byte > high) return {Utf8Step::Kind::kInvalid, kReplacement, i};
    code_point = (code_point << 6) | (byte & 0x3FU);
  }
  return {Utf8Step::Kind::kCodePoint, code_point, lead.length};
}

std::size_t find_invalid_utf8(std::string_view text) {
  std::size_t i = 0;
  while (i < text.size()) {
    if (static_cast<unsigned char>(text[i]) < 0x80) {
      ++i;
      continue;
    }
    const Utf8Step step = utf8_step(text.substr(i));
    if (step.kind != Utf8Step::Kind::kCodePoint) return i;
    i += step.length;
  }
  return std::string_view::npos;
}

void append_utf8(std::string& out, char32_t code_point) {
  const auto push = [&out](char32_t byte) { out.push_back(static_cast<char>(static_cast<unsigned char>(byte))); };
  if (code_point < 0x80) {
    push(code_point);
    return;
  }
  if (code_point < 0x800) {
    push(0xC0 | (code_point >> 6));
  } else {
    if (code_point < 0x10000) {
      push(0xE0 | (code_point >> 12));
    } else {
      push(0xF0 | (code_point >> 18));
      push(0x80 | ((code_point >> 12) & 0x3F));
    }
    push(0x80 | ((code_point >> 6) & 0x3F));
  }
  push(0x80 | (code_point & 0x3F));
}

std::size_t append_lossy(std::string& out, std::string_view bytes, bool flush) {
  std::size_t i = 0;
  while (i < bytes.size()) {
    const Utf8Step step = utf8_step(bytes.substr(i));
    if (step.kind == Utf8Step::Kind::kCodePoint) {
      out.append(bytes.substr(i, step.length));
    } else if (step.kind == Utf8Step::Kind::kIncomplete && !flush) {
      return i;
    } else {
      append_utf8(out, kReplacement);
    }
    i += step.length;
  }
  return i;
}

std::string nfc(std::string_view text) {
  // Every code point below U+0300 is in form C as it stands, and U+0300 is CC 80: no byte from CC on, nothing to do.
  const auto needs_work = [](char c) { return static_cast<unsigned char>(c) >= 0xCC; };
  if (std::none_of(text.begin(), text.end(), needs_work)) return std::string(text);

  std::vector<utf8proc_int32_t> code_points;
  code_points.reserve(text.size());
  for (std::size_t i = 0; i < text.size();) {
    const Utf8Step step = utf8_step(text.substr(i));
    TETRAD_CHECK(step.kind == Utf8Step::Kind::kCodePoint, "nfc: invalid UTF-8 at byte {}", i);
    if (step.code_point < 0x80) {
      code_points.push_back(static_cast<utf8proc_int32_t>(step.code_point));
    } else {
      append_decomposed(code_points, step.code_point);
    }
    i += step.length;
  }
  order_marks(code_points);
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);
  const auto count = utf8proc_normalize_utf32(code_points.data(), static_cast<utf8proc_ssize_t>(code_points.size()), options);
  TETRAD_CHECK(count >= 0, "utf8proc_normalize_utf32: {}", utf8proc_errmsg(count));
  std::string out;
  out.reserve(text.size());
  for (utf8proc_ssize_t i = 0; i < count; ++i) append_utf8(out, static_cast<char32_t>(code_points[static_cast<std::size_t>(i)]));
  return out;
}

bool is_white_space(char32_t c) {
  return (c >= 0x9 && c <= 0xD) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 ||
         c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

}  // namespace tetrad::text
