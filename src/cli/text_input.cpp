#include "cli/text_input.h"

#include <cstdio>
#include <filesystem>
#include <memory>
#include <system_error>

#include "base/error.h"
#include "text/chat_template.h"

namespace tetrad::cli {
namespace {

constexpr int kMaxDepth = 64;

using nlohmann::ordered_json;

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

ordered_json read_conversation(const std::string& file) {
  const std::string text = read_text(file);
  bool too_deep = false;
  const auto watch_depth = [&](int depth, ordered_json::parse_event_t, ordered_json&) {
    too_deep = too_deep || depth > kMaxDepth;
    return !too_deep;
  };
  ordered_json parsed;
  try {
    parsed = ordered_json::parse(text, watch_depth);
  } catch (const ordered_json::exception& error) {
    fail<InputError>("{}: not valid JSON: {}", file, error.what());
  }
  if (too_deep) fail<InputError>("{}: nested deeper than {} levels", file, kMaxDepth);
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
  if (!variables.contains("add_generation_prompt")) variables["add_generation_prompt"] = true;
  if (options.no_think) variables["enable_thinking"] = false;
  if (!options.effort.empty()) variables["reasoning_effort"] = options.effort;
  return variables;
}

}  // namespace tetrad::cli
