#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <optional>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/model_loading.h"
#include "cli/options.h"
#include "cli/report.h"
#include "cli/terminal.h"
#include "cli/text_input.h"
#include "cli/value_checks.h"
#include "text/chat_template.h"

namespace tetrad::cli {
namespace {

struct RunOptions {
  ModelOptions model;
  SamplingOptions sampling;
  TemplateOptions chat_template;
  std::optional<std::string> prompt = {}, messages = {}, ids = {};
  std::string system;
  bool raw = false;
  bool print_ids = false;
  bool special = false;
  std::optional<int> logprobs = {};
};

void check_sources(const RunOptions& options) {
  const int sources = options.prompt.has_value() + options.messages.has_value() + options.ids.has_value();
  if (sources != 1) fail<InputError>("exactly one of -p, --messages and --ids is needed, got {}", sources);
  if (options.raw && !options.prompt) fail<InputError>("--raw goes with -p: the chat template is skipped for its text");
  const bool templated = options.messages || (options.prompt && !options.raw);
  if (!templated && (options.chat_template.no_think || !options.chat_template.effort.empty() || !options.system.empty()))
    fail<InputError>("--no-think, --effort and --system are for the chat template, which --raw and --ids skip");
  if (options.messages && !options.system.empty())
    fail<InputError>("--system goes with -p: with --messages the file holds the system message");
}

// Ids in and ids out need no text; a tokenizer that is there still says which ids are tokens.
std::optional<Tokenizer> tokenizer_if_needed(const RunOptions& options) {
  const bool ids_only = options.ids && options.print_ids && options.sampling.stop.empty() && !options.logprobs;
  std::error_code code;
  if (ids_only && !std::filesystem::exists(std::filesystem::path(options.model.directory) / "tokenizer.json", code)) return std::nullopt;
  return load_tokenizer(options.model.directory);
}

std::vector<int> prompt_ids(const RunOptions& options, const std::optional<Tokenizer>& loaded) {
  if (options.ids) return read_token_ids(*options.ids, "--ids");
  const Tokenizer& tokenizer = loaded.value();
  const auto prompt_text = [&] {
    std::string text = *options.prompt == "-" ? read_text("-") : *options.prompt;
    check_utf8(text, "-p");
    return text;
  };
  if (options.raw) return tokenizer.encode(prompt_text());
  check_utf8(options.system, "--system");
  const ChatTemplate chat_template = ChatTemplate::load(options.model.directory);
  const nlohmann::ordered_json conversation =
      options.messages ? read_conversation(*options.messages) : make_conversation(options.system, prompt_text());
  return tokenizer.encode(chat_template.render(template_variables(conversation, options.chat_template)));
}

void run(const RunOptions& options) {
  check_sources(options);
  const ModelFiles files = load_model_files(options.model);
  GenerationRequest request = make_request(options.sampling, files.generation, files.config.vocab_size);
  request.sampling.logprobs = options.logprobs;
  request.skip_special = !options.special;
  const std::optional<Tokenizer> tokenizer = tokenizer_if_needed(options);
  request.prompt_ids = prompt_ids(options, tokenizer);
  const auto prompt_length = static_cast<int>(request.prompt_ids.size());
  const int needed = request.max_tokens > 0 ? std::min(request.max_tokens, files.config.max_positions) + prompt_length : prompt_length + 1;
  request.max_length = choose_max_length(options.model, files.config, needed);
  validate(request, files.config.vocab_size, files.config.max_positions);

  const std::unique_ptr<Backend> backend = load_backend(options.model, files.config, {.max_length = request.max_length, .num_slots = 1});
  StatePool pool(*backend);
  Generator generator = tokenizer ? Generator(pool, *tokenizer) : Generator(pool);
  SequenceState state(pool);
  bool first = true, ends_line = false;
  const GenerationResult result = generator.generate(state, request, [&](const GeneratedToken& token) {
    if (options.print_ids) {
      write_out(fmt::format("{}{}", first ? "" : " ", token.sampled.id));
    } else if (!token.text.empty()) {
      write_out(token.text);
      ends_line = token.text.ends_with('\n');
    }
    first = false;
    return true;
  });
  if (!ends_line) write_out("\n");
  if (options.logprobs) print_logprobs(result, *tokenizer);
  print_stats(result);
}

}  // namespace

void add_run(CLI::App& app, int&) {
  const auto options = std::make_shared<RunOptions>();
  add_model_options(app, options->model);
  app.add_option("-p,--prompt", options->prompt, "The question; - reads standard input")->type_name("TEXT");
  app.add_option("--messages", options->messages, "A conversation: {messages, tools, flags} or a list of messages; - reads standard input")
      ->type_name("FILE");
  app.add_option("--ids", options->ids, "The prompt as token ids: 1,2,3 or a file; - reads standard input")->type_name("LIST_OR_FILE");
  app.add_flag("--raw", options->raw, "Give the text of -p to the model as it is, without the chat template");
  app.add_option("--system", options->system, "System message before -p")->type_name("TEXT");
  add_template_options(app, options->chat_template);
  add_sampling_options(app, options->sampling);
  app.add_flag("--print-ids", options->print_ids, "Print the generated ids instead of the text");
  app.add_flag("--special", options->special, "Keep special tokens in the text");
  app.add_option("--logprobs", options->logprobs, "Report each token's log-probability and the N best on stderr")
      ->type_name("N")
      ->check(some_number());
  app.callback([options] { run(*options); });
}

}  // namespace tetrad::cli
