// Reading an expression into a tree.
#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "grammar/regex.h"
#include "text/unicode.h"

namespace tetrad::grammar {
namespace {

const CodePoints kDigits{{'0', '9'}};
const CodePoints kWord{{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
const CodePoints kSpace{{'\t', '\r'},     {' ', ' '},       {0xA0, 0xA0},     {0x1680, 0x1680}, {0x2000, 0x200A},
                        {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
const CodePoints kLineEnds{{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};
constexpr std::size_t kMaxNodes = 100'000;

}  // namespace

class RegexParser {
 public:
  explicit RegexParser(std::string_view pattern) {
    if (pattern.size() > kMaxRegexBytes)
      fail<GrammarError>("an expression of {} bytes; at most {} are allowed", pattern.size(), kMaxRegexBytes);
    std::string_view rest = pattern;
    while (!rest.empty()) {
      const text::Utf8Step step = text::utf8_step(rest);
      if (step.kind != text::Utf8Step::Kind::kCodePoint) fail<GrammarError>("an expression that is not valid UTF-8");
      pattern_ += step.code_point;
      rest.remove_prefix(step.length);
    }
  }

  Regex parse() {
    regex_.root_ = parse_choice(0);
    if (more()) refuse("a ) without its (");
    return std::move(regex_);
  }

 private:
  using Kind = Regex::Kind;

  bool more() const { return at_ < pattern_.size(); }
  bool next_is(char32_t c) const { return more() && pattern_[at_] == c; }
  bool take(char32_t c) {
    if (!next_is(c)) return false;
    ++at_;
    return true;
  }
  [[noreturn]] void refuse(std::string_view what) const { fail<GrammarError>("expression: {} at character {}", what, at_); }

  int add(Regex::Node node, Regex::Lengths lengths) {
    if (regex_.nodes_.size() >= kMaxNodes) refuse("it is too long");
    regex_.nodes_.push_back(std::move(node));
    regex_.lengths_.push_back(lengths);
    return static_cast<int>(regex_.nodes_.size()) - 1;
  }
  Regex::Lengths lengths(int id) const { return regex_.lengths_[static_cast<std::size_t>(id)]; }
  static std::uint32_t limited(std::uint64_t n) { return static_cast<std::uint32_t>(std::min<std::uint64_t>(n, kUnbounded)); }

  int parse_choice(int depth) {
    if (depth > kMaxRegexNesting) fail<GrammarError>("an expression whose groups nest more than {} deep", kMaxRegexNesting);
    std::vector<int> ways = {parse_sequence(depth)};
    while (take('|')) ways.push_back(parse_sequence(depth));
    if (ways.size() == 1) return ways[0];
    Regex::Lengths all = lengths(ways[0]);
    for (const int way : ways) all = {std::min(all.min, lengths(way).min), std::max(all.max, lengths(way).max)};
    return add({.kind = Kind::kChoice, .children = std::move(ways)}, all);
  }

  int parse_sequence(int depth) {
    std::vector<int> items;
    std::uint64_t min = 0, max = 0;
    while (more() && !next_is('|') && !next_is(')')) {
      items.push_back(parse_item(depth));
      min = limited(min + lengths(items.back()).min);
      max = limited(max + lengths(items.back()).max);
    }
    if (items.size() == 1) return items[0];
    return add({.kind = Kind::kSequence, .children = std::move(items)}, {limited(min), limited(max)});
  }

  int parse_item(int depth) {
    if (take('^')) return add({.kind = Kind::kStart}, {});
    if (take('$')) return add({.kind = Kind::kEnd}, {});
    int item = parse_atom(depth);
    while (const auto counts = parse_quantifier()) {
      if (regex_.node(item).kind == Kind::kStart || regex_.node(item).kind == Kind::kEnd) refuse("a repeated ^ or $");
      const Regex::Lengths one = lengths(item);
      const bool unbounded = one.max == kUnbounded || counts->second == kUnbounded;
      const std::uint32_t most = counts->second == 0        ? 0
                                 : unbounded && one.max > 0 ? kUnbounded
                                                            : limited(std::uint64_t{one.max} * counts->second);
      item = add({.kind = Kind::kRepeat, .children = {item}, .min = counts->first, .max = counts->second},
                 {limited(std::uint64_t{one.min} * counts->first), most});
      take('?');  // lazy: the same texts
      if (next_is('*') || next_is('+') || next_is('?') || next_is('{')) refuse("a quantifier after a quantifier");
    }
    return item;
  }

  std::optional<std::pair<std::uint32_t, std::uint32_t>> parse_quantifier() {
    if (take('*')) return std::pair(0u, kUnbounded);
    if (take('+')) return std::pair(1u, kUnbounded);
    if (take('?')) return std::pair(0u, 1u);
    if (!take('{')) return std::nullopt;
    const std::uint32_t min = parse_count();
    std::uint32_t max = min;
    if (take(',')) max = next_is('}') ? kUnbounded : parse_count();
    if (!take('}')) refuse("expected } of a quantifier");
    if (max < min) refuse("a quantifier whose numbers are out of order");
    return std::pair(min, max);
  }

  std::uint32_t parse_count() {
    std::uint64_t n = 0;
    const std::size_t from = at_;
    while (more() && pattern_[at_] >= '0' && pattern_[at_] <= '9') {
      n = n * 10 + (pattern_[at_++] - '0');
      if (n > kMaxRepetitions) fail<GrammarError>("expression: a repetition of more than {}", kMaxRepetitions);
    }
    if (at_ == from) refuse("expected a number in a quantifier");
    return static_cast<std::uint32_t>(n);
  }

  int parse_atom(int depth) {
    const char32_t c = pattern_[at_];
    if (c == '(') return parse_group(depth);
    if (c == '[') return set(parse_class());
    if (c == '*' || c == '+' || c == '?' || c == '{') refuse("a quantifier with nothing before it");
    if (c == ']' || c == '}') refuse("an unescaped ] or }");
    ++at_;
    if (c == '.') return set(kLineEnds.complement());
    if (c == '\\') return set(parse_escape(false));
    return set({{c, c}});
  }

  int set(CodePoints points) {
    if (points.empty()) refuse("a set without a character");
    return add({.kind = Kind::kSet, .points = std::move(points)}, {1, 1});
  }

  int parse_group(int depth) {
    ++at_;
    if (take('?')) {
      if (next_is('=') || next_is('!')) refuse("lookahead, which is not supported,");
      if (take('<')) {
        if (next_is('=') || next_is('!')) refuse("lookbehind, which is not supported,");
        while (more() && !next_is('>')) ++at_;  // a name, which has no effect
        if (!take('>')) refuse("a group name without its end");
      } else if (!take(':')) {
        refuse("a kind of group that is not supported");
      }
    }
    const int inner = parse_choice(depth + 1);
    if (!take(')')) refuse("a ( without its )");
    return inner;
  }

  CodePoints parse_class() {
    ++at_;
    const bool negated = take('^');
    CodePoints points;
    while (!take(']')) {
      if (!more()) refuse("a [ without its ]");
      const auto [first, first_single] = parse_class_atom();
      if (!next_is('-') || at_ + 1 >= pattern_.size() || pattern_[at_ + 1] == ']') {
        points.add(first);
        continue;
      }
      ++at_;
      const auto [last, last_single] = parse_class_atom();
      if (!first_single || !last_single) refuse("a range that does not go from one character to another");
      if (*first_single > *last_single) refuse("a range that is out of order");
      points.add(*first_single, *last_single);
    }
    return negated ? points.complement() : points;
  }

  // What a member of a class stands for, and the character if it is one.
  std::pair<CodePoints, std::optional<char32_t>> parse_class_atom() {
    if (!more()) refuse("a [ without its ]");
    const char32_t c = pattern_[at_++];
    if (c != '\\') return {{{c, c}}, c};
    CodePoints points = parse_escape(true);
    const auto ranges = points.ranges();
    if (ranges.size() == 1 && ranges[0].first == ranges[0].second) return {points, ranges[0].first};
    return {points, std::nullopt};
  }

  // Behind the backslash.
  CodePoints parse_escape(bool in_class) {
    if (!more()) refuse("a backslash at the end");
    const char32_t c = pattern_[at_++];
    switch (c) {
      case 'd': return kDigits;
      case 'D': return kDigits.complement();
      case 'w': return kWord;
      case 'W': return kWord.complement();
      case 's': return kSpace;
      case 'S': return kSpace.complement();
      case 'n': return {{'\n', '\n'}};
      case 'r': return {{'\r', '\r'}};
      case 't': return {{'\t', '\t'}};
      case 'f': return {{'\f', '\f'}};
      case 'v': return {{'\v', '\v'}};
      case 'x': return one(parse_hex(2));
      case 'u': return one(parse_unicode());
      case 'b':
        if (in_class) return {{'\b', '\b'}};
        refuse("a word boundary, which is not supported,");
      case 'B': refuse("a word boundary, which is not supported,");
      case 'p':
      case 'P': refuse("a Unicode property, which is not supported,");
      case 'k': refuse("a back reference, which is not supported,");
      case '0':
        if (more() && pattern_[at_] >= '0' && pattern_[at_] <= '9') refuse("an octal escape, which is not supported,");
        return one(0);
      default: break;
    }
    if (c >= '1' && c <= '9') refuse("a back reference, which is not supported,");
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) refuse("an unknown escape");
    return one(c);
  }

  static CodePoints one(char32_t c) { return {{c, c}}; }

  char32_t parse_hex(int digits) {
    char32_t value = 0;
    for (int i = 0; i < digits; ++i) value = value * 16 + parse_hex_digit();
    return value;
  }

  char32_t parse_hex_digit() {
    const char32_t c = more() ? pattern_[at_] : 0;
    const char32_t lower = c | 0x20;
    const bool digit = c >= '0' && c <= '9';
    if (!digit && (lower < 'a' || lower > 'f')) refuse("expected a hexadecimal digit");
    ++at_;
    return digit ? c - '0' : lower - 'a' + 10;
  }

  char32_t parse_unicode() {
    char32_t value = 0;
    if (take('{')) {
      while (!take('}')) {
        value = value * 16 + parse_hex_digit();
        if (value > kLastCodePoint) refuse("a code point out of range");
      }
      return value;
    }
    value = parse_hex(4);
    if (value < 0xD800 || value > 0xDFFF) return value;
    if (value > 0xDBFF || !take('\\') || !take('u')) refuse("half of a surrogate pair");
    const char32_t low = parse_hex(4);
    if (low < 0xDC00 || low > 0xDFFF) refuse("half of a surrogate pair");
    return 0x10000 + ((value - 0xD800) << 10) + (low - 0xDC00);
  }

  std::u32string pattern_;
  std::size_t at_ = 0;
  Regex regex_;
};

Regex Regex::parse(std::string_view pattern) { return RegexParser(pattern).parse(); }

}  // namespace tetrad::grammar
