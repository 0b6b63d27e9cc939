#include "cli/bench_grammar.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <vector>

#include "cli/model_loading.h"
#include "cli/options.h"
#include "cli/value_checks.h"
#include "engine/sampler.h"
#include "grammar/json_schema.h"
#include "grammar/token_masks.h"
#include "grammar/tool_calls.h"

namespace tetrad::cli {
namespace {

using grammar::GrammarPtr;
using grammar::Matcher;
using grammar::TokenMasks;
using grammar::Vocabulary;
using Json = nlohmann::ordered_json;
using SteadyClock = std::chrono::steady_clock;

struct GrammarBenchOptions {
  std::string directory;
  int synthetic_vocabulary = 0;  // ids; 0: the tokenizer of `directory`
  int walks = 5, tokens = 120;   // of random answers; tokens of each, at most
  bool json = false;
};

double microseconds_since(SteadyClock::time_point start) {
  return std::chrono::duration<double, std::micro>(SteadyClock::now() - start).count();
}

Json spread_of_times(std::vector<double> microseconds) {
  std::sort(microseconds.begin(), microseconds.end());
  const auto at = [&](double share) {
    return microseconds[static_cast<std::size_t>(share * static_cast<double>(microseconds.size() - 1))];
  };
  if (microseconds.empty()) return nullptr;
  return {{"p50", at(0.5)}, {"p99", at(0.99)}, {"max", microseconds.back()}, {"count", microseconds.size()}};
}

// Tokens as large vocabularies have them: bytes, words with and without a space before, parts of code, numbers, indentation, other scripts.
std::vector<std::string> made_up_tokens(int count) {
  std::vector<std::string> tokens;
  std::set<std::string> seen;
  const auto add = [&](std::string token) {
    if (static_cast<int>(tokens.size()) < count && !token.empty() && seen.insert(token).second) tokens.push_back(std::move(token));
  };
  for (int byte = 0; byte < 256; ++byte) add(std::string(1, static_cast<char>(byte)));
  for (int length = 2; length <= 128; ++length) {
    add(std::string(static_cast<std::size_t>(length), ' '));
    add(std::string(1, '\n').append(static_cast<std::size_t>(length), ' '));
  }
  std::mt19937 random(1);
  const auto pick = [&](std::string_view from) { return from[random() % from.size()]; };
  constexpr std::string_view kLetters = "eeeeeettttaaaoooiiinnnsssrrhhlldduccmfwypvbgkqjxz", kMarks = "\"\"\"':,{}[]()<>/=.;_-\\\n";
  while (static_cast<int>(tokens.size()) < count) {
    const auto kind = static_cast<unsigned>(random() % 100);
    std::string token;
    if (kind < 15) {
      for (std::size_t i = 1 + random() % 4; i > 0; --i) {
        const char32_t c = 0x4E00 + static_cast<char32_t>(random() % 0x5200);
        for (const unsigned part : {0xE0u | (c >> 12), 0x80u | ((c >> 6) & 0x3F), 0x80u | (c & 0x3F)}) token += static_cast<char>(part);
      }
    } else {
      if (kind < 60) token += ' ';
      for (std::size_t i = 2 + random() % 8; i > 0; --i) token += pick(kLetters);
      if (kind % 7 == 0 && token[0] != ' ') token[0] = static_cast<char>(token[0] - 'a' + 'A');
      if (kind >= 88)
        for (std::size_t i = 1 + random() % 3; i > 0; --i)
          token.insert(token.begin() + static_cast<std::ptrdiff_t>(random() % (token.size() + 1)), pick(kMarks));
    }
    add(std::move(token));
  }
  return tokens;
}

struct FormCase {
  const char* name;
  GrammarPtr (*compile)();
};

Json record_schema() {
  return Json::parse(R"({"type":"object","properties":{"title":{"type":"string"},"year":{"type":"integer","minimum":1900,"maximum":2100},
    "tags":{"type":"array","items":{"type":"string"}},"rating":{"type":"number"},"kind":{"enum":["film","series","short"]},
    "people":{"type":"array","items":{"type":"object","properties":{"name":{"type":"string","maxLength":100},"role":{"type":"string"}},"required":["name"]}}},
    "required":["title","year","tags"]})");
}

