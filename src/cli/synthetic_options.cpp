#include "cli/synthetic_options.h"

#include <CLI/CLI.hpp>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "cli/default_model.h"
#include "cli/value_checks.h"
#include "io/checkpoint.h"
#include "io/json_file.h"
#include "model/load_weights.h"
#include "model/weights_table.h"

namespace tetrad::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPublished = "qwen3.8-flash-next";
constexpr std::string_view kBench = "bench-1b";

// A model for measuring a CPU: the published geometry layer by layer, 1.07 billion active parameters, 3.0 GB in BF16.
SyntheticSize bench_size() {
  SyntheticSize size;
  size.layers = 8;
  size.experts = 16;
  size.experts_per_token = 8;
  size.vocab_size = 49152;
  size.ngram_vocab_base = 20000;
  return size;
}

nlohmann::json base_config(const SyntheticOptions& options) {
  const std::string& like = options.like;
  if (like == kPublished || like == kBench) return parse_json(published_config_text(), "the published config");
  if (like == "tetrad-tiny") return read_json_file(fs::path(default_model_directory()) / "config.json");
  if (!fs::exists(like))
    fail<InputError>("{}: expected {}, {}, tetrad-tiny or a config.json, got \"{}\"", options.name_flag, kPublished, kBench, like);
  return read_json_file(fs::is_directory(like) ? fs::path(like) / "config.json" : fs::path(like));
}

SyntheticSize merged(const SyntheticSize& given, SyntheticSize preset) {
  const auto take = [](auto& slot, const auto& value) {
    if (value) slot = value;
  };
  preset.scale = given.scale;
  take(preset.layers, given.layers);
  take(preset.experts, given.experts);
  take(preset.experts_per_token, given.experts_per_token);
  take(preset.hidden_size, given.hidden_size);
  take(preset.moe_width, given.moe_width);
  take(preset.vocab_size, given.vocab_size);
  take(preset.ngram_vocab_base, given.ngram_vocab_base);
  return preset;
}

bool wants_fp8(const std::vector<std::string>& weights) {
  bool fp8 = false;
  for (const auto& name : weights) {
    if (name != "bf16" && name != "fp8") fail<InputError>("--weights: expected bf16, fp8 or bf16,fp8, got \"{}\"", name);
    fp8 = fp8 || name == "fp8";
  }
  return fp8;
}

template <class T>
CLI::Option* add_size(CLI::App& command, const std::string& flag, std::optional<T>& slot, const std::string& text) {
  return command
      .add_option_function<T>(
          flag, [&slot](const T& value) { slot = value; }, text)
      ->check(whole_number(1));
}

}  // namespace

std::vector<CLI::Option*> add_synthetic_options(CLI::App& app, SyntheticOptions& options, const char* name_flag) {
  options.name_flag = name_flag;
  app.add_option(name_flag, options.like, "qwen3.8-flash-next, bench-1b (8 of its layers, 3 GB), tetrad-tiny, or a config.json")
      ->capture_default_str();
  SyntheticSize& size = options.size;
  return {
      app.add_option("--weights", options.weights, "bf16, or fp8 for experts and n-gram table in FP8 and the rest in BF16")->delimiter(','),
      app.add_option("--seed", options.seed, "The same seed gives the same bytes")->capture_default_str()->check(whole_number(0)),
      app.add_option("--scale", size.scale, "Multiplies widths, heads, experts, vocabulary and table")
          ->capture_default_str()
          ->check(some_number()),
      add_size(app, "--layers", size.layers, "Number of layers; their kinds repeat the pattern"),
      add_size(app, "--experts", size.experts, "Number of routed experts"),
      add_size(app, "--experts-per-token", size.experts_per_token, "Routed experts of one token"),
      add_size(app, "--hidden", size.hidden_size, "Hidden size, and the n-gram embedding's"),
      add_size(app, "--moe-width", size.moe_width, "Intermediate size of routed and shared experts"),
      add_size(app, "--vocab", size.vocab_size, "Vocabulary size"),
      add_size(app, "--ngram-base", size.ngram_vocab_base, "Least rows of an n-gram head (16 heads of this size make the table)"),
      app.add_flag("--mtp", options.mtp, "Keep the draft head"),
      app.add_flag("--vision", options.vision, "Keep the vision tower"),
  };
}

nlohmann::json synthetic_json(const SyntheticOptions& options) {
  const bool fp8 = wants_fp8(options.weights);
  const SyntheticSize size = merged(options.size, options.like == kBench ? bench_size() : SyntheticSize{});
  return synthetic_config(base_config(options), size, fp8, options.mtp, options.vision);
}

ModelWeights synthetic_weights(const SyntheticOptions& options, const Config& config, std::uint64_t largest) {
  const auto expected = expected_tensors(config, published_layout(config));
  std::vector<CheckpointTensor> tensors;
  std::map<std::string_view, const ExpectedTensor*> by_name;
  for (const ExpectedTensor& t : expected) {
    tensors.push_back({.name = t.name, .dtype = t.dtype, .shape = t.shape, .data = nullptr, .num_bytes = t.num_bytes, .file = -1});
    by_name[t.name] = &t;
  }
  const auto fill = [&](const CheckpointTensor& tensor, std::span<std::byte> bytes) {
    fill_synthetic(*by_name.at(tensor.name), config, options.seed, 0, bytes);
  };
  return load_weights(Checkpoint::in_memory(std::move(tensors), fill, largest), config);
}

}  // namespace tetrad::cli
