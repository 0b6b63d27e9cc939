#pragma once
// The model's geometry and constants, read from config.json (nested or flat) and validated. Every number of the checkpoint stands here
// once; letters in brackets are the dimension names used by kernels and documents (docs/model.md).
#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace tetrad {

enum class LayerKind { kGdn, kQsa };
enum class OutputGate { kSigmoid, kSilu };
enum class RopeType { kDefault, kYarn };

struct RopeConfig {
  RopeType type = RopeType::kDefault;
  double theta = 1e7;
  int rotary_dim = 0;  // [DR] = int(head_dim * partial_rotary_factor), even
  std::array<int, 3> mrope_section{11, 11, 10};
  double yarn_factor = 1.0;  // the four below: yarn only
  int yarn_original_positions = 0;
  double yarn_beta_fast = 32.0;
  double yarn_beta_slow = 1.0;
  std::optional<double> yarn_attention_factor;  // absent: 0.1 ln(factor) + 1
};

struct QuantizationConfig {                   // "quantization_config" of the checkpoint, or absent
  std::string method;                         // "fp8"
  int block_rows = 128, block_columns = 128;  // weight_block_size
};

struct Config {
  int vocab_size = 0;                  // [V]
  int hidden_size = 0;                 // [D]
  int num_layers = 0;                  // [L]
  std::vector<LayerKind> layer_kinds;  // length num_layers
  int max_positions = 0;
  double rms_norm_eps = 1e-6;
  bool tie_word_embeddings = false;

  int hc_count = 0;    // [HC] residual streams
  int hc_lowrank = 0;  // [LR]

  int num_attention_heads = 0;  // [HQ]
  int num_kv_heads = 0;         // [HKV]
  int head_dim = 0;             // [DH]
  RopeConfig rope;

  int gdn_key_heads = 0, gdn_value_heads = 0;  // [HK], [HV]
  int gdn_key_dim = 0, gdn_value_dim = 0;      // [K], [V] of one head
  int gdn_conv_width = 0;                      // [W]
  OutputGate output_gate = OutputGate::kSigmoid;

  int num_experts = 0, experts_per_token = 0;  // [E], [EK]
  int moe_intermediate = 0;                    // [F]
  int shared_expert_intermediate = 0;          // [FS]
  bool norm_topk_prob = true;

  int index_heads = 0;     // [HI]
  int index_head_dim = 0;  // [DI]
  int index_budget = 0;    // in tokens
  int compress_ratio = 0;  // [R] tokens per block

  std::vector<int> ple_layers;  // ZERO-based layer indices, ascending (config.json counts from one)
  int ple_embed_dim = 0;
  int ple_conv_width = 0;
  int ngram_size = 0;
  int heads_per_ngram = 0;
  std::int64_t ngram_vocab_base = 0;
  std::int64_t ngram_vocab_divisor = 128;
  std::int64_t hash_seed = 1234;
  int split_ngram_parts = 0;  // how the published layout shards the table; not part of the arithmetic
  int ple_eos_token = -1;     // text_config.eos_token_id, its first entry if it is a list

  std::optional<int> bos_token;
  int mtp_layers = 0;
  std::optional<QuantizationConfig> quantization;
  std::string model_type;   // as read
  std::string vision_json;  // vision_config as text, empty if absent: only `inspect` reads it

  // Derived sizes, in elements.
  int gdn_conv_dim() const { return 2 * gdn_key_heads * gdn_key_dim + gdn_value_heads * gdn_value_dim; }
  int gdn_value_size() const { return gdn_value_heads * gdn_value_dim; }
  int streams_size() const { return hc_count * hidden_size; }
  int ngram_heads() const { return (ngram_size - 1) * heads_per_ngram; }   // [NG]
  int ngram_row_dim() const { return ple_embed_dim / ngram_heads(); }      // [DE]
  int ple_conv_rows() const { return (ple_conv_width - 1) * ngram_size; }  // dilation = ngram_size
  int block_topk() const { return index_budget / compress_ratio; }
  bool has_ple(int layer) const;
  int ple_index(int layer) const;  // rank of `layer` within ple_layers; -1 if it has no PLE
};

// Throws LoadError naming the field, what is allowed and what was found. `where` is the file name used in messages.
Config parse_config(const nlohmann::json& json, std::string_view where);
Config load_config(const std::filesystem::path& file);

}  // namespace tetrad
