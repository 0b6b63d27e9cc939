// Reads an Oniguruma expression (its Ruby syntax, as the `tokenizers` library uses it) and writes the PCRE2 expression that means the same.
#include <algorithm>
#include <array>
#include <vector>

#include "base/error.h"
#include "text/split_pattern.h"
#include "text/unicode.h"
#include "text/unicode_categories.h"

namespace tetrad::text {
namespace {

constexpr std::size_t kMaxExpressionBytes = 16 * 1024;
constexpr std::size_t kMaxGroupDepth = 64;
constexpr int kMaxRepeat = 1000;

constexpr std::string_view kSpaceItems =
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}";
constexpr std::string_view kNotSpaceItems =
    "\\x{0}-\\x{8}\\x{e}-\\x{1f}\\x{21}-\\x{84}\\x{86}-\\x{9f}\\x{a1}-\\x{167f}\\x{1681}-\\x{1fff}\\x{200b}-\\x{2027}\\x{202a}-\\x{202e}"
    "\\x{2030}-\\x{205e}\\x{2060}-\\x{2fff}\\x{3001}-\\x{10ffff}";

// Two ASCII letters that Oniguruma, ignoring case, also matches against one ligature; PCRE2 folds single characters only.
constexpr std::array<std::string_view, 5> kLigatures = {"ff", "fi", "fl", "ss", "st"};

constexpr std::array<std::string_view, 7> kGroupOpeners = {"(?:", "(?i:", "(?=", "(?!", "(?<=", "(?<!", "(?>"};

class Translator {
 public:
  Translator(std::string_view expression, std::string_view where) : in_(expression), where_(where) {}

  std::string run() {
    if (in_.size() > kMaxExpressionBytes) {
      fail<LoadError>("{}: the split expression has {} bytes, more than the {} allowed", where_, in_.size(), kMaxExpressionBytes);
    }
    const std::size_t invalid = find_invalid_utf8(in_);
    if (invalid != std::string_view::npos) fail<LoadError>("{}: the split expression is not UTF-8 at byte {}", where_, invalid);
    while (at_ < in_.size()) element();
    if (!caseless_.empty()) refuse("a group that is not closed");
    return std::move(out_);
  }

 private:
  // What an escape stands for: one code point, or the items of a class.
  struct Escape {
    bool is_literal;
    char32_t literal;
    bool negated;  // the class is the complement of `items`
    std::string items;
  };

  [[noreturn]] void refuse(std::string_view construct) const {
    fail<LoadError>("{}: split expression, byte {}: {} is not supported (near \"{}\")", where_, at_, construct,
                    in_.substr(std::min(at_, in_.size()), 12));
  }

  bool caseless() const { return !caseless_.empty() && caseless_.back(); }
  bool looking_at(std::string_view prefix) const { return in_.substr(at_).starts_with(prefix); }
  char peek(std::size_t ahead = 0) const { return at_ + ahead < in_.size() ? in_[at_ + ahead] : '\0'; }

  char32_t take_code_point() {
    const Utf8Step step = utf8_step(in_.substr(at_));
    at_ += step.length;
    return step.code_point;
  }

  static std::string spelled(char32_t c) { return fmt::format("\\x{{{:x}}}", static_cast<unsigned>(c)); }

  void element() {
    const char c = peek();
    const char32_t previous = std::exchange(previous_literal_, 0);
    switch (c) {
      case '(': return open_group();
      case ')': return close_group();
      case '[': return character_class();
      case '^':
      case '$': refuse("an anchor");
      case '*':
      case '+':
      case '?':
      case '{': refuse("a repetition of nothing");
      case '|':
        out_ += '|';
        ++at_;
        return;
      case '.':
        ++at_;
        out_ += "[^\\x{a}]";
        return repetition();
      default: break;
    }
    if (c == '\\') {
      const Escape escape = take_escape();
      if (escape.is_literal) return literal(escape.literal, previous);
      out_ += (escape.negated ? "[^" : "[") + escape.items + "]";
    } else {
      return literal(take_code_point(), previous);
    }
    repetition();
  }

