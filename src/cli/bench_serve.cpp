#include "cli/bench_serve.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>

#include "base/error.h"
#include "cli/load_client.h"
#include "cli/load_report.h"
#include "cli/terminal.h"
#include "cli/value_checks.h"

namespace tetrad::cli {
namespace {

using Json = nlohmann::ordered_json;

struct LoadOptions {
  std::string base_url = "http://127.0.0.1:8000", endpoint = "/v1/completions", model, api_key, goodput;
  std::string input_length = "128", output_length = "64";  // N, or LEAST:MOST
  double request_rate = 0;                                 // a second; 0: --concurrency alone decides
  int concurrency = 0;                                     // 0: 1 without a rate, no limit with one
  int num_prompts = 32, shared_prefix = 0, turns = 1, warmup = 0;
  double timeout = 600, temperature = 0;
  std::uint64_t seed = 0;
  bool ignore_eos = false, json = false;

  bool is_chat() const { return endpoint.ends_with("/chat/completions"); }
};

struct LengthRange {
  int least = 1, most = 1;
};

LengthRange parse_length(const std::string& text, const char* flag) {
  LengthRange range;
  char end = 0;
  const int fields = std::sscanf(text.c_str(), "%7d:%7d%c", &range.least, &range.most, &end);
  if (fields == 1 && text.find(':') == std::string::npos) range.most = range.least;
  if ((fields != 1 && fields != 2) || (fields == 1 && text.find_first_not_of("0123456789") != std::string::npos) || range.least < 1 ||
      range.most < range.least || range.most > 1 << 20)
    fail<InputError>("{} {}: expected a number of tokens, or LEAST:MOST", flag, text);
  return range;
}

// Prompts and lengths: the same for the same seed, whatever the server does.
class Workload {
 public:
  explicit Workload(const LoadOptions& options)
      : options_(&options),
        input_(parse_length(options.input_length, "--input-len")),
        output_(parse_length(options.output_length, "--output-len")),
        random_(options.seed) {
    // Alike for all: what a system prompt is.
    for (int i = 0; i < options.shared_prefix; ++i) prefix_.push_back(token());
  }

  struct Turn {
    std::vector<int> ids;  // of the prompt, or of what this turn adds to the conversation
    int output = 1;
  };
  std::vector<Turn> conversation() {
    std::vector<Turn> turns(static_cast<std::size_t>(options_->turns));
    for (std::size_t t = 0; t < turns.size(); ++t) {
      if (t == 0) turns[t].ids = prefix_;
      for (int left = length(input_); left > 0; --left) turns[t].ids.push_back(token());
      turns[t].output = length(output_);
    }
    return turns;
  }
  double uniform() { return (static_cast<double>(random_() >> 11) + 0.5) * 0x1.0p-53; }

 private:
  // Ordinary pieces of text in any byte-level vocabulary.
  int token() { return 256 + static_cast<int>(uniform() * 744); }
  int length(LengthRange range) { return range.least + static_cast<int>(uniform() * (range.most - range.least + 1)); }

  const LoadOptions* options_;
  LengthRange input_, output_;
  std::mt19937_64 random_;
  std::vector<int> prefix_;
};

// Common words, most of them one token: where a prompt must be text its length is about what was asked for, and usage says what it was.
std::string words_of(const std::vector<int>& ids) {
  static constexpr const char* kWords[] = {"time", "year",  "people", "way",   "day",   "man",  "thing", "world", "life",  "hand",
                                           "part", "child", "eye",    "woman", "place", "work", "week",  "case",  "point", "company"};
  std::string text;
  for (const int id : ids) text += fmt::format(" {}", kWords[static_cast<std::size_t>(id) % std::size(kWords)]);
  return text;
}

class LoadRun {
 public:
  LoadRun(const LoadOptions& options, LoadClient& client, std::string model)
      : options_(&options), client_(&client), model_(std::move(model)), workload_(options) {}

