#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/model_loading.h"
#include "cli/options.h"
#include "cli/terminal.h"
#include "cli/text_input.h"
#include "text/tokenizer.h"

namespace tetrad::cli {
namespace {

struct TokenizeOptions {
  std::string model;
  std::string text;
  bool has_text = false;
  bool decode = false;
  bool json = false;
  bool no_added = false;
  bool skip_special = false;
};

nlohmann::ordered_json describe(const Tokenizer& tokenizer, const std::vector<int>& ids) {
  nlohmann::ordered_json tokens = nlohmann::ordered_json::array();
  for (const int id : ids) tokens.push_back(tokenizer.decode(std::vector<int>{id}));
  return {{"ids", ids}, {"tokens", std::move(tokens)}};
}

void tokenize(const TokenizeOptions& options) {
  if (options.skip_special && !options.decode)
    fail<InputError>("--skip-special goes with --decode: it leaves special tokens out of the text");
  if (options.no_added && options.decode) fail<InputError>("--no-added goes without --decode: it changes how text becomes ids");
  check_directory(options.model);
  const Tokenizer tokenizer = load_tokenizer(options.model);
  const std::string input = options.has_text ? options.text : read_text("-");
  std::string output;
  if (options.decode) {
    const bool blank = input.find_first_not_of(" \t\r\n") == std::string::npos;
    const std::string text = tokenizer.decode(blank ? std::vector<int>{} : parse_token_ids(input, "--decode"), options.skip_special);
    output = options.json ? nlohmann::json{{"text", text}}.dump() : text;
  } else {
    const std::vector<int> ids = tokenizer.encode(input, !options.no_added);
    output = options.json ? describe(tokenizer, ids).dump() : fmt::format("{}", fmt::join(ids, " "));
  }
  // Decoded text is written as it is, so that its bytes can be compared; everything else is one line.
  if (!options.decode || options.json) output += '\n';
  write_out(output);
}

}  // namespace

void add_tokenize(CLI::App& app, int& exit_code) {
  const auto options = std::make_shared<TokenizeOptions>();
  add_directory_option(app, options->model)->description("Checkpoint directory (its tokenizer.json is read)");
  auto* text = app.add_option("text", options->text, "The text, or the ids with --decode; standard input when absent");
  app.add_flag("--decode", options->decode, "Ids, separated by spaces or commas, to text");
  app.add_flag("--json", options->json, "Write JSON: {\"ids\", \"tokens\"}, or {\"text\"} with --decode");
  app.add_flag("--no-added", options->no_added, "Encode the text of added tokens as ordinary text");
  app.add_flag("--skip-special", options->skip_special, "With --decode: leave special tokens out");
  app.callback([options, text, &exit_code] {
    options->has_text = text->count() > 0;
    tokenize(*options);
    exit_code = 0;
  });
}

}  // namespace tetrad::cli