  void literal(char32_t c, char32_t previous) {
    check_case(c);
    if (caseless() && previous != 0) {
      const std::array<char, 2> pair = {lower(previous), lower(c)};
      if (std::find(kLigatures.begin(), kLigatures.end(), std::string_view(pair.data(), 2)) != kLigatures.end()) {
        refuse("a pair of letters that ignoring case matches a ligature");
      }
    }
    out_ += spelled(c);
    previous_literal_ = c;
    repetition();
  }

  static char lower(char32_t c) { return static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c); }

  // Outside ASCII the two libraries fold case differently.
  void check_case(char32_t c) const {
    if (caseless() && c >= 0x80) refuse("a character outside ASCII inside (?i:...)");
  }

  void open_group() {
    if (caseless_.size() >= kMaxGroupDepth) refuse(fmt::format("a nesting deeper than {}", kMaxGroupDepth));
    if (peek(1) != '?') {
      out_ += "(?:";
      caseless_.push_back(caseless());
      ++at_;
      return;
    }
    for (const std::string_view opener : kGroupOpeners) {
      if (!looking_at(opener)) continue;
      out_ += opener;
      caseless_.push_back(caseless() || opener == "(?i:");
      at_ += opener.size();
      return;
    }
    refuse("this kind of group");
  }

  void close_group() {
    if (caseless_.empty()) refuse("an unmatched )");
    caseless_.pop_back();
    out_ += ')';
    ++at_;
    repetition();
  }

  void repetition() {
    const char c = peek();
    if (c == '*' || c == '+' || c == '?') {
      out_ += c;
      ++at_;
      // Lazy and possessive marks mean the same to both.
      if (peek() == '?' || peek() == '+') out_ += in_[at_++];
    } else if (c == '{') {
      interval();
    } else {
      return;
    }
    previous_literal_ = 0;
    const char after = peek();
    if (after == '*' || after == '+' || after == '?' || after == '{') refuse("a repetition of a repetition");
  }

  // {n}, {n,} and {n,m}, the last two also lazy. Oniguruma reads {,m} and a mark after {n} in ways of its own.
  void interval() {
    const std::size_t begin = at_++;
    const int low = number();
    bool comma = false;
    int high = low;
    if (peek() == ',') {
      comma = true;
      ++at_;
      if (peek() != '}') high = number();
    }
    if (peek() != '}') refuse("this interval");
    ++at_;
    if (high < low) refuse("an interval whose end is below its start");
    out_ += in_.substr(begin, at_ - begin);
    if (comma && peek() == '?') out_ += in_[at_++];
  }

  int number() {
    int value = 0;
    const std::size_t begin = at_;
    while (peek() >= '0' && peek() <= '9') {
      value = value * 10 + (peek() - '0');
      if (value > kMaxRepeat) refuse(fmt::format("a repetition above {}", kMaxRepeat));
      ++at_;
    }
    if (at_ == begin) refuse("an interval without a number");
    return value;
  }

  void character_class() {
    ++at_;
    out_ += '[';
    if (peek() == '^') {
      out_ += '^';
      ++at_;
    }
    if (peek() == ']') refuse("an empty class, or one that begins with ]");
    while (peek() != ']') {
      if (at_ >= in_.size()) refuse("a class that is not closed");
      class_item();
    }
    out_ += ']';
    ++at_;
    repetition();
  }

  void class_item() {
    if (peek() == '[') refuse("a class inside a class");
    if (looking_at("&&")) refuse("an intersection of classes");
    const Escape first = class_member();
    const bool range = peek() == '-' && peek(1) != ']' && at_ + 1 < in_.size();
    if (!first.is_literal) {
      if (range) refuse("a range that begins with a class");
      if (first.negated) refuse("\\P or \\D inside a class");
      out_ += first.items;
      return;
    }
    out_ += spelled(first.literal);
    if (!range) return;
    ++at_;
    if (peek() == '[') refuse("a range that ends with a class");
    const Escape last = class_member();
    if (!last.is_literal || last.literal < first.literal) refuse("this range");
    out_ += '-' + spelled(last.literal);
  }

