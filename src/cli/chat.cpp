#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <string_view>

#include "base/error.h"
#include "cli/chat_session.h"
#include "cli/commands.h"
#include "cli/model_loading.h"
#include "cli/options.h"
#include "cli/report.h"
#include "cli/suggest.h"
#include "cli/terminal.h"
#include "text/chat_template.h"

namespace tetrad::cli {
namespace {

constexpr int kChatSlots = 3;  // the conversation, its save point, and one to move between them
constexpr std::string_view kDim = "\x1b[2m", kPlain = "\x1b[0m";
constexpr std::string_view kHelp =
    "/reset        start over\n"
    "/system TEXT  set the system message and start over\n"
    "/help         this list\n"
    "/exit         leave (as Ctrl-D, or Ctrl-C twice)\n"
    "Ctrl-C stops an answer; what was said of it stays in the conversation.\n";

struct ChatOptions {
  ModelOptions model;
  SamplingOptions sampling;
  TemplateOptions chat_template;
  std::string system;
};

// Shows one answer: thinking dimmed where there are colours, and nothing but text where there are none.
class AnswerView {
 public:
  AnswerView(const ChatSession& session, const Tokenizer& tokenizer, bool colour)
      : session_(&session), think_close_(tokenizer.added_token("</think>")), colour_(colour) {}

  void show(const GeneratedToken& token) {
    std::string out;
    if (first_ && session_->starts_thinking()) {
      if (colour_) out += kDim;
      dimmed_ = colour_;
      out += "<think>\n";
    }
    first_ = false;
    out += token.text;
    if (think_close_ && token.sampled.id == *think_close_) out += undim();
    if (!token.text.empty()) ends_line_ = token.text.ends_with('\n');
    if (!out.empty()) write_out(out);
  }
  void end() { write_out(undim() + (ends_line_ ? "" : "\n")); }

 private:
  std::string undim() { return std::exchange(dimmed_, false) ? std::string(kPlain) : std::string(); }

  const ChatSession* session_;
  std::optional<int> think_close_;
  bool colour_, dimmed_ = false, first_ = true, ends_line_ = false;
};

class Chat {
 public:
  Chat(ChatSession& session, const Tokenizer& tokenizer)
      : session_(&session), tokenizer_(&tokenizer), interactive_(is_terminal(Stream::kInput)), colour_(wants_colour()) {}

  void loop() {
    const InterruptGuard guard;
    std::string line;
    bool warned = false;
    if (interactive_) fmt::print(stderr, "/help lists the commands\n");
    while (true) {
      if (interactive_) fmt::print(stderr, "> ");
      std::fflush(stderr);
      InterruptGuard::reset();
      const LineStatus status = reader_.read(line);
      if (status == LineStatus::kEnd || (status == LineStatus::kInterrupted && (warned || !interactive_))) break;
      warned = status == LineStatus::kInterrupted;
      if (warned) {
        fmt::print(stderr, "\n(Ctrl-C again leaves)\n");
        continue;
      }
      if (line.find_first_not_of(" \t") == std::string::npos) continue;
      if (line[0] == '/' ? !obey(line) : !answer(line)) return;
    }
    if (interactive_) fmt::print(stderr, "\n");
  }

 private:
  // False to leave.
  bool obey(const std::string& line) {
    const std::size_t space = line.find(' ');
    const std::string command = line.substr(0, space);
    if (command == "/exit" || command == "/quit") return false;
    if (command == "/help")
      fmt::print(stderr, "{}", kHelp);
    else if (command == "/reset")
      session_->reset();
    else if (command == "/system")
      session_->set_system(space == std::string::npos ? "" : line.substr(space + 1));
    else {
      const std::string nearest = nearest_name(command, {"/reset", "/system", "/help", "/exit"});
      fmt::print(stderr, "unknown command {}{}\n", command, nearest.empty() ? ", /help lists them" : ": did you mean " + nearest + "?");
    }
    return true;
  }

  bool answer(const std::string& question) {
    AnswerView view(*session_, *tokenizer_, colour_);
    try {
      const GenerationResult result = session_->ask(
          question,
          [&](const GeneratedToken& token) {
            view.show(token);
            return !InterruptGuard::interrupted();
          },
          [] { return InterruptGuard::interrupted(); });
      view.end();
      if (interactive_) print_stats(result);
      if (result.finish == FinishReason::kContext) fmt::print(stderr, "(the context is full: /reset starts over)\n");
    } catch (const Error& error) {
      if (!interactive_) throw;
      view.end();
      fmt::print(stderr, "tetrad: error: {}\n", error.what());
    }
    return true;
  }

  ChatSession* session_;
  const Tokenizer* tokenizer_;
  LineReader reader_;
  bool interactive_, colour_;
};

void chat(const ChatOptions& options) {
  const ModelFiles files = load_model_files(options.model);
  GenerationRequest request = make_request(options.sampling, files.generation, files.config.vocab_size);
  request.max_length = choose_max_length(options.model, files.config, 0);
  const ChatTemplate chat_template = ChatTemplate::load(options.model.directory);
  const std::unique_ptr<Backend> backend =
      load_backend(options.model, files.config, {.max_length = request.max_length, .num_slots = kChatSlots});
  StatePool pool(*backend);
  ChatSession session(pool, files.tokenizer, chat_template, request, options.chat_template);
  session.set_system(options.system);
  Chat(session, files.tokenizer).loop();
}

}  // namespace

void add_chat(CLI::App& app, int&) {
  const auto options = std::make_shared<ChatOptions>();
  add_model_options(app, options->model);
  app.add_option("--system", options->system, "System message")->type_name("TEXT");
  add_template_options(app, options->chat_template);
  add_sampling_options(app, options->sampling);
  app.callback([options] { chat(*options); });
}

}  // namespace tetrad::cli
