#include "cli/text_input.h"

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <system_error>

#include "base/error.h"
#include "text/chat_template.h"
#include "text/json_bounded.h"
#include "text/unicode.h"

namespace tetrad::cli {
namespace {

using nlohmann::ordered_json;

// A template may well have words for pictures, but the model is given text alone: it would answer as if it had seen them.
void refuse_other_than_text(const ordered_json& messages) {
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const auto content = messages[i].find("content");
    if (content == messages[i].end() || !content->is_array()) continue;
    for (std::size_t j = 0; j < content->size(); ++j) {
      const ordered_json& part = (*content)[j];
      const std::string type = part.value("type", "text");
      if (type != "text" || !part.contains("text"))
        fail<InputError>("messages[{}].content[{}]: only parts of type text with a text are read, got {}", i, j,
                         part.dump(-1, ' ', true).substr(0, 60));
    }
  }
}

}  // namespace

std::string read_text(const std::string& file) {
  const bool standard_input = file == "-";
  const std::string name = standard_input ? "standard input" : file;
  std::error_code code;
  if (!standard_input && std::filesystem::is_directory(file, code)) fail<InputError>("{}: is a directory, a file is needed", name);
  const auto close = [](std::FILE* stream) {
    if (stream != stdin) std::fclose(stream);
  };
  const std::unique_ptr<std::FILE, decltype(close)> stream(standard_input ? stdin : std::fopen(file.c_str(), "rb"), close);
  if (!stream) fail<InputError>("{}: cannot be read: {}", name, std::generic_category().message(errno));
  std::string text;
  char buffer[1 << 16];
  std::size_t count = 0;
  while ((count = std::fread(buffer, 1, sizeof buffer, stream.get())) > 0) {
    if (text.size() + count > kMaxInputBytes) fail<InputError>("{}: more than {} bytes", name, kMaxInputBytes);
    text.append(buffer, count);
  }
  if (std::ferror(stream.get()) != 0) fail<InputError>("{}: reading failed: {}", name, std::generic_category().message(errno));
  return text;
}

void check_utf8(std::string_view bytes, std::string_view where) {
  const std::size_t invalid = text::find_invalid_utf8(bytes);
  if (invalid != std::string_view::npos) fail<InputError>("{}: not UTF-8 at byte {}", where, invalid);
}

ordered_json read_conversation(const std::string& file) {
  ordered_json parsed = parse_json_bounded(read_text(file), file == "-" ? "standard input" : file);
  if (parsed.is_array()) return ordered_json{{"messages", std::move(parsed)}};
  return parsed;
}

ordered_json make_conversation(const std::string& system, const std::string& prompt) {
  ordered_json messages = ordered_json::array();
  if (!system.empty()) messages.push_back(ordered_json{{"role", "system"}, {"content", system}});
  messages.push_back(ordered_json{{"role", "user"}, {"content", prompt}});
  return ordered_json{{"messages", std::move(messages)}};
}

ordered_json template_variables(const ordered_json& conversation, const TemplateOptions& options) {
  ordered_json variables = conversation_variables(conversation);
  refuse_other_than_text(variables.at("messages"));
  if (!variables.contains("add_generation_prompt")) variables["add_generation_prompt"] = true;
  check_utf8(options.effort, "--effort");
  if (options.no_think) variables["enable_thinking"] = false;
  if (!options.effort.empty()) variables["reasoning_effort"] = options.effort;
  return variables;
}

}  // namespace tetrad::cli
