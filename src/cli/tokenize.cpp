#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdio>
#include <iostream>
#include <iterator>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "cli/commands.h"
#include "text/tokenizer.h"

namespace tetrad::cli {
namespace {

struct TokenizeOptions {
  std::string model = TETRAD_DEFAULT_MODEL;
  std::string text;
  bool has_text = false;
  bool decode = false;
  bool json = false;
  bool no_added = false;
  bool skip_special = false;
};

std::string read_stdin() {
  std::string text{std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>()};
  if (std::cin.bad()) fail<InputError>("standard input cannot be read");
  return text;
}

// Ids separated by white space or commas, with or without the brackets of a JSON list.
std::vector<int> parse_ids(std::string_view text) {
  constexpr std::string_view kSeparators = " \t\r\n,[]";
  std::vector<int> ids;
  for (std::size_t begin = text.find_first_not_of(kSeparators); begin != std::string_view::npos;) {
    const std::size_t end = std::min(text.find_first_of(kSeparators, begin), text.size());
    const std::string_view word = text.substr(begin, end - begin);
    int id = 0;
    const auto [rest, error] = std::from_chars(word.data(), word.data() + word.size(), id);
    if (error != std::errc() || rest != word.data() + word.size()) {
      fail<InputError>("--decode: id {} is \"{}\"; expected an integer from 0 to {}", ids.size(), word.substr(0, 40),
                       std::numeric_limits<int>::max());
    }
    ids.push_back(id);
    begin = text.find_first_not_of(kSeparators, end);
  }
  return ids;
}

nlohmann::ordered_json describe(const Tokenizer& tokenizer, const std::vector<int>& ids) {
  nlohmann::ordered_json tokens = nlohmann::ordered_json::array();
  for (const int id : ids) tokens.push_back(tokenizer.decode(std::vector<int>{id}));
  return {{"ids", ids}, {"tokens", std::move(tokens)}};
}

void tokenize(const TokenizeOptions& options) {
  const Tokenizer tokenizer = Tokenizer::load(std::filesystem::path(options.model) / "tokenizer.json");
  const std::string input = options.has_text ? options.text : read_stdin();
  std::string output;
  if (options.decode) {
    const std::string text = tokenizer.decode(parse_ids(input), options.skip_special);
    output = options.json ? nlohmann::json{{"text", text}}.dump() : text;
  } else {
    const std::vector<int> ids = tokenizer.encode(input, !options.no_added);
    output = options.json ? describe(tokenizer, ids).dump() : fmt::format("{}", fmt::join(ids, " "));
  }
  // Decoded text is written as it is, so that its bytes can be compared; everything else is one line.
  if (!options.decode || options.json) output += '\n';
  if (std::fwrite(output.data(), 1, output.size(), stdout) != output.size() || std::fflush(stdout) != 0) {
    fail<Error>("standard output cannot be written");
  }
}

}  // namespace

void add_tokenize(CLI::App& app, int& exit_code) {
  const auto options = std::make_shared<TokenizeOptions>();
  app.add_option("-m,--model", options->model, "Checkpoint directory (its tokenizer.json is read)")->capture_default_str();
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
