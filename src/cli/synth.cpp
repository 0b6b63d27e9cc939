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
#include "cli/synthetic_options.h"
#include "cli/terminal.h"
#include "cli/value_checks.h"
#include "io/checkpoint.h"
#include "io/safetensors_writer.h"
#include "model/load_weights.h"
#include "model/synthetic.h"

namespace tetrad::cli {
namespace {

namespace fs = std::filesystem;

constexpr int kMaxShardMib = 1 << 20;

struct SynthOptions {
  SyntheticOptions model;
  std::string out;
  std::uint64_t shard_mib = 512;
  bool flat = false;
};

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

void check_out(const fs::path& out, std::uint64_t total_bytes) {
  std::error_code error;
  fs::create_directories(out, error);
  if (error) fail<InputError>("--out {}: cannot be made: {}", out.string(), error.message());
  const auto entries = fs::directory_iterator(out, error);
  if (error) fail<InputError>("--out {}: cannot be read: {}", out.string(), error.message());
  if (entries != fs::directory_iterator())
    fail<InputError>("--out {}: already holds {}; give an empty directory", out.string(), entries->path().filename().string());
  const fs::space_info space = fs::space(out, error);
  if (!error && space.available < total_bytes)
    fail<InputError>("--out {}: {:.2f} GB are to be written, {:.2f} GB are free there", out.string(),
                     static_cast<double>(total_bytes) / 1e9, static_cast<double>(space.available) / 1e9);
}

void synth(const SynthOptions& options) {
  const fs::path out = options.out;
  nlohmann::json json = synthetic_json(options.model);
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
  check_out(out, total_bytes);
  say("{}: {} tensors, {:.2f} GB, {:.2f} billion parameters active per token\n", out.string(), tensors.size(),
      static_cast<double>(total_bytes) / 1e9, static_cast<double>(active_parameters(config)) / 1e9);

  const auto shards = plan_shards(tensors, std::max<std::uint64_t>(1, options.shard_mib) << 20);
  nlohmann::json index = {{"metadata", {{"total_size", total_bytes}}}, {"weight_map", nlohmann::json::object()}};
  for (std::size_t i = 0; i < shards.size(); ++i) {
    const std::string name = fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
    write_shard(out / name, shards[i], config, options.model.seed);
    for (const auto& tensor : shards[i]) index["weight_map"][tensor.name] = name;
    say("wrote {}\n", name);
  }
  write_text(out / "model.safetensors.index.json", index.dump(2) + "\n");
  write_text(out / "config.json", json.dump(2) + "\n");
  const nlohmann::json eos = config.ple_eos_token >= 0 ? nlohmann::json(config.ple_eos_token) : nlohmann::json();
  write_text(out / "generation_config.json", nlohmann::json{{"do_sample", false}, {"eos_token_id", eos}}.dump(2) + "\n");
  (void)load_weights(Checkpoint::open(out), load_config(out / "config.json"));
}

}  // namespace

void add_synth(CLI::App& app, int& exit_code) {
  const auto options = std::make_shared<SynthOptions>();
  add_synthetic_options(app, options->model, "--like");
  app.add_option("--out", options->out, "Directory to write")->required();
  app.add_option("--shard-mib", options->shard_mib, "Size of a file")->capture_default_str()->check(number_in(1, kMaxShardMib));
  app.add_flag("--flat", options->flat, "Text-only layout: model.layers.*, experts one by one");
  app.callback([options, &exit_code] {
    synth(*options);
    exit_code = 0;
  });
}

}  // namespace tetrad::cli
