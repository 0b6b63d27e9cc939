#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "cli/commands.h"
#include "io/checkpoint.h"
#include "io/json_file.h"
#include "io/safetensors_writer.h"
#include "model/load_weights.h"
#include "model/synthetic.h"

namespace tetrad::cli {
namespace {

namespace fs = std::filesystem;

struct SynthOptions {
  std::string like = "tetrad-tiny";
  std::vector<std::string> weights{"bf16"};
  std::string out;
  std::uint64_t seed = 1;
  std::uint64_t shard_mib = 512;
  bool mtp = false, vision = false, flat = false;
  SyntheticSize size;
};

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

nlohmann::json base_config(const std::string& like) {
  if (like == kPublished || like == kBench) return parse_json(published_config_text(), "the published config");
  if (like == "tetrad-tiny") return read_json_file(fs::path(TETRAD_DEFAULT_MODEL) / "config.json");
  if (!fs::exists(like)) fail<InputError>("--like: expected {}, {}, tetrad-tiny or a config.json, got \"{}\"", kPublished, kBench, like);
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

void write_text(const fs::path& path, const std::string& text) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out << text;
  out.close();
  if (!out) fail<InputError>("{}: cannot be written", path.string());
}

// Cuts the tensors into shards of about shard_bytes; within a shard wide element types come first, so that all lie aligned.
std::vector<std::vector<ExpectedTensor>> plan_shards(std::vector<ExpectedTensor> tensors, std::uint64_t shard_bytes) {
  std::vector<std::vector<ExpectedTensor>> shards(1);
  std::uint64_t used = 0;
  for (auto& tensor : tensors) {
    if (used > 0 && used + tensor.num_bytes > shard_bytes) {
      shards.emplace_back();
      used = 0;
    }
    used += tensor.num_bytes;
    shards.back().push_back(std::move(tensor));
  }
  for (auto& shard : shards)
    std::stable_sort(shard.begin(), shard.end(), [](const auto& a, const auto& b) { return dtype_size(a.dtype) > dtype_size(b.dtype); });
  return shards;
}

void write_shard(const fs::path& path, const std::vector<ExpectedTensor>& tensors, const Config& config, std::uint64_t seed) {
  constexpr std::uint64_t kPieceBytes = std::uint64_t{8} << 20;
  std::vector<TensorSpec> specs;
  for (const auto& tensor : tensors) specs.push_back({tensor.name, tensor.dtype, tensor.shape});
  SafetensorsWriter writer(path, specs, {{"format", "pt"}});
  std::vector<std::byte> piece;
  for (const auto& tensor : tensors) {
    for (std::uint64_t offset = 0; offset < tensor.num_bytes; offset += piece.size()) {
      piece.resize(std::min(kPieceBytes, tensor.num_bytes - offset));
      fill_synthetic(tensor, config, seed, static_cast<std::int64_t>(offset / dtype_size(tensor.dtype)), piece);
      writer.write(piece);
    }
  }
  writer.finish();
}

bool wants_fp8(const std::vector<std::string>& weights) {
  bool fp8 = false;
  for (const auto& name : weights) {
    if (name != "bf16" && name != "fp8") fail<InputError>("--weights: expected bf16, fp8 or bf16,fp8, got \"{}\"", name);
    fp8 = fp8 || name == "fp8";
  }
  return fp8;
}

void check_out(const fs::path& out) {
  std::error_code error;
  fs::create_directories(out, error);
  if (error) fail<InputError>("--out {}: cannot be made: {}", out.string(), error.message());
  for (const auto& entry : fs::directory_iterator(out))
    if (entry.path().filename().string().starts_with("model"))
      fail<InputError>("--out {}: already holds {}; give an empty directory", out.string(), entry.path().filename().string());
}

void synth(const SynthOptions& options) {
  const bool fp8 = wants_fp8(options.weights);
  const fs::path out = options.out;
  const SyntheticSize size = merged(options.size, options.like == kBench ? bench_size() : SyntheticSize{});
  nlohmann::json json = synthetic_config(base_config(options.like), size, fp8, options.mtp, options.vision);
  if (options.flat) {
    nlohmann::json text = json.value("text_config", json);
    text["model_type"] = "qwen4_exp_text";
    text["architectures"] = {"Qwen4ExpForCausalLM"};
    if (json.contains("tie_word_embeddings")) text["tie_word_embeddings"] = json["tie_word_embeddings"];
    if (json.contains("quantization_config")) text["quantization_config"] = json["quantization_config"];
    json = text;
  }
  const Config config = parse_config(json, "synthetic config");
  const auto tensors = expected_tensors(config, published_layout(config));
  std::uint64_t total_bytes = 0;
  for (const auto& tensor : tensors) total_bytes += tensor.num_bytes;
  check_out(out);
  fmt::print(stderr, "{}: {} tensors, {:.2f} GB, {:.2f} billion parameters active per token\n", out.string(), tensors.size(),
             static_cast<double>(total_bytes) / 1e9, static_cast<double>(active_parameters(config)) / 1e9);

  const auto shards = plan_shards(tensors, std::max<std::uint64_t>(1, options.shard_mib) << 20);
  nlohmann::json index = {{"metadata", {{"total_size", total_bytes}}}, {"weight_map", nlohmann::json::object()}};
  for (std::size_t i = 0; i < shards.size(); ++i) {
    const std::string name = fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
    write_shard(out / name, shards[i], config, options.seed);
    for (const auto& tensor : shards[i]) index["weight_map"][tensor.name] = name;
    fmt::print(stderr, "wrote {}\n", name);
  }
  write_text(out / "model.safetensors.index.json", index.dump(2) + "\n");
  write_text(out / "config.json", json.dump(2) + "\n");
  const nlohmann::json eos = config.ple_eos_token >= 0 ? nlohmann::json(config.ple_eos_token) : nlohmann::json();
  write_text(out / "generation_config.json", nlohmann::json{{"do_sample", false}, {"eos_token_id", eos}}.dump(2) + "\n");
  (void)load_weights(Checkpoint::open(out), load_config(out / "config.json"));
}

template <class T>
void add_size(CLI::App& command, const std::string& flag, std::optional<T>& slot, const std::string& text) {
  command
      .add_option_function<T>(
          flag, [&slot](const T& value) { slot = value; }, text)
      ->check(CLI::PositiveNumber);
}

}  // namespace

void add_synth(CLI::App& app, int& exit_code) {
  CLI::App* command = &app;
  const auto options = std::make_shared<SynthOptions>();
  command->add_option("--like", options->like, "qwen3.8-flash-next, bench-1b (8 of its layers, 3 GB), tetrad-tiny, or a config.json")
      ->capture_default_str();
  command->add_option("--weights", options->weights, "bf16, or fp8 for experts and n-gram table in FP8 and the rest in BF16")
      ->delimiter(',');
  command->add_option("--seed", options->seed, "The same seed gives the same bytes")->capture_default_str();
  command->add_option("--out", options->out, "Directory to write")->required();
  command->add_option("--scale", options->size.scale, "Multiplies widths, heads, experts, vocabulary and table")->capture_default_str();
  add_size(*command, "--layers", options->size.layers, "Number of layers; their kinds repeat the pattern");
  add_size(*command, "--experts", options->size.experts, "Number of routed experts");
  add_size(*command, "--experts-per-token", options->size.experts_per_token, "Routed experts of one token");
  add_size(*command, "--hidden", options->size.hidden_size, "Hidden size, and the n-gram embedding's");
  add_size(*command, "--moe-width", options->size.moe_width, "Intermediate size of routed and shared experts");
  add_size(*command, "--vocab", options->size.vocab_size, "Vocabulary size");
  add_size(*command, "--ngram-base", options->size.ngram_vocab_base, "Least rows of an n-gram head (16 heads of this size make the table)");
  command->add_option("--shard-mib", options->shard_mib, "Size of a file")->capture_default_str()->check(CLI::PositiveNumber);
  command->add_flag("--mtp", options->mtp, "Keep the draft head");
  command->add_flag("--vision", options->vision, "Keep the vision tower");
  command->add_flag("--flat", options->flat, "Text-only layout: model.layers.*, experts one by one");
  command->callback([options, &exit_code] {
    synth(*options);
    exit_code = 0;
  });
}

}  // namespace tetrad::cli
