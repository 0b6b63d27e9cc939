#include "model/config.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "io/json_file.h"
#include "model/config_reader.h"

namespace tetrad {
namespace {

// Bounds of what is believed. They are far above any model of this line and low enough that no product of sizes below can overflow
// 64 bits, or 32 bits where Config keeps an int.
constexpr int kMaxVocab = 1 << 24;
constexpr int kMaxWidth = 1 << 20;  // hidden and intermediate sizes
constexpr int kMaxLayers = 1 << 12;
constexpr int kMaxHeads = 1 << 12;
constexpr int kMaxHeadDim = 1 << 12;
constexpr int kMaxStreams = 64;
constexpr int kMaxExperts = 1 << 16;
constexpr int kMaxPositions = 1 << 30;
constexpr int kMaxConvWidth = 64;
constexpr int kMaxNgram = 16;
constexpr int kMaxHeadsPerNgram = 256;
constexpr std::size_t kMaxNgramHeads = 2048;  // of all PLE layers together: each needs a prime of its own
constexpr std::int64_t kMaxNgramVocab = std::int64_t{1} << 36;

LayerKind parse_layer_kind(const ConfigReader& in, std::size_t index, const std::string& name) {
  if (name == "linear_attention") return LayerKind::kGdn;
  // Four names of one layer: the published one, the library's own, and two of earlier software.
  for (const char* alias : {"full_attention", "qwen_sparse_attention", "deepseek_sparse_attention", "hybrid_indexed"})
    if (name == alias) return LayerKind::kQsa;
  in.refuse(fmt::format("layer_types[{}]", index),
            "linear_attention, full_attention, qwen_sparse_attention, deepseek_sparse_attention or hybrid_indexed", "\"" + name + "\"");
}

void read_layers(ConfigReader& in, Config& c) {
  c.num_layers = in.integer("num_hidden_layers", 1, kMaxLayers);
  const int interval = in.integer("full_attention_interval", 1, kMaxLayers, 4);
  const nlohmann::json* types = in.find("layer_types");
  if (types == nullptr) {
    for (int l = 0; l < c.num_layers; ++l) c.layer_kinds.push_back((l + 1) % interval == 0 ? LayerKind::kQsa : LayerKind::kGdn);
    return;
  }
  if (!types->is_array()) in.refuse("layer_types", "a list of layer types", types->dump());
  if (types->size() != static_cast<std::size_t>(c.num_layers))
    in.refuse("layer_types", fmt::format("one entry for each of the {} layers (num_hidden_layers)", c.num_layers),
              fmt::format("{} entries", types->size()));
  for (std::size_t i = 0; i < types->size(); ++i) {
    if (!(*types)[i].is_string()) in.refuse(fmt::format("layer_types[{}]", i), "a text", (*types)[i].dump());
    c.layer_kinds.push_back(parse_layer_kind(in, i, (*types)[i].get<std::string>()));
  }
}

void read_activations(ConfigReader& in, Config& c) {
  const std::string act = in.text("hidden_act", "silu");
  if (act != "silu") in.refuse("hidden_act", "silu (the only activation of the experts)", "\"" + act + "\"");
  if (in.boolean("attention_bias", false)) in.refuse("attention_bias", "false: projections of this model line have no bias", "true");
  const std::string gate = in.text("output_gate_type", act);
  if (gate != "sigmoid" && gate != "silu") in.refuse("output_gate_type", "sigmoid or silu", "\"" + gate + "\"");
  c.output_gate = gate == "sigmoid" ? OutputGate::kSigmoid : OutputGate::kSilu;
}

void read_attention(ConfigReader& in, Config& c) {
  c.num_attention_heads = in.integer("num_attention_heads", 1, kMaxHeads);
  c.num_kv_heads = in.integer("num_key_value_heads", 1, kMaxHeads);
  in.require_divisible("num_attention_heads", c.num_attention_heads, "num_key_value_heads", c.num_kv_heads);
  c.head_dim = in.integer("head_dim", 2, kMaxHeadDim);

  for (const char* field : {"indexer_n_heads", "indexer_kv_heads", "indexer_head_dim", "indexer_budget", "indexer_compress_ratio"})
    if (in.find(field) == nullptr) in.refuse(field, "a number: all five indexer fields are needed", "no such field");
  c.index_heads = in.integer("indexer_n_heads", 1, kMaxHeads);
  c.index_head_dim = in.integer("indexer_head_dim", 2, kMaxHeadDim);
  c.compress_ratio = in.integer("indexer_compress_ratio", 2, 1 << 16);
  c.index_budget = in.integer("indexer_budget", 1, kMaxPositions);
  const int key_heads = in.integer("indexer_kv_heads", 1, kMaxHeads);
  if (key_heads != 1) in.refuse("indexer_kv_heads", "1: the indexer has one key head", fmt::format("{}", key_heads));
  in.require_divisible("indexer_budget", c.index_budget, "indexer_compress_ratio", c.compress_ratio);
}

void read_gdn(ConfigReader& in, Config& c) {
  c.gdn_key_heads = in.integer("linear_num_key_heads", 1, kMaxHeads);
  c.gdn_value_heads = in.integer("linear_num_value_heads", 1, kMaxHeads);
  in.require_divisible("linear_num_value_heads", c.gdn_value_heads, "linear_num_key_heads", c.gdn_key_heads);
  c.gdn_key_dim = in.integer("linear_key_head_dim", 1, kMaxHeadDim);
  c.gdn_value_dim = in.integer("linear_value_head_dim", 1, kMaxHeadDim);
  c.gdn_conv_width = in.integer("linear_conv_kernel_dim", 2, kMaxConvWidth);
}

void read_experts(ConfigReader& in, Config& c) {
  c.num_experts = in.integer("num_experts", 1, kMaxExperts);
  c.experts_per_token = in.integer("num_experts_per_tok", 1, kMaxExperts);
  if (c.experts_per_token > c.num_experts)
    in.refuse("num_experts_per_tok", fmt::format("at most num_experts = {}", c.num_experts), fmt::format("{}", c.experts_per_token));
  c.moe_intermediate = in.integer("moe_intermediate_size", 1, kMaxWidth);
  c.shared_expert_intermediate = in.integer("shared_expert_intermediate_size", 1, kMaxWidth);
  c.norm_topk_prob = in.boolean("norm_topk_prob", true);
}

// The end-of-text id that cuts n-gram contexts: an id, or the first of a list. -1 if the config names none.
int read_eos(ConfigReader& in, const Config& c) {
  const nlohmann::json* eos = in.find("eos_token_id");
  if (eos == nullptr) return -1;
  const std::string allowed = fmt::format("a token id in [0, {}), or a list of them", c.vocab_size);
  const auto check = [&](const nlohmann::json& id) {
    if (!id.is_number_integer() || !in_range(id, 0, c.vocab_size - 1)) in.refuse("eos_token_id", allowed, eos->dump());
    return id.get<int>();
  };
  if (!eos->is_array()) return check(*eos);
  if (eos->empty()) in.refuse("eos_token_id", allowed, "an empty list");
  for (const auto& id : *eos) check(id);
  return eos->front().get<int>();
}

std::vector<int> read_ple_layers(ConfigReader& in, const Config& c) {
  const nlohmann::json* ids = in.find("ple_layer_ids");
  if (ids == nullptr) return {};
  if (!ids->is_array()) in.refuse("ple_layer_ids", "a list of layer numbers counted from one", ids->dump());
  std::set<int> layers;
  for (const auto& id : *ids) {
    if (!id.is_number_integer() || !in_range(id, 1, c.num_layers))
      in.refuse("ple_layer_ids", fmt::format("layer numbers counted from one, in [1, {}]", c.num_layers), id.dump());
    const int layer = id.get<int>() - 1;
    if (c.layer_kinds[static_cast<std::size_t>(layer)] != LayerKind::kGdn)
      in.refuse("ple_layer_ids", "linear_attention layers only",
                fmt::format("{}, which layer_types makes a sparse attention layer", layer + 1));
    layers.insert(layer);
  }
  return {layers.begin(), layers.end()};
}

void read_ple(ConfigReader& in, Config& c) {
  c.ple_eos_token = read_eos(in, c);
  c.ple_layers = read_ple_layers(in, c);
  if (c.ple_layers.empty()) {  // sizes that make every derived state of an absent table empty
    c.ngram_size = 1;
    c.ple_conv_width = 1;
    return;
  }
  if (c.ple_eos_token < 0)
    in.refuse("eos_token_id", "a token id: n-gram contexts are cut at it (ple_layer_ids is not empty)", "no such field");
  c.ngram_size = in.integer("ngram_size", 2, kMaxNgram, 3);
  c.heads_per_ngram = in.integer("heads_per_ngram", 1, kMaxHeadsPerNgram, 8);
  c.ple_embed_dim = in.integer("ple_embed_dim", 1, kMaxWidth, c.hidden_size);
  in.require_divisible("ple_embed_dim", c.ple_embed_dim, "the number of n-gram heads, (ngram_size-1)*heads_per_ngram", c.ngram_heads());
  if (const std::size_t heads = static_cast<std::size_t>(c.ngram_heads()) * c.ple_layers.size(); heads > kMaxNgramHeads)
    in.refuse("heads_per_ngram", fmt::format("at most {} n-gram heads in all PLE layers together", kMaxNgramHeads),
              fmt::format("{}", heads));
  c.ple_conv_width = in.integer("ple_conv_kernel_size", 2, kMaxConvWidth, 4);
  c.ngram_vocab_base = in.integer64("ngram_vocab_size_base", 2, kMaxNgramVocab, 20'000'000);
  c.ngram_vocab_divisor = in.integer64("make_ngram_vocab_size_divisible_by", 1, kMaxVocab, 128);
  c.hash_seed = in.integer64("seed", std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::int64_t>::max(), 1234);
  c.split_ngram_parts = in.integer("split_ngram_parts", 0, kMaxVocab, 512);
}

void read_mtp(ConfigReader& in, Config& c) {
  const nlohmann::json* mtp = in.find("mtp");
  int from_group = 0;
  if (mtp != nullptr && !mtp->is_null() && !mtp->is_object()) in.refuse("mtp", "an object", mtp->dump());
  if (mtp != nullptr && mtp->is_object() && mtp->contains("num_hidden_layers")) {
    const auto& count = (*mtp)["num_hidden_layers"];
    if (!count.is_number_integer() || !in_range(count, 0, kMaxStreams))
      in.refuse("mtp.num_hidden_layers", fmt::format("a whole number in [0, {}]", kMaxStreams), count.dump());
    from_group = count.get<int>();
  }
  c.mtp_layers = in.integer("mtp_num_hidden_layers", 0, kMaxStreams, from_group);
}

}  // namespace

bool Config::has_ple(int layer) const { return ple_index(layer) >= 0; }

int Config::ple_index(int layer) const {
  const auto found = std::lower_bound(ple_layers.begin(), ple_layers.end(), layer);
  return found != ple_layers.end() && *found == layer ? static_cast<int>(found - ple_layers.begin()) : -1;
}

Config parse_config(const nlohmann::json& json, std::string_view where) {
  ConfigReader in(json, where);
  Config c;
  c.model_type = in.model_type();
  c.vocab_size = in.integer("vocab_size", 1, kMaxVocab);
  c.hidden_size = in.integer("hidden_size", 1, kMaxWidth);
  c.max_positions = in.integer("max_position_embeddings", 1, kMaxPositions);
  c.rms_norm_eps = in.number("rms_norm_eps", 0.0, 1.0, 1e-6);
  c.tie_word_embeddings = in.outer_boolean("tie_word_embeddings", false);
  c.hc_count = in.integer("hc_count", 2, kMaxStreams);
  c.hc_lowrank = in.integer("hc_lowrank", 1, kMaxWidth);
  read_layers(in, c);
  read_activations(in, c);
  read_attention(in, c);
  c.rope = read_rope(in, c.head_dim, c.index_head_dim, c.max_positions);
  read_gdn(in, c);
  read_experts(in, c);
  read_ple(in, c);
  if (in.find("bos_token_id") != nullptr) c.bos_token = in.integer("bos_token_id", 0, c.vocab_size - 1);
  read_mtp(in, c);
  c.quantization = read_quantization(in);
  if (const auto* vision = in.outer_find("vision_config"); vision != nullptr) {
    if (!vision->is_object()) in.refuse("vision_config", "an object", vision->dump());
    c.vision_json = vision->dump();
  }
  return c;
}

Config load_config(const std::filesystem::path& file) { return parse_config(read_json_file(file), file.string()); }

}  // namespace tetrad
