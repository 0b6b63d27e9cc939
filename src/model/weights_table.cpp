#include "model/weights_table.h"

#include <array>
#include <cctype>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "io/json_file.h"
#include "model/config_reader.h"
#include "model/ngram_hash.h"

namespace tetrad {
namespace {

using enum WeightKind;
using enum WeightLayers;
using enum Placement;

#define LAYER(member) [](LayerWeights& w) -> WeightSlot { return &w.member; }
#define MODEL(member) [](ModelWeights& w) -> WeightSlot { return &w.member; }

// field, name, shape, kind, layers, placement, slot
const WeightRow kRows[] = {
    // The model's ends.
    {"embed_tokens", "embed_tokens.weight", "[V, D]", kPlain, kModel, kGathered, nullptr, MODEL(embed_tokens)},
    {"lm_head", "lm_head.weight", "[V, D]", kLinear, kHead, kDevice, nullptr, MODEL(lm_head)},
    {"mixer.norm", "hyper_connection_mixer.hc_norm.weight", "[HC*D]", kPlain, kModel, kDevice, nullptr, MODEL(mixer.norm)},
    {"mixer.down", "hyper_connection_mixer.input_mix_weight_down.weight", "[LR, HC*D]", kLinear, kModel, kDevice, nullptr,
     MODEL(mixer.down)},
    {"mixer.up", "hyper_connection_mixer.input_mix_weight_up.weight", "[HC*D, LR]", kLinear, kModel, kDevice, nullptr, MODEL(mixer.up)},
    // Hyper-connections.
    {"attn_hc.norm", "attn_hyper_connection.hc_norm.weight", "[HC*D]", kPlain, kAll, kDevice, LAYER(attn_hc.norm)},
    {"attn_hc.down", "attn_hyper_connection.input_mix_weight_down.weight", "[LR, HC*D]", kLinear, kAll, kDevice, LAYER(attn_hc.down)},
    {"attn_hc.up", "attn_hyper_connection.input_mix_weight_up.weight", "[HC*D, LR]", kLinear, kAll, kDevice, LAYER(attn_hc.up)},
    {"attn_hc.inject", "attn_hyper_connection.block_inject_weight.weight", "[HC, HC*D]", kLinear, kAll, kDevice,
     LAYER(attn_hc.inject.emplace())},
    {"mlp_hc.norm", "mlp_hyper_connection.hc_norm.weight", "[HC*D]", kPlain, kAll, kDevice, LAYER(mlp_hc.norm)},
    {"mlp_hc.down", "mlp_hyper_connection.input_mix_weight_down.weight", "[LR, HC*D]", kLinear, kAll, kDevice, LAYER(mlp_hc.down)},
    {"mlp_hc.up", "mlp_hyper_connection.input_mix_weight_up.weight", "[HC*D, LR]", kLinear, kAll, kDevice, LAYER(mlp_hc.up)},
    {"mlp_hc.inject", "mlp_hyper_connection.block_inject_weight.weight", "[HC, HC*D]", kLinear, kAll, kDevice,
     LAYER(mlp_hc.inject.emplace())},
    // Gated DeltaNet layers.
    {"gdn.in_qkv", "linear_attn.in_proj_qkv.weight", "[2*HK*K+HV*VD, D]", kLinear, kGdn, kDevice, LAYER(gdn->in_qkv)},
    {"gdn.in_z", "linear_attn.in_proj_z.weight", "[HV*VD, D]", kLinear, kGdn, kDevice, LAYER(gdn->in_z)},
    {"gdn.in_b", "linear_attn.in_proj_b.weight", "[HV, D]", kLinear, kGdn, kDevice, LAYER(gdn->in_b)},
    {"gdn.in_a", "linear_attn.in_proj_a.weight", "[HV, D]", kLinear, kGdn, kDevice, LAYER(gdn->in_a)},
    {"gdn.conv", "linear_attn.conv1d.weight", "[2*HK*K+HV*VD, 1, W]", kPlain, kGdn, kDevice, LAYER(gdn->conv)},
    {"gdn.a_log", "linear_attn.A_log", "[HV]", kPlain, kGdn, kDevice, LAYER(gdn->a_log)},
    {"gdn.dt_bias", "linear_attn.dt_bias", "[HV]", kPlain, kGdn, kDevice, LAYER(gdn->dt_bias)},
    {"gdn.norm", "linear_attn.norm.weight", "[VD]", kPlain, kGdn, kDevice, LAYER(gdn->norm)},
    {"gdn.out", "linear_attn.out_proj.weight", "[D, HV*VD]", kLinear, kGdn, kDevice, LAYER(gdn->out)},
    // Sparse attention layers.
    {"qsa.q", "self_attn.q_proj.weight", "[HQ*2*DH, D]", kLinear, kQsa, kDevice, LAYER(qsa->q)},
    {"qsa.k", "self_attn.k_proj.weight", "[HKV*DH, D]", kLinear, kQsa, kDevice, LAYER(qsa->k)},
    {"qsa.v", "self_attn.v_proj.weight", "[HKV*DH, D]", kLinear, kQsa, kDevice, LAYER(qsa->v)},
    {"qsa.o", "self_attn.o_proj.weight", "[D, HQ*DH]", kLinear, kQsa, kDevice, LAYER(qsa->o)},
    {"qsa.q_norm", "self_attn.q_norm.weight", "[DH]", kPlain, kQsa, kDevice, LAYER(qsa->q_norm)},
    {"qsa.k_norm", "self_attn.k_norm.weight", "[DH]", kPlain, kQsa, kDevice, LAYER(qsa->k_norm)},
    {"qsa.index_qk", "self_attn.indexer.index_qk_proj.weight", "[HI*DI+DI, D]", kLinear, kQsa, kDevice, LAYER(qsa->index_qk)},
    {"qsa.index_q_norm", "self_attn.indexer.q_layernorm.weight", "[DI]", kPlain, kQsa, kDevice, LAYER(qsa->index_q_norm)},
    {"qsa.index_k_norm", "self_attn.indexer.k_layernorm.weight", "[DI]", kPlain, kQsa, kDevice, LAYER(qsa->index_k_norm)},
    // Experts: fused in BF16 releases, one by one in FP8 releases and flat exports.
    {"moe.router", "mlp.gate.weight", "[E, D]", kLinear, kAll, kDevice, LAYER(moe.router)},
    {"moe.experts", "mlp.experts.gate_up_proj", "[E, 2*F, D]", kFusedExperts, kAll, kDevice},
    {"moe.experts", "mlp.experts.down_proj", "[E, D, F]", kFusedExperts, kAll, kDevice},
    {"moe.experts.gate_proj", "mlp.experts.{}.gate_proj.weight", "[F, D]", kExpert, kAll, kDevice},
    {"moe.experts.up_proj", "mlp.experts.{}.up_proj.weight", "[F, D]", kExpert, kAll, kDevice},
    {"moe.experts.down_proj", "mlp.experts.{}.down_proj.weight", "[D, F]", kExpert, kAll, kDevice},
    {"moe.shared.gate_proj", "mlp.shared_expert.gate_proj.weight", "[FS, D]", kLinear, kAll, kDevice, LAYER(moe.shared.gate_proj)},
    {"moe.shared.up_proj", "mlp.shared_expert.up_proj.weight", "[FS, D]", kLinear, kAll, kDevice, LAYER(moe.shared.up_proj)},
    {"moe.shared.down_proj", "mlp.shared_expert.down_proj.weight", "[D, FS]", kLinear, kAll, kDevice, LAYER(moe.shared.down_proj)},
    {"moe.shared_gate", "mlp.shared_expert_gate.weight", "[1, D]", kLinear, kAll, kDevice, LAYER(moe.shared_gate)},
    // N-gram embedding layers.
    {"ple.key_proj", "ple.key_proj.weight", "[HC*D, PE]", kLinear, kPle, kDevice, LAYER(ple->key_proj)},
    {"ple.value_proj", "ple.value_proj.weight", "[D, PE]", kLinear, kPle, kDevice, LAYER(ple->value_proj)},
    {"ple.norm_key", "ple.norm_key.weight", "[HC*D]", kPlain, kPle, kDevice, LAYER(ple->norm_key)},
    {"ple.norm_query", "ple.norm_query.weight", "[HC*D]", kPlain, kPle, kDevice, LAYER(ple->norm_query)},
    {"ple.norm_conv", "ple.norm_conv.weight", "[HC*D]", kPlain, kPle, kDevice, LAYER(ple->norm_conv)},
    {"ple.conv", "ple.conv1d.weight", "[HC*D, 1, WP]", kPlain, kPle, kDevice, LAYER(ple->conv)},
    {"ple.table", "ple.ple_embedding.ngram_embedding", "[NGVOC, DE]", kNgramTable, kPle, kGathered},
    {"ple.multipliers", "ple.ple_embedding.layer_multipliers", "[NS]", kNgramConstant, kPle, kDevice},
    {"ple.head_sizes", "ple.ple_embedding.ngram_heads_vocab_sizes", "[NG]", kNgramConstant, kPle, kDevice},
    {"ple.head_offsets", "ple.ple_embedding.ngram_heads_offsets", "[NG]", kNgramConstant, kPle, kDevice},
    // Draft head; its layers are sparse attention layers under mtp.layers.<l>.
    {"mtp", "fc_embedding.weight", "[D, D]", kLinear, kMtp, kDevice},
    {"mtp", "fc_hidden.weight", "[D, D]", kLinear, kMtp, kDevice},
    {"mtp", "pre_fc_norm_embedding.weight", "[D]", kPlain, kMtp, kDevice},
    {"mtp", "pre_fc_norm_hidden.weight", "[HC*D]", kPlain, kMtp, kDevice},
    {"mtp", "hyper_connection_mixer.hc_norm.weight", "[HC*D]", kPlain, kMtp, kDevice},
    {"mtp", "hyper_connection_mixer.input_mix_weight_down.weight", "[LR, HC*D]", kLinear, kMtp, kDevice},
    {"mtp", "hyper_connection_mixer.input_mix_weight_up.weight", "[HC*D, LR]", kLinear, kMtp, kDevice},
    // Vision tower.
    {"vision", "patch_embed.proj.weight", "[VH, VC, VT, VS, VS]", kPlain, kVision, kDevice},
    {"vision", "patch_embed.proj.bias", "[VH]", kPlain, kVision, kDevice},
    {"vision", "pos_embed.weight", "[VP, VH]", kPlain, kVision, kDevice},
    {"vision", "merger.norm.weight", "[VH]", kPlain, kVision, kDevice},
    {"vision", "merger.norm.bias", "[VH]", kPlain, kVision, kDevice},
    {"vision", "merger.linear_fc1.weight", "[VM*VM*VH, VM*VM*VH]", kPlain, kVision, kDevice},
    {"vision", "merger.linear_fc1.bias", "[VM*VM*VH]", kPlain, kVision, kDevice},
    {"vision", "merger.linear_fc2.weight", "[VO, VM*VM*VH]", kPlain, kVision, kDevice},
    {"vision", "merger.linear_fc2.bias", "[VO]", kPlain, kVision, kDevice},
    {"vision", "norm1.weight", "[VH]", kPlain, kVisionBlock, kDevice},
    {"vision", "norm1.bias", "[VH]", kPlain, kVisionBlock, kDevice},
    {"vision", "norm2.weight", "[VH]", kPlain, kVisionBlock, kDevice},
    {"vision", "norm2.bias", "[VH]", kPlain, kVisionBlock, kDevice},
    {"vision", "attn.qkv.weight", "[3*VH, VH]", kLinear, kVisionBlock, kDevice},
    {"vision", "attn.qkv.bias", "[3*VH]", kPlain, kVisionBlock, kDevice},
    {"vision", "attn.proj.weight", "[VH, VH]", kLinear, kVisionBlock, kDevice},
    {"vision", "attn.proj.bias", "[VH]", kPlain, kVisionBlock, kDevice},
    {"vision", "mlp.linear_fc1.weight", "[VI, VH]", kLinear, kVisionBlock, kDevice},
    {"vision", "mlp.linear_fc1.bias", "[VI]", kPlain, kVisionBlock, kDevice},
    {"vision", "mlp.linear_fc2.weight", "[VH, VI]", kLinear, kVisionBlock, kDevice},
    {"vision", "mlp.linear_fc2.bias", "[VH]", kPlain, kVisionBlock, kDevice}};

#undef LAYER
#undef MODEL

constexpr int kMaxVisionSize = 1 << 16;

int vision_integer(const nlohmann::json& vision, const char* key) {
  auto found = vision.find(key);
  // patch sizes may be written as a list of equal numbers
  if (found != vision.end() && found->is_array() && !found->empty() &&
      (key == std::string_view("patch_size") || key == std::string_view("temporal_patch_size")))
    return vision_integer({{key, found->front()}}, key);
  if (found == vision.end() || !found->is_number_integer() || !in_range(*found, 1, kMaxVisionSize))
    fail<LoadError>("vision_config.{}: expected a whole number in [1, {}], got {}", key, kMaxVisionSize,
                    found == vision.end() ? "no such field" : found->dump());
  return found->get<int>();
}

}  // namespace

std::span<const WeightRow> weights_table() { return kRows; }

ShapeLetters::ShapeLetters(const Config& c) {
  values_ = {{"V", c.vocab_size},      {"D", c.hidden_size},          {"HC", c.hc_count},
             {"LR", c.hc_lowrank},     {"HQ", c.num_attention_heads}, {"HKV", c.num_kv_heads},
             {"DH", c.head_dim},       {"HK", c.gdn_key_heads},       {"HV", c.gdn_value_heads},
             {"K", c.gdn_key_dim},     {"VD", c.gdn_value_dim},       {"W", c.gdn_conv_width},
             {"E", c.num_experts},     {"F", c.moe_intermediate},     {"FS", c.shared_expert_intermediate},
             {"HI", c.index_heads},    {"DI", c.index_head_dim},      {"PE", c.ple_embed_dim},
             {"WP", c.ple_conv_width}, {"NS", c.ngram_size},          {"NG", c.ngram_heads()}};
  if (!c.ple_layers.empty()) values_.emplace_back("DE", c.ngram_row_dim());
}

void ShapeLetters::set(std::string_view letter, std::int64_t value) { values_.emplace_back(letter, value); }

// "2*HK*K": factors are letters or numbers.
std::int64_t ShapeLetters::product(std::string_view text) const {
  std::int64_t result = 1;
  while (true) {
    const std::size_t star = text.find('*');
    const std::string_view factor = text.substr(0, star);
    TETRAD_CHECK(!factor.empty(), "empty factor in a shape of the weights table");
    std::int64_t value = -1;
    if (std::isdigit(static_cast<unsigned char>(factor.front())) != 0) value = std::stoll(std::string(factor));
    for (const auto& [letter, known] : values_)
      if (letter == factor) value = known;
    TETRAD_CHECK(value >= 0, "letter {} of a shape has no value", factor);
    result *= value;
    if (star == std::string_view::npos) return result;
    text.remove_prefix(star + 1);
  }
}

std::vector<std::int64_t> ShapeLetters::evaluate(std::string_view shape) const {
  TETRAD_CHECK(shape.size() >= 2 && shape.front() == '[' && shape.back() == ']', "shape {} is not in brackets", shape);
  std::vector<std::int64_t> lengths{0};
  for (std::string_view rest = shape.substr(1, shape.size() - 2); !rest.empty();) {
    const std::size_t end = rest.find_first_of("+,");
    lengths.back() += product(rest.substr(0, end));
    if (end == std::string_view::npos) break;
    const bool comma = rest[end] == ',';
    rest.remove_prefix(end + 1);
    while (!rest.empty() && rest.front() == ' ') rest.remove_prefix(1);
    if (comma) lengths.push_back(0);
  }
  return lengths;
}

std::vector<std::int64_t> table_shard_rows(std::int64_t padded_rows, int parts) {
  const std::int64_t count = std::max(parts, 1);
  const std::int64_t rows = (padded_rows + count - 1) / count;
  std::vector<std::int64_t> result;
  for (std::int64_t first = 0; first < padded_rows; first += rows) result.push_back(std::min(rows, padded_rows - first));
  return result;
}

VisionSizes parse_vision(const Config& config) {
  if (config.vision_json.empty()) return {};
  const nlohmann::json vision = parse_json(config.vision_json, "vision_config");
  VisionSizes sizes;
  sizes.num_blocks = vision_integer(vision, "depth");
  for (const auto& [letter, key] : {std::pair{"VH", "hidden_size"},
                                    {"VI", "intermediate_size"},
                                    {"VO", "out_hidden_size"},
                                    {"VC", "in_channels"},
                                    {"VT", "temporal_patch_size"},
                                    {"VS", "patch_size"},
                                    {"VM", "spatial_merge_size"},
                                    {"VP", "num_position_embeddings"}})
    sizes.letters.emplace_back(letter, vision_integer(vision, key));
  return sizes;
}

}  // namespace tetrad