  Escape class_member() {
    if (peek() == '\\') {
      Escape escape = take_escape();
      if (escape.is_literal) check_case(escape.literal);
      return escape;
    }
    const char32_t c = take_code_point();
    check_case(c);
    return {true, c, false, {}};
  }

  static Escape literal_escape(char32_t c) { return {true, c, false, {}}; }

  Escape take_escape() {
    const char c = peek(1);
    const auto simple = [this](char32_t value) {
      at_ += 2;
      return literal_escape(value);
    };
    const auto class_of = [this](bool negated, std::string_view items) {
      at_ += 2;
      return Escape{false, 0, negated, std::string(items)};
    };
    switch (c) {
      case 'a': return simple(0x07);
      case 't': return simple('\t');
      case 'n': return simple('\n');
      case 'v': return simple(0x0B);
      case 'f': return simple('\f');
      case 'r': return simple('\r');
      case 'e': return simple(0x1B);
      case 's': return class_of(false, kSpaceItems);
      case 'S': return class_of(false, kNotSpaceItems);
      case 'd': return class_of(false, *category_class_items("Nd"));
      case 'D': return class_of(true, *category_class_items("Nd"));
      case 'p':
      case 'P': return property();
      case 'x':
      case 'u': return hexadecimal();
      default: break;
    }
    const bool punctuation = c > ' ' && c < 0x7F && !(c >= '0' && c <= '9') && !(c >= 'A' && c <= 'Z') && !(c >= 'a' && c <= 'z');
    if (!punctuation && c != ' ') refuse("this escape");
    return simple(static_cast<char32_t>(c));
  }

  Escape property() {
    const bool negated = peek(1) == 'P';
    const std::size_t close = in_.find('}', at_);
    if (peek(2) != '{' || close == std::string_view::npos) refuse("a property that is not written as \\p{..}");
    const std::string_view name = in_.substr(at_ + 3, close - at_ - 3);
    const auto items = category_class_items(name);
    if (!items) refuse(fmt::format("the property {}", name.substr(0, 40)));
    if (caseless() && (name == "Lu" || name == "Ll" || name == "Lt")) refuse("a property of letter case inside (?i:...)");
    at_ = close + 1;
    return {false, 0, negated, *items};
  }

  // \xHH (below 80, since above it means a byte of UTF-8), \x{H..} and \uHHHH.
  Escape hexadecimal() {
    const bool braced = peek(1) == 'x' && peek(2) == '{';
    const std::size_t begin = at_ + (braced ? 3 : 2);
    const std::size_t most = braced ? 6 : (peek(1) == 'x' ? 2 : 4);
    char32_t value = 0;
    std::size_t digits = 0;
    for (; digits < most && begin + digits < in_.size(); ++digits) {
      const char c = in_[begin + digits];
      const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
      if (digit < 0) break;
      value = value * 16 + static_cast<char32_t>(digit);
    }
    const bool complete = braced ? digits > 0 && begin + digits < in_.size() && in_[begin + digits] == '}' : digits == most;
    const bool legal = value <= 0x10FFFF && (value < 0xD800 || value > 0xDFFF) && (braced || most == 4 || value < 0x80);
    if (!complete || !legal) refuse("this hexadecimal escape");
    at_ = begin + digits + (braced ? 1 : 0);
    return literal_escape(value);
  }

  std::string_view in_;
  std::string_view where_;
  std::size_t at_ = 0;
  std::string out_;
  std::vector<bool> caseless_;     // one entry per open group
  char32_t previous_literal_ = 0;  // the literal just before, when nothing stands between
};

}  // namespace

std::string translate_split_expression(std::string_view expression, std::string_view where) { return Translator(expression, where).run(); }

}  // namespace tetrad::text