Json agent_tool() {
  Json schema = {{"type", "string"}, {"maxLength", 65536}};
  for (int depth = 0; depth < 12; ++depth) {
    Json values = Json::array();
    for (int i = 0; i < 200; ++i) values.push_back(fmt::format("value-{}-{}", depth, i));
    schema = {{"type", "object"},
              {"properties",
               {{"inner", schema},
                {"choice", {{"enum", values}}},
                {"pattern", {{"type", "string"}, {"pattern", "^[a-z]+-\\d+$"}}},
                {"tree", {{"$ref", "#/$defs/tree"}}}}},
              {"required", {"choice"}}};
  }
  schema["$defs"]["tree"] = {{"type", "object"},
                             {"properties", {{"children", {{"type", "array"}, {"items", {{"$ref", "#/$defs/tree"}}}}}}}};
  return schema;
}

const FormCase kForms[] = {
    {"json_object", [] { return grammar::compile_json_object(); }},
    {"record", [] { return grammar::compile_json_schema(record_schema()); }},
    {"agent tool, 12 deep", [] { return grammar::compile_json_schema(agent_tool()); }},
    {"200 optional properties",
     [] {
       Json schema = {{"type", "object"}};
       for (int i = 0; i < 200; ++i) schema["properties"][fmt::format("property_{}", i)] = {{"type", i % 2 == 0 ? "string" : "integer"}};
       return grammar::compile_json_schema(schema);
     }},
    {"regex", [] { return grammar::compile_regex("(yes|no), because [^\\n]{10,200}\\."); }},
    {"required call",
     [] {
       const Json schema = record_schema();
       return grammar::compile_required_calls({{"save", &schema, true, "tools"}}, {}, true);
     }},
    {"strict tool under auto",
     [] {
       const Json schema = record_schema();
       return grammar::compile_strict_calls({{"save", &schema, true, "tools"}}, {});
     }},
    // Made to be slow: nothing is plain text, and there are many ways to read it.
    {"hostile: all but q", [] { return grammar::compile_regex("[^q]*"); }},
    {"hostile: ambiguous", [] { return grammar::compile_regex("((.|..|...){17,40}x?){17,40}"); }},
    {"hostile: 1000 words", [] { return grammar::compile_regex("(([a-z ]{0,16}){0,60}[^a]?)*"); }},
};

// Random answers: the mask of every place, with what is cached by then, and then once more.
Json measure_form(const FormCase& form, const std::shared_ptr<const Vocabulary>& vocabulary, const GrammarBenchOptions& options) {
  const auto start = SteadyClock::now();
  const GrammarPtr compiled = form.compile();
  Json result = {{"form", form.name}, {"compile_us", microseconds_since(start)}, {"instructions", compiled->code.size()}};
  TokenMasks masks(vocabulary);
  const auto vocab_size = static_cast<std::size_t>(vocabulary->vocab_size());
  std::vector<double> first, again, advance, sample, sample_freely;
  std::vector<float> logits(vocab_size);
  std::mt19937 random(3);
  for (float& logit : logits) logit = static_cast<float>(random() % 2000) * 0.01f - 10.0f;
  SamplingParams params;
  params.temperature = 1.0;
  Sampler sampler(params, SampleableIds::all(static_cast<int>(vocab_size)), {});
  TokenMask mask(static_cast<int>(vocab_size));
  try {
    for (int walk = 0; walk < options.walks; ++walk) {
      Matcher matcher(compiled);
      for (int i = 0; i < options.tokens && !matcher.must_end(); ++i) {
        for (std::vector<double>* times : {&first, &again}) {
          mask.allow_all();
          const auto before = SteadyClock::now();
          masks.narrow(matcher, mask.words());
          times->push_back(microseconds_since(before));
        }
        if (mask.count() == 0) break;
        const auto sampling = SteadyClock::now();
        const int likely = sampler.sample(logits, i, &mask).id;
        sample.push_back(microseconds_since(sampling));
        const auto freely = SteadyClock::now();
        sampler.sample(logits, i, nullptr);
        sample_freely.push_back(microseconds_since(freely));
        std::vector<int> allowed;
        for (int id = static_cast<int>(random() % vocab_size), n = 0; n < static_cast<int>(vocab_size) && allowed.empty();
             ++n, id = (id + 1) % static_cast<int>(vocab_size))
          if (mask.allows(id)) allowed.push_back(id);
        const int id = i % 3 == 0 ? likely : allowed[0];
        const auto advancing = SteadyClock::now();
        matcher.accept(vocabulary->token_bytes(id));
        advance.push_back(microseconds_since(advancing));
      }
    }
  } catch (const grammar::GrammarError& error) {
    result["fails"] = error.what();
  }
  result["mask_first_us"] = spread_of_times(first);
  result["mask_again_us"] = spread_of_times(again);
  result["masked_sampling_us"] = spread_of_times(sample);
  result["free_sampling_us"] = spread_of_times(sample_freely);
  result["advance_us"] = spread_of_times(advance);
  result["masks_made"] = masks.counts().made;
  result["cache_bytes"] = masks.counts().bytes;
  return result;
}

