#pragma once
// Text and conversations from files and standard input, and the prompt they make.
#include <cstddef>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "cli/options.h"

namespace tetrad::cli {

inline constexpr std::size_t kMaxInputBytes = std::size_t{64} << 20;

// A file, or standard input for "-". Throws InputError if it cannot be read or is too large.
std::string read_text(const std::string& file);

// Throws InputError with the offset of the first byte that is not UTF-8.
void check_utf8(std::string_view bytes, std::string_view where);

// {"messages", "tools", "flags"}, or a bare list of messages. Throws InputError.
nlohmann::ordered_json read_conversation(const std::string& file);

// One question as a conversation.
nlohmann::ordered_json make_conversation(const std::string& system, const std::string& prompt);

// The variables that a chat template is rendered with: the conversation's, the switches of the command line over its flags, and a
// generation prompt unless the flags decide it. Throws InputError naming a part of a message that is not text.
nlohmann::ordered_json template_variables(const nlohmann::ordered_json& conversation, const TemplateOptions& options);

}  // namespace tetrad::cli