  // The answers of all turns, in the order in which they ended.
  std::vector<LoadAnswer> run(int num_conversations) {
    answers_.clear();
    const double start = client_->now();
    double time = start;
    for (int i = 0; i < num_conversations; ++i) {
      auto talk = std::make_shared<Talk>();
      talk->turns = workload_.conversation();
      if (options_->request_rate > 0) {
        client_->at(time, [this, talk] { arrive(talk); });
        time -= std::log(workload_.uniform()) / options_->request_rate;
      } else {
        arrive(talk);
      }
    }
    client_->run();
    return std::exchange(answers_, {});
  }

 private:
  struct Talk {
    std::vector<Workload::Turn> turns;
    std::size_t next = 0;
    std::string text;               // completions of more than one turn: all so far
    Json messages = Json::array();  // chat
  };

  int room() const {
    if (options_->concurrency > 0) return options_->concurrency;
    return options_->request_rate > 0 ? std::numeric_limits<int>::max() : 1;
  }

  void arrive(std::shared_ptr<Talk> talk) {
    waiting_.push_back(std::move(talk));
    start_more();
  }

  void start_more() {
    while (running_ < room() && !waiting_.empty()) {
      const std::shared_ptr<Talk> talk = waiting_.front();
      waiting_.pop_front();
      ++running_;
      send_turn(talk);
    }
  }

  void send_turn(const std::shared_ptr<Talk>& talk) {
    const Workload::Turn& turn = talk->turns[talk->next];
    Json body = {{"model", model_},
                 {"max_tokens", turn.output},
                 {"stream", true},
                 {"stream_options", {{"include_usage", true}}},
                 {"temperature", options_->temperature}};
    if (options_->ignore_eos) body["ignore_eos"] = true;
    if (options_->is_chat()) {
      talk->messages.push_back({{"role", "user"}, {"content", words_of(turn.ids)}});
      body["messages"] = talk->messages;
    } else if (talk->turns.size() == 1) {
      body["prompt"] = turn.ids;
    } else {
      talk->text += words_of(turn.ids);
      body["prompt"] = talk->text;
    }
    client_->send({.path = options_->endpoint, .body = body.dump(), .api_key = options_->api_key},
                  [this, talk](LoadAnswer answer) { end_turn(talk, std::move(answer)); });
  }

  void end_turn(const std::shared_ptr<Talk>& talk, LoadAnswer answer) {
    talk->messages.push_back({{"role", "assistant"}, {"content", answer.text}});
    talk->text += answer.text;
    const bool good = answer.good();
    answer.text = {};
    answers_.push_back(std::move(answer));
    if (good && ++talk->next < talk->turns.size()) return send_turn(talk);  // a conversation ends with its first failure
    --running_;
    start_more();
  }

