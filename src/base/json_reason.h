#pragma once
// What a JSON library's exception says, without the library's own name for it.
#include <exception>
#include <optional>
#include <string_view>

namespace tetrad {

// "[json.exception.parse_error.101] parse error at line 1 ..." without the brackets. The text belongs to `error`.
inline std::string_view json_reason(const std::exception& error) {
  const std::string_view message = error.what();
  const std::size_t bracket = message.find("] ");
  return message.starts_with("[json.exception.") && bracket != std::string_view::npos ? message.substr(bracket + 2) : message;
}

// JSON holds no NUL byte, but the library takes one for the end of the text and would leave the rest unread. Offset of the first.
inline std::optional<std::size_t> nul_byte(std::string_view text) {
  const std::size_t at = text.find('\0');
  return at == std::string_view::npos ? std::nullopt : std::optional(at);
}

}  // namespace tetrad
