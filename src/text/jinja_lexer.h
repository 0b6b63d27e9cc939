#pragma once
// Cuts a template into text and the tokens of its tags, with trim_blocks and lstrip_blocks on and one trailing newline dropped, as the
// transformers library configures Jinja2.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "text/jinja_value.h"

namespace tetrad::jinja {

enum class TokenKind : std::uint8_t {
  kText,
  kOutputBegin,
  kOutputEnd,
  kBlockBegin,
  kBlockEnd,
  kName,
  kString,
  kInteger,
  kFloat,
  kOperator,
  kEnd
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  int line = 1;
  std::string text;  // text between tags, name, operator, or the decoded string
  Int integer = 0;
  double real = 0.0;

  bool is(std::string_view op) const { return kind == TokenKind::kOperator && text == op; }
  bool is_name(std::string_view name) const { return kind == TokenKind::kName && text == name; }
};

// Throws LoadError "WHERE:LINE: ..." for a malformed tag, string, number or character.
std::vector<Token> tokenize(std::string_view source, std::string_view where);

[[noreturn]] void refuse_template(std::string_view where, int line, std::string_view message);

}  // namespace tetrad::jinja