void bench_grammar(const GrammarBenchOptions& options) {
  std::shared_ptr<const Vocabulary> vocabulary;
  const auto start = SteadyClock::now();
  if (options.synthetic_vocabulary > 0) {
    const std::vector<std::string> tokens = made_up_tokens(options.synthetic_vocabulary);
    vocabulary = std::make_shared<const Vocabulary>(std::vector<std::string_view>(tokens.begin(), tokens.end()), std::vector<int>{},
                                                    options.synthetic_vocabulary);
  } else {
    check_model_directory(options.directory);
    const Tokenizer tokenizer = Tokenizer::load(std::filesystem::path(options.directory) / "tokenizer.json");
    vocabulary = std::make_shared<const Vocabulary>(tokenizer, tokenizer.size());
  }
  Json result = {{"benchmark", "grammar"},
                 {"vocabulary", options.synthetic_vocabulary > 0 ? "synthetic" : options.directory},
                 {"vocab_size", vocabulary->vocab_size()},
                 {"tree_nodes", vocabulary->all().nodes.size()},
                 {"tree_nodes_not_plain", vocabulary->not_plain().nodes.size()},
                 {"vocabulary_ms", microseconds_since(start) * 1e-3},
                 {"forms", Json::array()}};
  for (const FormCase& form : kForms) result["forms"].push_back(measure_form(form, vocabulary, options));
  if (options.json) return fmt::print("{}\n", result.dump(2));
  fmt::print("vocabulary of {} ids, {} nodes, {} of them for text that is not plain; made in {:.0f} ms\n", vocabulary->vocab_size(),
             vocabulary->all().nodes.size(), vocabulary->not_plain().nodes.size(), result["vocabulary_ms"].get<double>());
  fmt::print("{:<26} {:>10} {:>30} {:>30} {:>24} {:>24}\n", "microseconds", "compile", "mask first p50/p99/max", "mask again p50/p99/max",
             "sampling p50/p99", "without a mask p50/p99");
  const auto number = [](const Json& spread, const char* key) { return spread.is_null() ? 0.0 : spread[key].get<double>(); };
  for (const Json& form : result["forms"]) {
    const Json &first = form["mask_first_us"], &again = form["mask_again_us"], &sample = form["masked_sampling_us"],
               &freely = form["free_sampling_us"];
    fmt::print("{:<26} {:>10.0f} {:>10.1f}{:>10.1f}{:>10.1f} {:>10.1f}{:>10.1f}{:>10.1f} {:>12.1f}{:>12.1f} {:>12.1f}{:>12.1f} {}\n",
               form["form"].get<std::string>(), form["compile_us"].get<double>(), number(first, "p50"), number(first, "p99"),
               number(first, "max"), number(again, "p50"), number(again, "p99"), number(again, "max"), number(sample, "p50"),
               number(sample, "p99"), number(freely, "p50"), number(freely, "p99"), form.value("fails", ""));
  }
}

}  // namespace

void add_bench_grammar(CLI::App& bench) {
  const auto options = std::make_shared<GrammarBenchOptions>();
  CLI::App* command = bench.add_subcommand("grammar", "Answers in a given form: compiling, masks, masked sampling");
  CLI::Option* directory = add_directory_option(*command, options->directory);
  command->add_option("--synthetic-vocabulary", options->synthetic_vocabulary, "Made-up tokens, so many, in place of the model's")
      ->excludes(directory)
      ->check(number_in(1000, 1 << 20));
  command->add_option("--walks", options->walks, "Random answers of each form")->capture_default_str()->check(number_in(1, 1000));
  command->add_option("--tokens", options->tokens, "Tokens of an answer, at most")->capture_default_str()->check(number_in(1, 100000));
  command->add_flag("--json", options->json, "Print JSON");
  command->callback([options] { bench_grammar(*options); });
}

}  // namespace tetrad::cli
