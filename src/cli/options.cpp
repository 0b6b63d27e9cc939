#include "cli/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <filesystem>
#include <limits>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "cli/default_model.h"
#include "cli/text_input.h"
#include "cli/value_checks.h"
#include "engine/stop_strings.h"

namespace tetrad::cli {
namespace {

std::pair<int, double> parse_bias(const std::string& text) {
  const std::size_t colon = text.find_first_of(":=");
  int id = 0;
  double bias = 0;
  const char* end = text.data() + text.size();
  bool has_id = false;
  if (colon != std::string::npos) {
    const auto [stop, error] = std::from_chars(text.data(), text.data() + colon, id);
    has_id = error == std::errc() && stop == text.data() + colon;
  }
  if (has_id) {
    const auto [stop, error] = std::from_chars(text.data() + colon + 1, end, bias);
    if (error == std::errc() && stop == end) return {id, bias};
  }
  fail<InputError>("--logit-bias must be ID:BIAS, for example 42:-5, got '{}'", text);
}

}  // namespace

CLI::Option* add_directory_option(CLI::App& app, std::string& directory) {
  directory = default_model_directory();
  return app.add_option("-m,--model,--model-path", directory, "Checkpoint directory")->type_name("DIR")->default_str("tetrad-tiny");
}

void add_device_options(CLI::App& app, ModelOptions& options) {
  app.add_option("--device", options.device, "auto, cpu or cuda:N")->type_name("NAME")->capture_default_str();
  app.add_option("-t,--threads", options.threads, "Threads; 0: all")
      ->type_name("N")
      ->check(number_in(0, kMaxThreads))
      ->capture_default_str();
}

void add_model_options(CLI::App& app, ModelOptions& options) {
  add_directory_option(app, options.directory);
  add_device_options(app, options);
  app.add_option("-c,--max-model-len,--context-length,--ctx-size,--max-context", options.max_model_len,
                 "Context in tokens, prompt and answer together: a number, 32k, or auto")
      ->type_name("N")
      ->capture_default_str();
}

void add_sampling_options(CLI::App& app, SamplingOptions& options) {
  app.add_option("-n,--max-tokens,--max-new-tokens,--n-predict", options.max_tokens,
                 "Tokens to generate at most; default: until the context is full")
      ->type_name("N")
      ->check(some_number());
  app.add_option("--temp,--temperature", options.temperature, "0: greedy")->type_name("T")->check(some_number());
  app.add_option("--top-k", options.top_k, "Keep the K best; 0 or -1: all")->type_name("K")->check(some_number());
  app.add_option("--top-p", options.top_p, "Keep the best that together reach this probability")->type_name("P")->check(some_number());
  app.add_option("--min-p", options.min_p, "Keep what has this share of the best one's probability")->type_name("P")->check(some_number());
  app.add_option("--repetition-penalty,--repeat-penalty", options.repetition_penalty, "1: off")->type_name("X")->check(some_number());
  app.add_option("--presence-penalty", options.presence_penalty, "0: off")->type_name("X")->check(some_number());
  app.add_option("--frequency-penalty", options.frequency_penalty, "0: off")->type_name("X")->check(some_number());
  app.add_option("--logit-bias", options.logit_bias, "Added to the logit of a token; may be repeated")
      ->type_name("ID:BIAS")
      ->expected(1)
      ->take_all();
  app.add_option("--seed", options.seed, "The same seed gives the same answer")->type_name("S")->capture_default_str();
  app.add_flag("--greedy", options.greedy, "The likeliest token every time, as --temp 0");
  app.add_option("--stop", options.stop, "End the answer before this text; may be repeated")->type_name("TEXT")->expected(1)->take_all();
  app.add_flag("--include-stop", options.include_stop, "Keep the stop text in the answer");
}

GenerationRequest make_request(const SamplingOptions& options, const GenerationConfig& defaults, int vocab_size) {
  GenerationRequest request;
  request.sampling = defaults.sampling;
  request.stop_ids = defaults.stop_ids;
  SamplingParams& sampling = request.sampling;
  if (options.temperature) sampling.temperature = *options.temperature;
  if (options.greedy && options.temperature && *options.temperature != 0)
    fail<InputError>("--greedy is --temp 0 and goes without --temp {}", *options.temperature);
  if (options.greedy) sampling.temperature = 0;
  if (options.top_k) sampling.top_k = *options.top_k;
  if (options.top_p) sampling.top_p = *options.top_p;
  if (options.min_p) sampling.min_p = *options.min_p;
  if (options.repetition_penalty) sampling.repetition_penalty = *options.repetition_penalty;
  if (options.presence_penalty) sampling.presence_penalty = *options.presence_penalty;
  if (options.frequency_penalty) sampling.frequency_penalty = *options.frequency_penalty;
  for (const std::string& bias : options.logit_bias) sampling.logit_bias.push_back(parse_bias(bias));
  sampling.seed = parse_seed(options.seed);
  if (options.max_tokens && *options.max_tokens < 1) fail<InputError>("--max-tokens must be at least 1, got {}", *options.max_tokens);
  request.max_tokens = options.max_tokens.value_or(0);
  request.stop_strings = options.stop;
  request.include_stop = options.include_stop;
  validate(sampling, vocab_size);
  const StopStrings checks_its_strings(request.stop_strings, request.include_stop);
  return request;
}

void add_template_options(CLI::App& app, TemplateOptions& options) {
  app.add_flag("--no-think", options.no_think, "Answer without thinking first");
  app.add_option("--effort,--reasoning-effort", options.effort, "How hard to think, in the words of the chat template")->type_name("LEVEL");
}

std::uint64_t parse_seed(const std::string& text) {
  std::uint64_t seed = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, seed);  // takes no sign
  if (error != std::errc() || stop != end)
    fail<InputError>("--seed must be a whole number from 0 to {}, got '{}'", std::numeric_limits<std::uint64_t>::max(), text);
  return seed;
}

