// Python's text forms of numbers and strings (jinja_text.h).
#include <utf8proc.h>

#include <array>
#include <charconv>
#include <cmath>
#include <limits>

#include "text/jinja_text.h"

namespace tetrad::jinja {

std::string int_text(Int value) { return fmt::format("{}", value); }

std::string float_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  std::array<char, 64> buffer;
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value, std::chars_format::scientific).ptr;
  const std::string_view shortest(buffer.data(), static_cast<std::size_t>(end - buffer.data()));
  const std::size_t e = shortest.find('e');
  int exponent = 0;
  const bool plus = shortest[e + 1] == '+';
  std::from_chars(shortest.data() + e + (plus ? 2 : 1), end, exponent);
  std::string digits;
  for (const char c : shortest.substr(0, e)) {
    if (c >= '0' && c <= '9') digits += c;
  }
  const std::string_view sign = std::signbit(value) ? "-" : "";
  if (exponent < -4 || exponent >= 16) {
    std::string mantissa = digits.substr(0, 1);
    if (digits.size() > 1) mantissa.append(1, '.').append(digits, 1);
    return fmt::format("{}{}e{}{:02}", sign, mantissa, exponent < 0 ? '-' : '+', std::abs(exponent));
  }
  if (exponent < 0) return fmt::format("{}0.{}{}", sign, std::string(static_cast<std::size_t>(-exponent - 1), '0'), digits);
  const auto whole = static_cast<std::size_t>(exponent) + 1;
  if (digits.size() <= whole) return fmt::format("{}{}{}.0", sign, digits, std::string(whole - digits.size(), '0'));
  return fmt::format("{}{}.{}", sign, digits.substr(0, whole), digits.substr(whole));
}

namespace {

bool is_printable(char32_t c) {
  if (c == ' ') return true;
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS: return false;
    default: return true;
  }
}

}  // namespace

std::string string_repr(std::string_view text) {
  const bool double_quotes = text.find('\'') != std::string_view::npos && text.find('"') == std::string_view::npos;
  const char quote = double_quotes ? '"' : '\'';
  std::string out(1, quote);
  for (std::size_t i = 0; i < text.size();) {
    const char32_t c = next_code_point(text, i);
    if (c == static_cast<char32_t>(quote) || c == '\\') {
      out += '\\';
      out += static_cast<char>(c);
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (is_printable(c)) {
      append_code_point(out, c);
    } else {
      const auto code = static_cast<std::uint32_t>(c);
      out += c < 0x100 ? fmt::format("\\x{:02x}", code) : c < 0x10000 ? fmt::format("\\u{:04x}", code) : fmt::format("\\U{:08x}", code);
    }
  }
  return out + quote;
}

namespace {

// Drops single underscores between digits, as number literals allow; false if one stands elsewhere.
bool drop_underscores(std::string_view text, std::string& out) {
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_') {
      out += text[i];
      continue;
    }
    const bool between = i > 0 && i + 1 < text.size() && std::isalnum(static_cast<unsigned char>(text[i - 1])) != 0 &&
                         std::isalnum(static_cast<unsigned char>(text[i + 1])) != 0;
    if (!between) return false;
  }
  return true;
}

}  // namespace

bool parse_int(std::string_view text, int base, Int& value) {
  std::string clean;
  text = strip(text, Side::kBoth);
  const bool negative = !text.empty() && text.front() == '-';
  if (!text.empty() && (text.front() == '-' || text.front() == '+')) text.remove_prefix(1);
  if (text.size() > 2 && text[0] == '0' && (base == 0 || base == 2 || base == 8 || base == 16)) {
    const char mark = static_cast<char>(text[1] | 0x20);
    const int stated = mark == 'x' ? 16 : mark == 'o' ? 8 : mark == 'b' ? 2 : 0;
    if (stated != 0 && (base == 0 || base == stated)) {
      base = stated;
      text.remove_prefix(text[2] == '_' ? 3 : 2);
    }
  }
  if (!drop_underscores(text, clean) || clean.empty()) return false;
  if (base == 0) {
    base = 10;
    if (clean.size() > 1 && clean[0] == '0' && clean.find_first_not_of('0') != std::string::npos) return false;
  }
  Int total = 0;
  for (const char c : clean) {
    const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'z' ? c - 'a' + 10 : c >= 'A' && c <= 'Z' ? c - 'A' + 10 : 99;
    if (digit >= base) return false;
    total = total * base + digit;
    if (total > Int(std::numeric_limits<std::uint64_t>::max())) refuse("the integer {} is out of range", text.substr(0, 40));
  }
  value = negative ? -total : total;
  return true;
}

bool parse_float(std::string_view text, double& value) {
  std::string clean;
  text = strip(text, Side::kBoth);
  if (text.find('_') != std::string_view::npos) {
    for (std::size_t i = 0; i < text.size(); ++i) {
      const auto digit = [&](std::size_t at) { return at < text.size() && text[at] >= '0' && text[at] <= '9'; };
      if (text[i] == '_' && !(i > 0 && digit(i - 1) && digit(i + 1))) return false;
    }
  }
  for (const char c : text) {
    if (c != '_') clean += c;
  }
  std::string_view rest = clean;
  const bool negative = !rest.empty() && rest.front() == '-';
  if (!rest.empty() && (rest.front() == '-' || rest.front() == '+')) rest.remove_prefix(1);
  if (rest.empty() || rest.front() == '-' || rest.front() == '+') return false;
  const std::string word = lower(rest);
  if (word == "inf" || word == "infinity") {
    value = std::numeric_limits<double>::infinity();
  } else if (word == "nan") {
    value = std::numeric_limits<double>::quiet_NaN();
  } else {
    if (std::isalpha(static_cast<unsigned char>(rest.front())) != 0) return false;
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), value);
    if (end != rest.data() + rest.size() || error == std::errc::invalid_argument) return false;
    if (error == std::errc::result_out_of_range) {
      const std::size_t e = word.find('e');
      const bool tiny = e != std::string::npos && word.find('-', e) != std::string::npos;
      value = tiny ? 0.0 : std::numeric_limits<double>::infinity();
    }
  }
  if (negative) value = -value;
  return true;
}

}  // namespace tetrad::jinja
