#include "text/jinja_lexer.h"

#include <algorithm>
#include <array>
#include <cctype>

#include "text/jinja_text.h"

namespace tetrad::jinja {

void refuse_template(std::string_view where, int line, std::string_view message) { fail<LoadError>("{}:{}: {}", where, line, message); }

namespace {

constexpr std::size_t kMaxSourceBytes = 1u << 20;

std::string normalise(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      out += source[i];
      continue;
    }
    out += '\n';
    if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

bool is_name_start(char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0 || c == '_'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_name_part(char c) { return is_name_start(c) || is_digit(c); }

class Lexer {
 public:
  Lexer(std::string_view source, std::string_view where) : where_(where), source_(source) {}

  std::vector<Token> run() {
    while (position_ < source_.size()) scan_text();
    push(TokenKind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  std::string_view rest() const { return source_.substr(position_); }
  [[noreturn]] void refuse_here(std::string_view message) const { refuse_template(where_, line_, message); }

  void push(TokenKind kind, std::string text) {
    Token token;
    token.kind = kind;
    token.line = line_;
    token.text = std::move(text);
    tokens_.push_back(std::move(token));
  }

  void advance(std::size_t count) {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<std::ptrdiff_t>(position_),
                                         source_.begin() + static_cast<std::ptrdiff_t>(position_ + count), '\n'));
    position_ += count;
    if (count > 0) at_line_start_ = source_[position_ - 1] == '\n';
  }

  void skip_space() { advance(rest().size() - strip(rest(), Side::kLeft).size()); }

  // White space that the tag after `text` swallows: all of it for `-`, the blanks of its own line for a block without `+`.
  std::string_view trim_before(std::string_view text, char sign, bool is_output) const {
    if (sign == '-') return strip(text, Side::kRight);
    if (sign == '+' || is_output) return text;
    const std::size_t newline = text.rfind('\n');
    if (newline == std::string_view::npos && !text_starts_line_) return text;
    const std::size_t line_start = newline == std::string_view::npos ? 0 : newline + 1;
    return strip(text.substr(line_start), Side::kBoth).empty() ? text.substr(0, line_start) : text;
  }

  static char sign_at(std::string_view text, std::size_t at) {
    return at < text.size() && (text[at] == '-' || text[at] == '+') ? text[at] : '\0';
  }

  void push_text(std::string_view text) {
    if (!text.empty()) push(TokenKind::kText, std::string(text));
  }

  void scan_text() {
    text_starts_line_ = at_line_start_;
    std::size_t open = position_;
    while (true) {
      open = source_.find('{', open);
      if (open == std::string_view::npos || open + 1 >= source_.size()) {
        push_text(rest());
        advance(rest().size());
        return;
      }
      const char mark = source_[open + 1];
      if (mark == '{' || mark == '%' || mark == '#') break;
      ++open;
    }
    const char mark = source_[open + 1];
    const char sign = sign_at(source_, open + 2);
    const std::string_view before = source_.substr(position_, open - position_);
    push_text(trim_before(before, sign, mark == '{'));
    advance(before.size() + 2 + (sign != '\0' ? 1 : 0));
    if (mark == '#') return scan_comment();
    if (mark == '%' && scan_raw()) return;
    push(mark == '{' ? TokenKind::kOutputBegin : TokenKind::kBlockBegin, "");
    scan_tag(mark == '{' ? "}}" : "%}");
  }

  // After the end marker of a block or comment: `-` swallows white space, otherwise one newline goes unless the sign is `+`.
  void finish_block(char sign) {
    if (sign == '-') {
      skip_space();
    } else if (sign != '+' && position_ < source_.size() && source_[position_] == '\n') {
      advance(1);
    }
  }

  void scan_comment() {
    const std::size_t close = source_.find("#}", position_);
    if (close == std::string_view::npos) refuse_here("the comment has no end");
    const char before = close > position_ ? source_[close - 1] : '\0';
    advance(close + 2 - position_);
    finish_block(before == '-' || before == '+' ? before : '\0');
  }

  // Matches `name` and the end of a block after `at`; on success `at` is behind the marker and `sign` that of the end.
  bool match_word_tag(std::string_view word, std::size_t& at, char& sign) const {
    std::size_t i = at;
    const auto blanks = [&] { i += source_.substr(i).size() - strip(source_.substr(i), Side::kLeft).size(); };
    blanks();
    if (!source_.substr(i).starts_with(word)) return false;
    i += word.size();
    blanks();
    sign = sign_at(source_, i);
    if (sign != '\0') ++i;
    if (!source_.substr(i).starts_with("%}")) return false;
    at = i + 2;
    return true;
  }

  bool scan_raw() {
    std::size_t at = position_;
    char sign = '\0';
    if (!match_word_tag("raw", at, sign) || sign == '+') return false;
    advance(at - position_);
    if (sign == '-') skip_space();
    text_starts_line_ = at_line_start_;
    for (std::size_t open = source_.find("{%", position_); open != std::string_view::npos; open = source_.find("{%", open + 1)) {
      const char open_sign = sign_at(source_, open + 2);
      std::size_t end = open + 2 + (open_sign != '\0' ? 1 : 0);
      char close_sign = '\0';
      if (!match_word_tag("endraw", end, close_sign)) continue;
      const std::string_view text = source_.substr(position_, open - position_);
      push_text(trim_before(text, open_sign, false));
      advance(end - position_);
      finish_block(close_sign);
      return true;
    }
    refuse_here("the raw block has no endraw");
  }

  void scan_tag(std::string_view close) {
    std::string brackets;
    while (true) {
      skip_space();
      if (position_ >= source_.size()) refuse_here("the tag has no end");
      if (brackets.empty()) {
        const char sign = rest().starts_with('-') || (rest().starts_with('+') && close == "%}") ? rest()[0] : '\0';
        if (rest().substr(sign != '\0' ? 1 : 0).starts_with(close)) {
          push(close == "}}" ? TokenKind::kOutputEnd : TokenKind::kBlockEnd, "");
          advance(close.size() + (sign != '\0' ? 1 : 0));
          if (close == "%}") return finish_block(sign);
          if (sign == '-') skip_space();
          return;
        }
      }
      scan_token(brackets);
    }
  }

  void scan_token(std::string& brackets) {
    const char c = rest()[0];
    if (is_digit(c)) return scan_number();
    if (is_name_start(c)) {
      std::size_t length = 1;
      while (length < rest().size() && is_name_part(rest()[length])) ++length;
      push(TokenKind::kName, std::string(rest().substr(0, length)));
      return advance(length);
    }
    if (c == '\'' || c == '"') return scan_string(c);
    static constexpr std::array<std::string_view, 26> kOperators = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[",
                                                                    "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ",", ";"};
    const auto* op = std::find_if(kOperators.begin(), kOperators.end(), [&](std::string_view o) { return rest().starts_with(o); });
    if (op == kOperators.end()) refuse_here(fmt::format("unexpected character {}", string_repr(first_character())));
    if (*op == "(" || *op == "[" || *op == "{") {
      brackets += c == '(' ? ')' : c == '[' ? ']' : '}';
    } else if (*op == ")" || *op == "]" || *op == "}") {
      if (brackets.empty() || brackets.back() != c) refuse_here(fmt::format("unexpected '{}'", *op));
      brackets.pop_back();
    }
    push(TokenKind::kOperator, std::string(*op));
    advance(op->size());
  }

  std::string_view first_character() const {
    std::size_t end = 0;
    next_code_point(rest(), end);
    return rest().substr(0, end);
  }

  // Digits with single underscores between them, from `at` on.
  static std::size_t digits_end(std::string_view text, std::size_t at) {
    if (at >= text.size() || !is_digit(text[at])) return at;
    while (at < text.size() && (is_digit(text[at]) || (text[at] == '_' && at + 1 < text.size() && is_digit(text[at + 1])))) ++at;
    return at;
  }

  void scan_number() {
    const std::string_view text = rest();
    std::size_t end = digits_end(text, 0);
    bool is_float = false;
    const bool after_dot = position_ > 0 && source_[position_ - 1] == '.';
    if (text.size() > 2 && text[0] == '0' && std::isalpha(static_cast<unsigned char>(text[1])) != 0 && (text[1] | 0x20) != 'e') {
      end = 2;
      while (end < text.size() && (std::isalnum(static_cast<unsigned char>(text[end])) != 0 || text[end] == '_')) ++end;
    } else if (!after_dot) {
      if (end < text.size() && text[end] == '.' && digits_end(text, end + 1) > end + 1) {
        end = digits_end(text, end + 1);
        is_float = true;
      }
      if (end < text.size() && (text[end] | 0x20) == 'e') {
        const std::size_t exponent = end + 1 + (end + 1 < text.size() && (text[end + 1] == '+' || text[end + 1] == '-') ? 1 : 0);
        if (digits_end(text, exponent) > exponent) {
          end = digits_end(text, exponent);
          is_float = true;
        }
      }
    }
    if (end < text.size() && is_name_start(text[end])) refuse_here("a number runs into a name");
    push(is_float ? TokenKind::kFloat : TokenKind::kInteger, std::string(text.substr(0, end)));
    Token& token = tokens_.back();
    try {
      const bool good = is_float ? parse_float(token.text, token.real) : parse_int(token.text, 0, token.integer);
      if (!good) refuse_here(fmt::format("'{}' is not a number", token.text));
    } catch (const Failure& failure) {
      refuse_here(failure.what());
    }
    advance(end);
  }

  void scan_string(char quote) {
    std::size_t end = 1;
    while (end < rest().size() && rest()[end] != quote) end += rest()[end] == '\\' ? 2 : 1;
    if (end >= rest().size()) refuse_here("the string has no end");
    push(TokenKind::kString, unescape(rest().substr(1, end - 1)));
    advance(end + 1);
  }

  // Hexadecimal escape of `digits` digits at `at`.
  char32_t hex_escape(std::string_view text, std::size_t at, std::size_t digits) const {
    char32_t c = 0;
    for (std::size_t i = at; i < at + digits; ++i) {
      if (i >= text.size() || std::isxdigit(static_cast<unsigned char>(text[i])) == 0) refuse_here("a hexadecimal escape is too short");
      const int digit = is_digit(text[i]) ? text[i] - '0' : (text[i] | 0x20) - 'a' + 10;
      c = c * 16 + static_cast<char32_t>(digit);
    }
    if (c > 0x10FFFF || (c >= 0xD800 && c <= 0xDFFF)) refuse_here("an escape is not a Unicode scalar value");
    return c;
  }

  std::string unescape(std::string_view text) const {
    static constexpr std::string_view kLetters = "ntrbfav\\'\"", kMeanings = "\n\t\r\b\f\a\v\\'\"";
    std::string out;
    for (std::size_t i = 0; i < text.size(); ++i) {
      if (text[i] != '\\') {
        out += text[i];
        continue;
      }
      const char c = text[++i];
      const std::size_t known = kLetters.find(c);
      if (known != std::string_view::npos) {
        out += kMeanings[known];
      } else if (c == '\n') {
        continue;
      } else if (c == 'x' || c == 'u' || c == 'U') {
        const std::size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : 8;
        append_code_point(out, hex_escape(text, i + 1, digits));
        i += digits;
      } else if (c >= '0' && c <= '7') {
        char32_t octal = 0;
        std::size_t used = 0;
        for (; used < 3 && i + used < text.size() && text[i + used] >= '0' && text[i + used] <= '7'; ++used) {
          octal = octal * 8 + static_cast<char32_t>(text[i + used] - '0');
        }
        append_code_point(out, octal);
        i += used - 1;
      } else if (c == 'N' || static_cast<unsigned char>(c) >= 0x80) {
        refuse_here("construct '\\N' or '\\' before a character beyond ASCII is not supported in a string");
      } else {
        out += '\\';
        out += c;
      }
    }
    return out;
  }

  std::string_view where_;
  std::string_view source_;
  std::size_t position_ = 0;
  int line_ = 1;
  bool at_line_start_ = true;     // the last character consumed was a newline
  bool text_starts_line_ = true;  // the text being scanned begins at the start of a line
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source, std::string_view where) {
  if (source.size() > kMaxSourceBytes)
    fail<LoadError>("{}: the template has {} bytes, at most {} are read", where, source.size(), kMaxSourceBytes);
  if (!valid_utf8(source)) fail<LoadError>("{}: the template is not valid UTF-8", where);
  const std::string text = normalise(source);
  return Lexer(text, where).run();
}

}  // namespace tetrad::jinja
