#include "text/jinja_text.h"

#include <string.h>
#include <utf8proc.h>

#include <algorithm>

namespace tetrad::jinja {

bool valid_utf8(std::string_view text) {
  const auto* bytes = reinterpret_cast<const utf8proc_uint8_t*>(text.data());
  auto left = static_cast<utf8proc_ssize_t>(text.size());
  while (left > 0) {
    if (*bytes < 0x80) {
      ++bytes, --left;
      continue;
    }
    utf8proc_int32_t c = 0;
    const utf8proc_ssize_t used = utf8proc_iterate(bytes, left, &c);
    if (used <= 0) return false;
    bytes += used;
    left -= used;
  }
  return true;
}

char32_t next_code_point(std::string_view text, std::size_t& position) {
  const auto lead = static_cast<unsigned char>(text[position++]);
  if (lead < 0x80) return lead;
  const int extra = lead >= 0xF0 ? 3 : lead >= 0xE0 ? 2 : 1;
  char32_t c = lead & (0x3Fu >> extra);
  for (int i = 0; i < extra && position < text.size(); ++i) c = (c << 6) | (static_cast<unsigned char>(text[position++]) & 0x3Fu);
  return c;
}

void append_code_point(std::string& out, char32_t c) {
  if (c < 0x80) {
    out += static_cast<char>(c);
    return;
  }
  if (c < 0x800) {
    out += static_cast<char>(0xC0 | (c >> 6));
  } else {
    if (c < 0x10000) {
      out += static_cast<char>(0xE0 | (c >> 12));
    } else {
      out += static_cast<char>(0xF0 | (c >> 18));
      out += static_cast<char>(0x80 | ((c >> 12) & 0x3F));
    }
    out += static_cast<char>(0x80 | ((c >> 6) & 0x3F));
  }
  out += static_cast<char>(0x80 | (c & 0x3F));
}

std::size_t count_code_points(std::string_view text) {
  std::size_t count = 0;
  for (const char c : text) count += (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  return count;
}

std::size_t byte_offset(std::string_view text, std::size_t code_points) {
  std::size_t i = 0;
  for (; i < text.size(); ++i) {
    if ((static_cast<unsigned char>(text[i]) & 0xC0) == 0x80) continue;
    if (code_points-- == 0) break;
  }
  return i;
}

bool is_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) ||
         c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

namespace {

// Start of the last code point of a non-empty text.
std::size_t last_code_point_start(std::string_view text) {
  std::size_t i = text.size() - 1;
  while (i > 0 && (static_cast<unsigned char>(text[i]) & 0xC0) == 0x80) --i;
  return i;
}

template <class Predicate>
std::string_view strip_if(std::string_view text, Side side, Predicate drop) {
  while (side != Side::kRight && !text.empty()) {
    std::size_t used = 0;
    if (!drop(next_code_point(text, used))) break;
    text.remove_prefix(used);
  }
  while (side != Side::kLeft && !text.empty()) {
    const std::size_t start = last_code_point_start(text);
    std::size_t position = start;
    if (!drop(next_code_point(text, position))) break;
    text = text.substr(0, start);
  }
  return text;
}

}  // namespace

std::string_view strip(std::string_view text, Side side) { return strip_if(text, side, is_space); }

std::string_view strip(std::string_view text, std::string_view chars, Side side) {
  std::u32string set;
  for (std::size_t i = 0; i < chars.size();) set += next_code_point(chars, i);
  std::sort(set.begin(), set.end());
  return strip_if(text, side, [&](char32_t c) { return std::binary_search(set.begin(), set.end(), c); });
}

std::size_t find_bytes(std::string_view text, std::string_view needle, std::size_t from) {
  if (from > text.size()) return std::string_view::npos;
  if (needle.empty()) return from;
  const void* hit = memmem(text.data() + from, text.size() - from, needle.data(), needle.size());
  return hit == nullptr ? std::string_view::npos : static_cast<std::size_t>(static_cast<const char*>(hit) - text.data());
}

std::size_t rfind_bytes(std::string_view text, std::string_view needle) {
  const std::string reversed_text(text.rbegin(), text.rend());
  const std::string reversed_needle(needle.rbegin(), needle.rend());
  const std::size_t hit = find_bytes(reversed_text, reversed_needle);
  return hit == std::string_view::npos ? hit : text.size() - needle.size() - hit;
}

std::vector<std::string_view> split(std::string_view text, std::string_view separator, std::int64_t max_split, bool from_right) {
  std::vector<std::string_view> parts;
  std::string reversed_text, reversed_separator;
  if (from_right) {
    reversed_text.assign(text.rbegin(), text.rend());
    reversed_separator.assign(separator.rbegin(), separator.rend());
  }
  const std::string_view source = from_right ? std::string_view(reversed_text) : text;
  const std::string_view needle = from_right ? std::string_view(reversed_separator) : separator;
  std::size_t start = 0;
  const auto take = [&](std::size_t begin, std::size_t end) {
    parts.push_back(from_right ? text.substr(text.size() - end, end - begin) : text.substr(begin, end - begin));
  };
  while (max_split < 0 || static_cast<std::int64_t>(parts.size()) < max_split) {
    const std::size_t hit = find_bytes(source, needle, start);
    if (hit == std::string_view::npos) break;
    take(start, hit);
    start = hit + needle.size();
  }
  take(start, source.size());
  if (from_right) std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<std::string_view> split_space(std::string_view text, std::int64_t max_split, bool from_right) {
  std::vector<std::string_view> parts;
  text = strip(text, from_right ? Side::kRight : Side::kLeft);
  while (!text.empty()) {
    if (max_split >= 0 && static_cast<std::int64_t>(parts.size()) >= max_split) {
      parts.push_back(strip(text, from_right ? Side::kLeft : Side::kRight));
      break;
    }
    if (from_right) {
      std::size_t start = text.size();
      while (start > 0) {
        const std::size_t previous = last_code_point_start(text.substr(0, start));
        std::size_t position = previous;
        if (is_space(next_code_point(text, position))) break;
        start = previous;
      }
      parts.push_back(text.substr(start));
      text = strip(text.substr(0, start), Side::kRight);
    } else {
      std::size_t end = 0;
      for (std::size_t position = 0; position < text.size(); end = position) {
        if (is_space(next_code_point(text, position))) break;
      }
      parts.push_back(text.substr(0, end));
      text = strip(text.substr(end), Side::kLeft);
    }
  }
  if (from_right) std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends) {
  std::vector<std::string_view> lines;
  std::size_t start = 0;
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t end = i;
    const char32_t c = next_code_point(text, i);
    const bool ends_line = (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029;
    if (!ends_line) continue;
    if (c == '\r' && i < text.size() && text[i] == '\n') ++i;
    lines.push_back(text.substr(start, (keep_ends ? i : end) - start));
    start = i;
  }
  if (start < text.size()) lines.push_back(text.substr(start));
  return lines;
}

std::string replace(Heap& heap, std::string_view text, std::string_view from, std::string_view to, std::int64_t count) {
  std::string out;
  std::size_t start = 0;
  std::int64_t done = 0;
  const auto append = [&](std::string_view piece) {
    heap.check_string(out.size() + piece.size());
    out += piece;
  };
  while (count < 0 || done < count) {
    heap.step();
    if (from.empty()) {
      append(to);
      ++done;
      if (start >= text.size()) return out;
      std::size_t next = start;
      next_code_point(text, next);
      append(text.substr(start, next - start));
      start = next;
      continue;
    }
    const std::size_t hit = find_bytes(text, from, start);
    if (hit == std::string_view::npos) break;
    append(text.substr(start, hit - start));
    append(to);
    start = hit + from.size();
    ++done;
  }
  append(text.substr(start));
  return out;
}

namespace {

utf8proc_category_t category(char32_t c) { return utf8proc_category(static_cast<utf8proc_int32_t>(c)); }

bool is_cased(char32_t c) {
  const auto k = category(c);
  return k == UTF8PROC_CATEGORY_LU || k == UTF8PROC_CATEGORY_LL || k == UTF8PROC_CATEGORY_LT;
}

void append_upper(std::string& out, char32_t c, bool title_case) {
  if (c == 0xDF) {  // the one letter in common use whose capital is two letters
    out += title_case ? "Ss" : "SS";
    return;
  }
  const auto code = static_cast<utf8proc_int32_t>(c);
  append_code_point(out, static_cast<char32_t>(title_case ? utf8proc_totitle(code) : utf8proc_toupper(code)));
}

void append_lower(std::string& out, char32_t c) {
  append_code_point(out, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))));
}

}  // namespace

