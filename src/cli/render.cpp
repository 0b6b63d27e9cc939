// tetrad render: the prompt that the checkpoint's chat template makes of a conversation.
#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "cli/commands.h"
#include "cli/model_loading.h"
#include "cli/options.h"
#include "cli/terminal.h"
#include "cli/text_input.h"
#include "text/chat_template.h"

namespace tetrad::cli {

void add_render(CLI::App& app, int&) {
  struct Options {
    std::string model, file;
  };
  const auto options = std::make_shared<Options>();
  add_directory_option(app, options->model);
  app.add_option("file", options->file, "JSON file {messages, tools, flags} or a list of messages; - reads standard input")->required();
  app.callback([options] {
    check_directory(options->model);
    const ChatTemplate chat_template = ChatTemplate::load(options->model);
    write_out(chat_template.render(conversation_variables(read_conversation(options->file))));
  });
}

}  // namespace tetrad::cli