  const LoadOptions* options_;
  LoadClient* client_;
  std::string model_;
  Workload workload_;
  std::deque<std::shared_ptr<Talk>> waiting_;
  int running_ = 0;
  std::vector<LoadAnswer> answers_;
};

// The first model that the server names.
std::string served_model(LoadClient& client, const LoadOptions& options, const std::string& path) {
  LoadAnswer models;
  client.send({.method = "GET", .path = path, .body = {}, .api_key = options.api_key},
              [&](LoadAnswer answer) { models = std::move(answer); });
  client.run();
  if (!models.good()) fail<Error>("{}{}: {}: is a server there, and does it want another key?", options.base_url, path, models.error);
  const Json json = Json::parse(models.body, nullptr, false);
  if (json.is_object() && json.contains("data") && json["data"].is_array() && !json["data"].empty() && json["data"][0].is_object() &&
      json["data"][0].contains("id") && json["data"][0]["id"].is_string())
    return json["data"][0]["id"].get<std::string>();
  fail<Error>("{}{}: no list of models: name one with --model", options.base_url, path);
}

int bench_serve(LoadOptions options) {
  if (options.api_key.empty())
    if (const char* key = std::getenv("TETRAD_API_KEY"); key != nullptr) options.api_key = key;
  LoadAddress address = parse_base_url(options.base_url);
  // With or without the version, as clients have it.
  if (address.prefix.ends_with("/v1") && options.endpoint.starts_with("/v1/")) address.prefix.resize(address.prefix.size() - 3);
  const LoadGoal goal = parse_goodput(options.goodput);
  LoadClient client(std::move(address), options.timeout);
  const std::string model = options.model.empty() ? served_model(client, options, "/v1/models") : options.model;
  LoadRun load(options, client, model);
  if (options.warmup > 0) load.run(options.warmup);
  const double start = client.now();
  const std::vector<LoadAnswer> answers = load.run(options.num_prompts);
  const double seconds = client.now() - start;

  Json result = {{"benchmark", "serve"},
                 {"endpoint", options.endpoint},
                 {"model", model},
                 {"request_rate", options.request_rate},
                 {"concurrency", options.concurrency},
                 {"input_len", options.input_length},
                 {"output_len", options.output_length},
                 {"shared_prefix", options.shared_prefix},
                 {"turns", options.turns},
                 {"ignore_eos", options.ignore_eos},
                 {"seed", options.seed}};
  result.update(load_report(answers, seconds, goal));
  write_out(options.json ? result.dump(2) + "\n" : load_table(result));
  return result["completed"].get<int>() > 0 ? 0 : 1;
}

}  // namespace

void add_bench_serve(CLI::App& app, int& exit_code) {
  const auto options = std::make_shared<LoadOptions>();
  CLI::App* command = app.add_subcommand("serve", "Load on a server that speaks OpenAI's API; times of tokens and answers");
  command->add_option("--base-url", options->base_url, "Where it listens; http only")->type_name("URL")->capture_default_str();
  command->add_option("--endpoint", options->endpoint, "/v1/completions, with prompts of token ids, or /v1/chat/completions")
      ->type_name("PATH")
      ->capture_default_str();
  command->add_option("--model", options->model, "Name to ask for. Default: the first of /v1/models")->type_name("NAME");
  command->add_option("--api-key", options->api_key, "Default: the variable TETRAD_API_KEY")->type_name("KEY");
  command->add_option("-n,--num-prompts", options->num_prompts, "Requests; conversations with --turns")
      ->type_name("N")
      ->check(number_in(1, 1 << 20))
      ->capture_default_str();
  command->add_option("--request-rate", options->request_rate, "Arrivals a second, at random times (Poisson); 0: as --concurrency allows")
      ->type_name("R")
      ->check(number_in(0.0, 100000.0))
      ->capture_default_str();
  command
      ->add_option("--concurrency,--max-concurrency", options->concurrency, "Requests at a time; 0: one, or with a rate as many as arrive")
      ->type_name("N")
      ->check(number_in(0, 1 << 16))
      ->capture_default_str();
  command->add_option("--input-len,--random-input-len", options->input_length, "Tokens of a prompt, or LEAST:MOST")
      ->type_name("N")
      ->capture_default_str();
  command->add_option("--output-len,--random-output-len", options->output_length, "Tokens of an answer at most, or LEAST:MOST")
      ->type_name("N")
      ->capture_default_str();
  command->add_option("--shared-prefix", options->shared_prefix, "Tokens before every prompt that are the same in all")
      ->type_name("N")
      ->check(number_in(0, 1 << 20))
      ->capture_default_str();
  command->add_option("--turns", options->turns, "Requests of a conversation, each with all before it")
      ->type_name("N")
      ->check(number_in(1, 1024))
      ->capture_default_str();
  command->add_option("--warmup", options->warmup, "Requests before the ones that count")
      ->type_name("N")
      ->check(number_in(0, 1 << 20))
      ->capture_default_str();
  command->add_option("--goodput", options->goodput, "Limits that a good answer keeps: ttft:MS,itl:MS,tpot:MS,e2e:MS")->type_name("LIST");
  command->add_option("--temperature,--temp", options->temperature, "Of sampling")->type_name("T")->capture_default_str();
  command->add_option("--timeout", options->timeout, "Seconds that a request may take")
      ->type_name("S")
      ->check(number_in(1.0, 86400.0))
      ->capture_default_str();
  command->add_option("--seed", options->seed, "Of prompts, lengths and arrivals")->type_name("N")->capture_default_str();
  command->add_flag("--ignore-eos", options->ignore_eos, "Answers go on to their full length");
  command->add_flag("--json", options->json, "Print JSON");
  command->callback([options, &exit_code] { exit_code = bench_serve(*options); });
}

}  // namespace tetrad::cli