std::string upper(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size();) append_upper(out, next_code_point(text, i), false);
  return out;
}

std::string lower(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size();) append_lower(out, next_code_point(text, i));
  return out;
}

std::string capitalize(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size();) {
    const bool first = i == 0;
    const char32_t c = next_code_point(text, i);
    first ? append_upper(out, c, true) : append_lower(out, c);
  }
  return out;
}

std::string title(std::string_view text) {
  std::string out;
  bool in_word = false;
  for (std::size_t i = 0; i < text.size();) {
    const char32_t c = next_code_point(text, i);
    in_word ? append_lower(out, c) : append_upper(out, c, true);
    in_word = is_cased(c);
  }
  return out;
}

bool all_of_class(std::string_view text, std::string_view predicate) {
  if (text.empty()) return false;
  bool cased = false;
  for (std::size_t i = 0; i < text.size();) {
    const char32_t c = next_code_point(text, i);
    const auto k = category(c);
    const bool alpha = k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO;
    const bool digit = k == UTF8PROC_CATEGORY_ND;
    const bool numeric = digit || k == UTF8PROC_CATEGORY_NL || k == UTF8PROC_CATEGORY_NO;
    if (predicate == "isupper" || predicate == "islower") {
      const bool is_upper = k == UTF8PROC_CATEGORY_LU || k == UTF8PROC_CATEGORY_LT, is_lower = k == UTF8PROC_CATEGORY_LL;
      if (predicate == "isupper" ? is_lower || k == UTF8PROC_CATEGORY_LT : is_upper) return false;
      cased = cased || is_upper || is_lower;
      continue;
    }
    const bool holds = predicate == "isdigit" || predicate == "isdecimal" ? digit
                       : predicate == "isnumeric"                         ? numeric
                       : predicate == "isalpha"                           ? alpha
                       : predicate == "isalnum"                           ? alpha || numeric
                                                                          : is_space(c);
    if (!holds) return false;
  }
  return (predicate != "isupper" && predicate != "islower") || cased;
}

}  // namespace tetrad::jinja
