#include <fmt/format.h>

#include <CLI/CLI.hpp>
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
#include "cli/text_input.h"
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

  // False if a piped line was refused.
  bool loop() {
    const InterruptGuard guard;
    std::string line;
    bool warned = false;
    if (interactive_) say("/help lists the commands\n");
    while (true) {
      if (interactive_) say("> ");
      InterruptGuard::reset();
      const LineStatus status = reader_.read(line);
      if (status == LineStatus::kEnd || (status == LineStatus::kInterrupted && (warned || !interactive_))) break;
      warned = status == LineStatus::kInterrupted;
      if (warned) {
        say("\n(Ctrl-C again leaves)\n");
        continue;
      }
      if (line.find_first_not_of(" \t") == std::string::npos) continue;
      if (!take(line)) return !refused_;
    }
    if (interactive_) say("\n");
    return !refused_;
  }

 private:
  // False to leave. A line that cannot be honoured is taken back, and the next one read.
  bool take(const std::string& line) {
    try {
      check_utf8(line, "the line");
      if (line[0] == '/') return obey(line);
      answer(line);
    } catch (const InputError& error) {
      say("tetrad: error: {}\n", error.what());
      refused_ = !interactive_;
    } catch (const Error& error) {
      if (!interactive_) throw;
      say("tetrad: error: {}\n", error.what());
    }
    return true;
  }

  // False to leave.
  bool obey(const std::string& line) {
    const std::size_t space = line.find(' ');
    const std::string command = line.substr(0, space);
    if (command == "/exit" || command == "/quit") return false;
    if (command == "/help")
      write_error(kHelp);
    else if (command == "/reset")
      session_->reset();
    else if (command == "/system")
      session_->set_system(space == std::string::npos ? "" : line.substr(space + 1));
    else {
      const std::string nearest = nearest_name(command, {"/reset", "/system", "/help", "/exit"});
      say("unknown command {}{}\n", command, nearest.empty() ? ", /help lists them" : ": did you mean " + nearest + "?");
    }
    return true;
  }

  void answer(const std::string& question) {
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
      if (result.finish == FinishReason::kContext) say("(the context is full: /reset starts over)\n");
    } catch (const Error&) {
      if (interactive_) view.end();
      throw;
    }
  }

  ChatSession* session_;
  const Tokenizer* tokenizer_;
  LineReader reader_;
  bool interactive_, colour_, refused_ = false;
};

int chat(const ChatOptions& options) {
  constexpr int kExitBadInput = 2;
  check_utf8(options.system, "--system");
  const ModelFiles files = load_model_files(options.model);
  GenerationRequest request = make_request(options.sampling, files.generation, files.config.vocab_size);
  request.max_length = choose_max_length(options.model, files.config, 0);
  const Tokenizer tokenizer = load_tokenizer(options.model.directory);
  const ChatTemplate chat_template = ChatTemplate::load(options.model.directory);
  const std::unique_ptr<Backend> backend =
      load_backend(options.model, files.config, {.max_length = request.max_length, .num_slots = kChatSlots});
  StatePool pool(*backend);
  ChatSession session(pool, tokenizer, chat_template, request, options.chat_template);
  session.set_system(options.system);
  return Chat(session, tokenizer).loop() ? 0 : kExitBadInput;
}

}  // namespace

void add_chat(CLI::App& app, int& exit_code) {
  const auto options = std::make_shared<ChatOptions>();
  add_model_options(app, options->model);
  app.add_option("--system", options->system, "System message")->type_name("TEXT");
  add_template_options(app, options->chat_template);
  add_sampling_options(app, options->sampling);
  app.callback([options, &exit_code] { exit_code = chat(*options); });
}

}  // namespace tetrad::cli
