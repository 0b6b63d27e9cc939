#include "model/load_weights.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <optional>
#include <unordered_set>

#include "base/bf16.h"
#include "base/error.h"
#include "model/ngram_hash.h"
#include "model/weights_table.h"

namespace tetrad {
namespace {

constexpr std::string_view kNestedPrefix = "model.language_model.";
constexpr std::string_view kFlatPrefix = "model.";

std::string type_text(DType dtype, std::span<const std::int64_t> shape) {
  return fmt::format("{} {}", dtype_name(dtype), shape_text(shape));
}

bool is_float(DType dtype) { return dtype == DType::kBF16 || dtype == DType::kF16 || dtype == DType::kF32; }

class Binder {
 public:
  Binder(const Checkpoint& checkpoint, const Config& config, WeightsReport& report, const LoadProgress& progress)
      : checkpoint_(checkpoint),
        config_(config),
        report_(report),
        progress_(progress),
        letters_(config),
        total_bytes_(checkpoint.total_bytes()) {
    const auto nested = [](const CheckpointTensor& t) { return t.name.starts_with(kNestedPrefix); };
    const auto& tensors = checkpoint.tensors();
    prefix_ = std::any_of(tensors.begin(), tensors.end(), nested) ? kNestedPrefix : kFlatPrefix;
  }

  void bind(ModelWeights& model);

 private:
  std::string place(const CheckpointTensor& tensor) const { return fmt::format("{} ({})", tensor.name, checkpoint_.file_name(tensor)); }
  void wrong(const CheckpointTensor& tensor, std::string_view expected, std::string_view got) {
    report_.wrong.push_back(fmt::format("{}: expected {}, got {}", place(tensor), expected, got));
  }
  void missing(std::string_view name, std::string_view type) { report_.missing.push_back(fmt::format("{} {}", name, type)); }

  const CheckpointTensor* take(const std::string& name);
  std::optional<WeightView> take_float(const std::string& name, const std::vector<std::int64_t>& shape);
  bool check_type(const CheckpointTensor& tensor, bool good_dtype, std::string_view allowed, std::span<const std::int64_t> shape);
  void bind_rows(WeightLayers which, const std::string& prefix, LayerWeights* layer, ModelWeights* model);
  void fill(const WeightSlot& slot, const std::string& name, const std::vector<std::int64_t>& shape);
  void bind_layer(int index, LayerWeights& layer);
  void bind_experts(const std::string& prefix, MoeWeights& moe);
  void bind_fused(const std::string& prefix, MoeWeights& moe);
  LinearView take_expert(const std::string& name, const std::vector<std::int64_t>& shape);
  void bind_ple(const std::string& prefix, int index, PleWeights& ple);
  void bind_table(const std::string& name, const NgramHash& hash, NgramTable& table);
  std::vector<const CheckpointTensor*> take_table(const std::string& name, std::int64_t padded_rows);
  void bind_scale(const std::string& name, NgramTable& table, const CheckpointTensor& first);
  void check_constant(const std::string& name, const std::vector<std::int64_t>& expected);
  void bind_head(ModelWeights& model);
  void list_extra();
  void advance(std::string_view what) const {
    if (progress_) progress_(done_bytes_, total_bytes_, what);
  }

