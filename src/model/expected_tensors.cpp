#include <array>

#include "base/error.h"
#include "io/safetensors_writer.h"
#include "model/ngram_hash.h"
#include "model/weights_table.h"

namespace tetrad {
namespace {

class Expectation {
 public:
  Expectation(const Config& config, const ExpectOptions& options) : config_(config), options_(options), letters_(config) {}

  void add_layers(WeightLayers which, const std::string& prefix, int layer) {
    for (const WeightRow& row : weights_table())
      if (row.layers == which) add_row(row, prefix, layer);
  }

  void add_vision() {
    const VisionSizes vision = parse_vision(config_);
    if (vision.num_blocks == 0) return;
    for (const auto& [letter, value] : vision.letters) letters_.set(letter, value);
    add_layers(WeightLayers::kVision, "model.visual.", -1);
    for (int block = 0; block < vision.num_blocks; ++block)
      add_layers(WeightLayers::kVisionBlock, fmt::format("model.visual.blocks.{}.", block), -1);
  }

  std::vector<ExpectedTensor> take() { return std::move(tensors_); }

 private:
  void add(std::string name, DType dtype, std::vector<std::int64_t> shape) {
    constexpr std::size_t kMaxTensors = 4'000'000;
    if (tensors_.size() >= kMaxTensors) fail<LoadError>("the config calls for more than {} tensors; check layers and experts", kMaxTensors);
    const std::uint64_t num_bytes = tensor_bytes({name, dtype, shape});
    tensors_.push_back({std::move(name), dtype, std::move(shape), num_bytes});
  }

  void add_row(const WeightRow& row, const std::string& prefix, int layer) {
    const std::string name = prefix + std::string(row.name);
    const bool fused = options_.fused_experts && !options_.fp8_experts;
    switch (row.kind) {
      case WeightKind::kPlain:
      case WeightKind::kLinear: return add(name, DType::kBF16, letters_.evaluate(row.shape));
      case WeightKind::kFusedExperts: return fused ? add(name, DType::kBF16, letters_.evaluate(row.shape)) : void();
      case WeightKind::kExpert: return fused ? void() : add_experts(row, prefix);
      case WeightKind::kNgramTable: return add_table(row, name, layer);
      case WeightKind::kNgramConstant: return options_.ngram_constants ? add(name, DType::kI64, letters_.evaluate(row.shape)) : void();
    }
  }

  void add_experts(const WeightRow& row, const std::string& prefix) {
    const auto shape = letters_.evaluate(row.shape);
    const QuantizationConfig blocks = config_.quantization.value_or(QuantizationConfig{});
    for (int e = 0; e < config_.num_experts; ++e) {
      const std::string name = prefix + fmt::format(fmt::runtime(row.name), e);
      add(name, options_.fp8_experts ? DType::kF8E4M3 : DType::kBF16, shape);
      if (!options_.fp8_experts) continue;
      const auto ceil_div = [](std::int64_t a, std::int64_t b) { return (a + b - 1) / b; };
      add(name + "_scale_inv", DType::kBF16, {ceil_div(shape[0], blocks.block_rows), ceil_div(shape[1], blocks.block_columns)});
    }
  }

  void add_table(const WeightRow& row, const std::string& name, int layer) {
    letters_.set("NGVOC", make_ngram_hash(config_, config_.ple_index(layer)).padded_rows);
    const auto shape = letters_.evaluate(row.shape);
    const DType dtype = options_.fp8_table ? DType::kF8E4M3 : DType::kBF16;
    const bool shards = options_.table_shards && config_.split_ngram_parts > 0;
    if (shards) {
      const auto rows = table_shard_rows(shape[0], config_.split_ngram_parts);
      for (std::size_t i = 0; i < rows.size(); ++i) add(fmt::format("{}.shard_{}.weight", name, i), dtype, {rows[i], shape[1]});
    } else {
      add(name + ".weight", dtype, shape);
    }
    if (options_.fp8_table) add(name + ".weight_scale", DType::kBF16, {1});
  }

  const Config& config_;
  const ExpectOptions& options_;
  ShapeLetters letters_;
  std::vector<ExpectedTensor> tensors_;
};

}  // namespace

ExpectOptions published_layout(const Config& config) {
  ExpectOptions options;
  options.nested_names = config.model_type != "qwen4_exp_text";
  options.fused_experts = options.nested_names;
  options.fp8_experts = options.fp8_table = config.quantization.has_value();
  return options;
}

std::vector<ExpectedTensor> expected_tensors(const Config& config, const ExpectOptions& options) {
  const std::string prefix = options.nested_names ? "model.language_model." : "model.";
  Expectation expect(config, options);
  expect.add_layers(WeightLayers::kModel, prefix, -1);
  if (!config.tie_word_embeddings) expect.add_layers(WeightLayers::kHead, "", -1);
  for (int l = 0; l < config.num_layers; ++l) {
    const std::string layer_prefix = fmt::format("{}layers.{}.", prefix, l);
    if (config.has_ple(l)) expect.add_layers(WeightLayers::kPle, layer_prefix, l);
    const bool gdn = config.layer_kinds[static_cast<std::size_t>(l)] == LayerKind::kGdn;
    expect.add_layers(gdn ? WeightLayers::kGdn : WeightLayers::kQsa, layer_prefix, l);
    expect.add_layers(WeightLayers::kAll, layer_prefix, l);
  }
  if (options.mtp && config.mtp_layers > 0) {
    expect.add_layers(WeightLayers::kMtp, "mtp.", -1);
    for (int l = 0; l < config.mtp_layers; ++l) {
      const std::string layer_prefix = fmt::format("mtp.layers.{}.", l);
      expect.add_layers(WeightLayers::kQsa, layer_prefix, -1);
      expect.add_layers(WeightLayers::kAll, layer_prefix, -1);
    }
  }
  if (options.vision) expect.add_vision();
  return expect.take();
}

}  // namespace tetrad
