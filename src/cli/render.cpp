// tetrad render: the prompt that the checkpoint's chat template makes of a conversation.
#include <CLI/CLI.hpp>

#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <string>

#include "cli/commands.h"
#include "text/chat_template.h"
#include "text/json_bounded.h"

namespace tetrad::cli {

namespace {

constexpr std::size_t kMaxConversationBytes = 64u << 20;

std::string read_all(std::istream& stream, const std::string& name) {
  std::string text;
  char buffer[1 << 16];
  while (stream.read(buffer, sizeof(buffer)) || stream.gcount() > 0) {
    text.append(buffer, static_cast<std::size_t>(stream.gcount()));
    if (text.size() > kMaxConversationBytes) fail<InputError>("{}: more than {} bytes", name, kMaxConversationBytes);
  }
  if (stream.bad()) fail<InputError>("{}: cannot be read", name);
  return text;
}

std::string read_conversation(const std::string& path) {
  if (path == "-") return read_all(std::cin, "standard input");
  std::ifstream file(path, std::ios::binary);
  if (!file) fail<InputError>("{}: cannot be opened", path);
  return read_all(file, path);
}

struct Options {
  std::string model = TETRAD_DEFAULT_MODEL;
  std::string file;
};

void render_file(const Options& options) {
  const ChatTemplate chat_template = ChatTemplate::load(options.model);
  const std::string name = options.file == "-" ? "standard input" : options.file;
  const auto conversation = parse_json_bounded(read_conversation(options.file), name);
  const std::string prompt = chat_template.render(conversation_variables(conversation));
  if (std::fwrite(prompt.data(), 1, prompt.size(), stdout) != prompt.size() || std::fflush(stdout) != 0) {
    fail<Error>("standard output: cannot be written");
  }
}

}  // namespace

void add_render(CLI::App& app, int& exit_code) {
  const auto options = std::make_shared<Options>();
  app.add_option("-m,--model", options->model, "Directory of the checkpoint")->capture_default_str();
  app.add_option("file", options->file, R"(JSON file {"messages": [...], "tools": [...], "flags": {...}}, or - for standard input)")
      ->required();
  app.callback([options, &exit_code] {
    render_file(*options);
    exit_code = 0;
  });
}

}  // namespace tetrad::cli