  const Checkpoint& checkpoint_;
  const Config& config_;
  WeightsReport& report_;
  const LoadProgress& progress_;
  ShapeLetters letters_;
  std::string prefix_;
  std::unordered_set<std::string_view> taken_;
  std::size_t done_bytes_ = 0;
  std::size_t total_bytes_;
};

WeightView view_of(const CheckpointTensor& tensor) { return {tensor.data, tensor.dtype, tensor.shape, tensor.name}; }

// The tensor of this name, marked as consumed; null if the checkpoint lacks it.
const CheckpointTensor* Binder::take(const std::string& name) {
  const CheckpointTensor* tensor = checkpoint_.find(name);
  if (tensor == nullptr) return nullptr;
  if (taken_.insert(tensor->name).second) done_bytes_ += tensor->num_bytes;
  return tensor;
}

bool Binder::check_type(const CheckpointTensor& tensor, bool good_dtype, std::string_view allowed, std::span<const std::int64_t> shape) {
  if (good_dtype && std::ranges::equal(tensor.shape, shape)) return true;
  std::string got = type_text(tensor.dtype, tensor.shape);
  if (tensor.dtype == DType::kU8) got += " (packed 4-bit weights as in NVFP4 are not supported: use the BF16 or the official FP8 release)";
  wrong(tensor, fmt::format("{} {}", allowed, shape_text(shape)), got);
  return false;
}

std::optional<WeightView> Binder::take_float(const std::string& name, const std::vector<std::int64_t>& shape) {
  const CheckpointTensor* tensor = take(name);
  if (tensor == nullptr) {
    missing(name, type_text(DType::kBF16, shape));
    return std::nullopt;
  }
  if (!check_type(*tensor, is_float(tensor->dtype), "BF16, F16 or F32", shape)) return std::nullopt;
  checkpoint_.prefetch(*tensor);
  return view_of(*tensor);
}

void Binder::fill(const WeightSlot& slot, const std::string& name, const std::vector<std::int64_t>& shape) {
  auto view = take_float(name, shape);
  if (!view) return;
  if (auto* plain = std::get_if<WeightView*>(&slot)) **plain = std::move(*view);
  if (auto* linear = std::get_if<LinearView*>(&slot)) (*linear)->weight = std::move(*view);
}

void Binder::bind_rows(WeightLayers which, const std::string& prefix, LayerWeights* layer, ModelWeights* model) {
  for (const WeightRow& row : weights_table()) {
    if (row.layers != which) continue;
    const std::string name = prefix + std::string(row.name);
    if (row.layer_slot != nullptr) fill(row.layer_slot(*layer), name, letters_.evaluate(row.shape));
    if (row.model_slot != nullptr) fill(row.model_slot(*model), name, letters_.evaluate(row.shape));
  }
}

void Binder::bind(ModelWeights& model) {
  bind_rows(WeightLayers::kModel, prefix_, nullptr, &model);
  bind_head(model);
  advance("embedding");
  model.layers.resize(static_cast<std::size_t>(config_.num_layers));
  for (int l = 0; l < config_.num_layers; ++l) {
    bind_layer(l, model.layers[static_cast<std::size_t>(l)]);
    advance(fmt::format("layer {}", l));
  }
  list_extra();
  done_bytes_ = total_bytes_;
  advance("done");
}

// Tied: the embedding serves as the head. A head tensor beside it is redundant if it holds the same bytes and a contradiction otherwise.
void Binder::bind_head(ModelWeights& model) {
  if (!config_.tie_word_embeddings) return bind_rows(WeightLayers::kHead, "", nullptr, &model);
  model.lm_head.weight = model.embed_tokens;
  const CheckpointTensor* head = take("lm_head.weight");
  if (head == nullptr || model.embed_tokens.data == nullptr) return;
  const CheckpointTensor* embedding = checkpoint_.find(model.embed_tokens.name);
  const bool equal =
      head->dtype == embedding->dtype && head->shape == embedding->shape && std::memcmp(head->data, embedding->data, head->num_bytes) == 0;
  if (equal)
    report_.notes.push_back(fmt::format("{} equals the embedding, as tie_word_embeddings says", place(*head)));
  else
    wrong(*head, "no such tensor, or the bytes of the embedding (config.json says tie_word_embeddings)", "a head of its own");
}

void Binder::bind_layer(int index, LayerWeights& layer) {
  const std::string prefix = fmt::format("{}layers.{}.", prefix_, index);
  const bool is_gdn = config_.layer_kinds[static_cast<std::size_t>(index)] == LayerKind::kGdn;
  if (is_gdn)
    layer.gdn.emplace();
  else
    layer.qsa.emplace();
  bind_rows(is_gdn ? WeightLayers::kGdn : WeightLayers::kQsa, prefix, &layer, nullptr);
  bind_rows(WeightLayers::kAll, prefix, &layer, nullptr);
  bind_experts(prefix, layer.moe);
  if (config_.has_ple(index)) bind_ple(prefix, index, layer.ple.emplace());
}

// --- Experts ---

void Binder::bind_experts(const std::string& prefix, MoeWeights& moe) {
  moe.experts.resize(static_cast<std::size_t>(config_.num_experts));
  // The stacks are what is asked for unless some expert stands alone: "mlp.experts.<number>.".
  const std::string stem = prefix + "mlp.experts.";
  const auto& tensors = checkpoint_.tensors();
  const auto first = std::lower_bound(tensors.begin(), tensors.end(), stem + "0",
                                      [](const auto& tensor, const std::string& name) { return tensor.name < name; });
  const bool single = first != tensors.end() && first->name.starts_with(stem) && first->name[stem.size()] <= '9';
  if (!single) return bind_fused(prefix, moe);
  for (const WeightRow& row : weights_table()) {
    if (row.kind != WeightKind::kExpert) continue;
    const auto shape = letters_.evaluate(row.shape);
    for (int e = 0; e < config_.num_experts; ++e) {
      ExpertWeights& expert = moe.experts[static_cast<std::size_t>(e)];
      LinearView view = take_expert(prefix + fmt::format(fmt::runtime(row.name), e), shape);
      (row.field.ends_with("gate_proj") ? expert.gate_proj
       : row.field.ends_with("up_proj") ? expert.up_proj
                                        : expert.down_proj) = std::move(view);
    }
  }
}

// gate_up_proj [E, 2*F, D]: per expert F gate rows, then F up rows. down_proj [E, D, F].
void Binder::bind_fused(const std::string& prefix, MoeWeights& moe) {
  const std::int64_t F = config_.moe_intermediate, D = config_.hidden_size, E = config_.num_experts;
  const auto slice = [](const WeightView& stack, std::int64_t first_row, std::int64_t rows, std::int64_t columns) {
    const auto offset = static_cast<std::size_t>(first_row * columns) * dtype_size(stack.dtype);
    LinearView view;
    view.weight = {stack.data + offset, stack.dtype, {rows, columns}, stack.name};
    return view;
  };
  for (const WeightRow& row : weights_table()) {
    if (row.kind != WeightKind::kFusedExperts) continue;
    const std::string name = prefix + std::string(row.name);
    const auto stack = take_float(name, letters_.evaluate(row.shape));
    if (!stack) continue;
    for (std::int64_t e = 0; e < E; ++e) {
      ExpertWeights& expert = moe.experts[static_cast<std::size_t>(e)];
      if (row.name.ends_with("down_proj")) {
        expert.down_proj = slice(*stack, e * D, D, F);
      } else {
        expert.gate_proj = slice(*stack, e * 2 * F, F, D);
        expert.up_proj = slice(*stack, e * 2 * F + F, F, D);
      }
    }
  }
}

// One expert's matrix, in BF16, F16, F32 or in FP8 with its block scales.
LinearView Binder::take_expert(const std::string& name, const std::vector<std::int64_t>& shape) {
  LinearView view;
  const CheckpointTensor* tensor = take(name);
  if (tensor == nullptr) {
    missing(name, type_text(config_.quantization ? DType::kF8E4M3 : DType::kBF16, shape));
    return view;
  }
  const bool fp8 = tensor->dtype == DType::kF8E4M3;
  if (!check_type(*tensor, fp8 || is_float(tensor->dtype), "F8_E4M3, BF16, F16 or F32", shape)) return view;
  checkpoint_.prefetch(*tensor);
  view.weight = view_of(*tensor);
  if (!fp8) return view;
  const QuantizationConfig blocks = config_.quantization.value_or(QuantizationConfig{});
  const std::vector<std::int64_t> scale_shape{(shape[0] + blocks.block_rows - 1) / blocks.block_rows,
                                              (shape[1] + blocks.block_columns - 1) / blocks.block_columns};
  const CheckpointTensor* scale = take(name + "_scale_inv");
  if (scale == nullptr) {
    missing(name + "_scale_inv", type_text(DType::kBF16, scale_shape));
    return view;
  }
  if (!check_type(*scale, scale->dtype == DType::kBF16 || scale->dtype == DType::kF32, "BF16 or F32", scale_shape)) return view;
  view.scale_inv = view_of(*scale);
  view.block_rows = blocks.block_rows;
  view.block_columns = blocks.block_columns;
  return view;
}

// --- N-gram tables ---

void Binder::bind_ple(const std::string& prefix, int index, PleWeights& ple) {
  LayerWeights holder;  // the slots of the table are members of a layer
  holder.ple.emplace();
  bind_rows(WeightLayers::kPle, prefix, &holder, nullptr);
  ple = std::move(*holder.ple);
  const NgramHash hash = make_ngram_hash(config_, config_.ple_index(index));
  ple.multipliers = hash.multipliers;
  ple.head_sizes = hash.head_sizes;
  ple.head_offsets = hash.head_offsets;
  for (const WeightRow& row : weights_table()) {
    const std::string name = prefix + std::string(row.name);
    if (row.kind == WeightKind::kNgramTable) bind_table(name, hash, ple.table);
    if (row.kind != WeightKind::kNgramConstant) continue;
    check_constant(name, row.field == "ple.multipliers"  ? hash.multipliers
                         : row.field == "ple.head_sizes" ? hash.head_sizes
                                                         : hash.head_offsets);
  }
}

// The number in "<stem>12<suffix>"; nullopt for any other name and for spellings such as "012".
std::optional<std::int64_t> shard_number(std::string_view text, std::string_view stem, std::string_view suffix) {
  constexpr std::size_t kMaxDigits = 8;
  if (!text.starts_with(stem) || !text.ends_with(suffix) || text.size() <= stem.size() + suffix.size()) return std::nullopt;
  const std::string_view digits = text.substr(stem.size(), text.size() - stem.size() - suffix.size());
  if (digits.size() > kMaxDigits || (digits.front() == '0' && digits.size() > 1)) return std::nullopt;
  std::int64_t number = 0;
  for (const char digit : digits) {
    if (digit < '0' || digit > '9') return std::nullopt;
    number = number * 10 + (digit - '0');
  }
  return number;
}

// The tensors that make up the table, in row order: shards by number, not by text, or the one whole tensor. Reports gaps in the numbers.
std::vector<const CheckpointTensor*> Binder::take_table(const std::string& name, std::int64_t padded_rows) {
  const std::string stem = name + ".shard_";
  const std::string suffix = ".weight";
  std::map<std::int64_t, const CheckpointTensor*> shards;
  for (const CheckpointTensor& tensor : checkpoint_.tensors())
    if (const auto number = shard_number(tensor.name, stem, suffix)) shards.emplace(*number, &tensor);
  if (shards.empty()) {
    if (const CheckpointTensor* whole = take(name + suffix)) return {whole};
    missing(name + suffix, fmt::format("[{}, {}], or its shards {}0{} and so on", padded_rows, config_.ngram_row_dim(), stem, suffix));
    return {};
  }
  std::vector<const CheckpointTensor*> result;
  std::int64_t rows = 0;
  constexpr std::int64_t kMaxGaps = 1000;
  std::int64_t next = 0, gaps = 0;
  const auto report_gap = [&](std::int64_t end) {
    for (; next < end && gaps < kMaxGaps; ++next, ++gaps)
      missing(fmt::format("{}{}{}", stem, next, suffix), fmt::format("[rows, {}]", config_.ngram_row_dim()));
    next = end + 1;
  };
  for (const auto& [number, shard] : shards) {
    report_gap(number);
    result.push_back(take(shard->name));
    rows += shard->shape.empty() ? 0 : shard->shape.front();
  }
  // How many shards there should be is only asked when rows are short: another cut of the same table is as good.
  if (rows < padded_rows) report_gap(config_.split_ngram_parts);
  return result;
}

void Binder::bind_table(const std::string& name, const NgramHash& hash, NgramTable& table) {
  const std::int64_t row_dim = config_.ngram_row_dim();
  const std::size_t faults_before = report_.missing.size() + report_.wrong.size();
  const auto shards = take_table(name, hash.padded_rows);
  std::int64_t rows = 0;
  for (const CheckpointTensor* shard : shards) {
    const DType first_dtype = shards.front()->dtype;
    const std::int64_t shard_rows = shard->shape.empty() ? 0 : shard->shape.front();
    const bool good_type = shard->dtype == first_dtype && (is_float(first_dtype) || first_dtype == DType::kF8E4M3);
    const std::vector<std::int64_t> shape{shard_rows, row_dim};
    if (!check_type(*shard, good_type, shard == shards.front() ? "BF16, F16, F32 or F8_E4M3" : dtype_name(first_dtype), shape)) continue;
    table.shards.push_back(view_of(*shard));
    table.first_row.push_back(rows);
    rows += shard_rows;
  }
  table.first_row.push_back(rows);
  if (shards.empty()) return;
  if (report_.missing.size() + report_.wrong.size() == faults_before && rows != hash.padded_rows)
    wrong(*shards.front(), fmt::format("{} rows in the whole table (the primes of its heads, padded)", hash.padded_rows),
          fmt::format("{} rows", rows));
  bind_scale(name + ".weight_scale", table, *shards.front());
}

// One scale for all shards of an FP8 table. Other tables have none: a scale beside them stays unconsumed and is refused as extra.
void Binder::bind_scale(const std::string& name, NgramTable& table, const CheckpointTensor& first) {
  if (first.dtype != DType::kF8E4M3) return;
  const CheckpointTensor* scale = take(name);
  if (scale == nullptr) return missing(name, "BF16 [1]");
  const std::vector<std::int64_t> shape = scale->shape.empty() ? std::vector<std::int64_t>{} : std::vector<std::int64_t>{1};
  if (!check_type(*scale, scale->dtype == DType::kBF16 || scale->dtype == DType::kF32, "BF16 or F32", shape)) return;
  float value = 0.0f;
  if (scale->dtype == DType::kBF16) {
    bf16 stored;
    std::memcpy(&stored, scale->data, sizeof stored);
    value = to_float(stored);
  } else {
    std::memcpy(&value, scale->data, sizeof value);
  }
  if (!std::isfinite(value) || value <= 0.0f) return wrong(*scale, "a finite number above 0", fmt::format("{}", value));
  table.scale = value;
}

void Binder::check_constant(const std::string& name, const std::vector<std::int64_t>& expected) {
  const CheckpointTensor* tensor = take(name);
  if (tensor == nullptr) return;
  const std::vector<std::int64_t> shape{static_cast<std::int64_t>(expected.size())};
  if (!check_type(*tensor, tensor->dtype == DType::kI64, "I64", shape)) return;
  std::vector<std::int64_t> stored(expected.size());
  std::memcpy(stored.data(), tensor->data, tensor->num_bytes);
  if (stored != expected)
    wrong(*tensor, fmt::format("[{}], as vocabulary, n-gram sizes and seed of the config give", fmt::join(expected, ", ")),
          fmt::format("[{}]", fmt::join(stored, ", ")));
}

// --- What is left ---

void Binder::list_extra() {
  for (const CheckpointTensor& tensor : checkpoint_.tensors()) {
    if (taken_.contains(tensor.name) || tensor_group(tensor.name) != TensorGroup::kText) continue;
    std::string line = fmt::format("{} {}", place(tensor), type_text(tensor.dtype, tensor.shape));
    if (tensor.name.ends_with(".weight_scale_2") || tensor.name.ends_with(".input_scale"))
      line += " (belongs to NVFP4, which is not supported)";
    report_.extra.push_back(std::move(line));
  }
}

void append_list(std::string& text, std::string_view title, const std::vector<std::string>& lines) {
  constexpr std::size_t kMaxListed = 50;
  if (lines.empty()) return;
  text += fmt::format("\n{} {}:", lines.size(), title);
  for (std::size_t i = 0; i < lines.size() && i < kMaxListed; ++i) text += "\n  " + lines[i];
  if (lines.size() > kMaxListed) text += fmt::format("\n  ... and {} more", lines.size() - kMaxListed);
}

}  // namespace

TensorGroup tensor_group(std::string_view name) {
  if (name.starts_with("mtp.")) return TensorGroup::kMtp;
  if (name.starts_with("model.visual.")) return TensorGroup::kVision;
  // Left-overs of training that no forward pass reads.
  for (const std::string_view part : {"hashstats_", "token_lookup", "hyper_connection_mixer.block_inject_weight"})
    if (name.find(part) != std::string_view::npos) return TensorGroup::kIgnored;
  return TensorGroup::kText;
}

std::string WeightsReport::message(std::string_view where) const {
  std::string text = fmt::format("{}: the tensors do not match config.json", where);
  append_list(text, "missing", missing);
  append_list(text, "wrong", wrong);
  append_list(text, "not part of the model", extra);
  return text;
}

ModelWeights bind_weights(std::shared_ptr<const Checkpoint> checkpoint, const Config& config, WeightsReport& report,
                          const LoadProgress& progress) {
  ModelWeights model;
  Binder(*checkpoint, config, report, progress).bind(model);
  model.checkpoint = std::move(checkpoint);
  return model;
}

ModelWeights load_weights(std::shared_ptr<const Checkpoint> checkpoint, const Config& config, const LoadProgress& progress) {
  const std::string where = checkpoint->directory().string();
  WeightsReport report;
  ModelWeights model = bind_weights(std::move(checkpoint), config, report, progress);
  if (!report.ok()) throw LoadError(report.message(where));
  return model;
}

}  // namespace tetrad