int parse_token_count(const std::string& text, const char* flag) {
  std::int64_t count = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, count);
  std::int64_t factor = 1;
  bool known = error == std::errc() && stop != text.data();
  if (known && stop + 1 == end && (*stop == 'k' || *stop == 'K'))
    factor = 1 << 10;
  else if (known && stop + 1 == end && (*stop == 'm' || *stop == 'M'))
    factor = 1 << 20;
  else
    known = known && stop == end;
  constexpr std::int64_t kLargest = std::numeric_limits<int>::max();
  if (!known || count < 1 || count > kLargest / factor)
    fail<InputError>("{} must be a number of tokens such as 4096 or 32k, between 1 and {}, got '{}'", flag, kLargest, text);
  return static_cast<int>(count * factor);
}

std::vector<int> parse_token_ids(const std::string& text, const std::string& where) {
  constexpr std::string_view kSeparators = " \t\r\n,[]";
  std::vector<int> ids;
  bool owes_id = false;  // a comma was read, and no id after it
  for (std::size_t begin = 0; begin < text.size();) {
    if (text[begin] == ',') {
      if (owes_id || ids.empty()) fail<InputError>("{}: token {} is missing: a comma with no id before it", where, ids.size());
      owes_id = true;
    }
    if (kSeparators.find(text[begin]) != std::string_view::npos) {
      ++begin;
      continue;
    }
    const std::size_t end = std::min(text.find_first_of(kSeparators, begin), text.size());
    int id = 0;
    const auto [stop, error] = std::from_chars(text.data() + begin, text.data() + end, id);
    if (error != std::errc() || stop != text.data() + end || id < 0) {
      constexpr std::size_t kShown = 40;
      fail<InputError>("{}: token {} must be a whole number from 0 to {}, got '{}'", where, ids.size(), std::numeric_limits<int>::max(),
                       text.substr(begin, std::min(end - begin, kShown)));
    }
    ids.push_back(id);
    owes_id = false;
    begin = end;
  }
  if (ids.empty()) fail<InputError>("{}: no token ids in it", where);
  if (owes_id) fail<InputError>("{}: token {} is missing: a comma with no id after it", where, ids.size());
  return ids;
}

std::vector<int> read_token_ids(const std::string& list_or_file, const char* flag) {
  if (list_or_file == "-") return parse_token_ids(read_text("-"), fmt::format("{}: standard input", flag));
  std::error_code code;
  if (std::filesystem::exists(list_or_file, code)) return parse_token_ids(read_text(list_or_file), list_or_file);
  // A list starts with a number; the name of a file rarely is one as a whole.
  const std::string first = list_or_file.substr(0, list_or_file.find_first_of(" ,"));
  constexpr std::string_view kOfNames = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_/";
  if (first.find_first_of(kOfNames) != std::string::npos)
    fail<InputError>("{} {}: no such file, and no list of ids such as 1,2,3", flag, list_or_file);
  return parse_token_ids(list_or_file, flag);
}

}  // namespace tetrad::cli
