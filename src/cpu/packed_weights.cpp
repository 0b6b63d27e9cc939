#include "cpu/packed_weights.h"

#include <cmath>

#include "base/bf16.h"
#include "base/error.h"
#include "cpu/mutants.h"
#include "model/weight_values.h"

namespace tetrad::cpu {
namespace {

std::vector<float> one_plus(const WeightView& view) {
  std::vector<float> scale = weight_floats(view);
  for (float& w : scale) w = mutant(Mutant::kNormWithoutOne) ? w : 1.0f + w;
  return scale;
}

// [channels, 1, width] -> [width, channels]
std::vector<float> tap_major(const WeightView& conv, int channels, int width) {
  const std::vector<float> values = weight_floats(conv);
  std::vector<float> taps(values.size());
  for (int c = 0; c < channels; ++c)
    for (int j = 0; j < width; ++j) taps[static_cast<std::size_t>(j) * channels + c] = values[static_cast<std::size_t>(c) * width + j];
  return taps;
}

PackedLinear stack(std::initializer_list<const LinearView*> views) {
  std::vector<LinearView> rows;
  for (const LinearView* view : views) rows.push_back(*view);
  return PackedLinear::pack_rows(rows);
}

PackedHc pack_hc(const HcWeights& w) {
  PackedHc packed;
  packed.norm_scale = one_plus(w.norm);
  packed.has_inject = w.inject.has_value();
  packed.down_inject = packed.has_inject ? stack({&w.down, &*w.inject}) : stack({&w.down});
  packed.up = PackedLinear::pack(w.up);
  return packed;
}

PackedGdn pack_gdn(const Config& c, const GdnWeights& w) {
  PackedGdn packed;
  packed.in = stack({&w.in_qkv, &w.in_z, &w.in_b, &w.in_a});
  packed.conv = tap_major(w.conv, c.gdn_conv_dim(), c.gdn_conv_width);
  packed.neg_exp_a = weight_floats(w.a_log);
  for (float& a : packed.neg_exp_a) a = -std::exp(a);
  packed.dt_bias = weight_floats(w.dt_bias);
  packed.norm = weight_floats(w.norm);
  packed.out = PackedLinear::pack(w.out);
  return packed;
}

PackedQsa pack_qsa(const QsaWeights& w) {
  PackedQsa packed;
  packed.in = stack({&w.q, &w.k, &w.v, &w.index_qk});
  packed.q_norm_scale = one_plus(w.q_norm);
  packed.k_norm_scale = one_plus(w.k_norm);
  packed.index_q_norm_scale = one_plus(w.index_q_norm);
  packed.index_k_norm_scale = one_plus(w.index_k_norm);
  packed.out = PackedLinear::pack(w.o);
  return packed;
}

PackedMoe pack_moe(const MoeWeights& w) {
  PackedMoe packed;
  packed.router = PackedLinear::pack(w.router);
  packed.experts.reserve(w.experts.size());
  for (const ExpertWeights& expert : w.experts)
    packed.experts.push_back({stack({&expert.gate_proj, &expert.up_proj}), PackedLinear::pack(expert.down_proj)});
  packed.shared.gate_up = stack({&w.shared.gate_proj, &w.shared.up_proj, &w.shared_gate});
  packed.shared.down = PackedLinear::pack(w.shared.down_proj);
  return packed;
}

PackedPle pack_ple(const Config& c, int layer, const PleWeights& w) {
  PackedPle packed;
  packed.key_value = stack({&w.key_proj, &w.value_proj});
  packed.norm_key_scale = one_plus(w.norm_key);
  packed.norm_query_scale = one_plus(w.norm_query);
  packed.norm_conv_scale = one_plus(w.norm_conv);
  packed.conv = tap_major(w.conv, c.streams_size(), c.ple_conv_width);
  packed.table = w.table;
  packed.hash = make_ngram_hash(c, c.ple_index(layer));
  return packed;
}

std::size_t hc_bytes(const PackedHc& hc) { return hc.down_inject.bytes() + hc.up.bytes() + hc.norm_scale.size() * sizeof(float); }

std::size_t layer_bytes(const PackedLayer& layer) {
  std::size_t bytes = hc_bytes(layer.attn_hc) + hc_bytes(layer.mlp_hc) + layer.moe.router.bytes();
  if (layer.gdn) bytes += layer.gdn->in.bytes() + layer.gdn->out.bytes();
  if (layer.qsa) bytes += layer.qsa->in.bytes() + layer.qsa->out.bytes();
  if (layer.ple) bytes += layer.ple->key_value.bytes();
  for (const PackedExpert& expert : layer.moe.experts) bytes += expert.gate_up.bytes() + expert.down.bytes();
  return bytes + layer.moe.shared.gate_up.bytes() + layer.moe.shared.down.bytes();
}

}  // namespace

void read_table_row(const NgramTable& table, std::int64_t row, int row_dim, float* out) {
  std::size_t shard = 0;
  if (table.shards.size() > 1) {  // all but the last shard have the same number of rows
    shard = static_cast<std::size_t>(row / table.first_row[1]);
    shard = std::min(shard, table.shards.size() - 1);
  }
  TETRAD_CHECK(row >= table.first_row[shard] && row < table.first_row[shard + 1], "row {} of shard {}", row, shard);
  const WeightView& view = table.shards[shard];
  const std::int64_t first = (row - table.first_row[shard]) * row_dim;
  for (int i = 0; i < row_dim; ++i) out[i] = weight_element(view, first + i);
  if (!table.scale) return;
  const float scale = round_bf16(*table.scale);
  for (int i = 0; i < row_dim; ++i) out[i] = round_bf16(out[i] * scale);
}

void read_embedding_row(const WeightView& embedding, int row, float* out) {
  const std::int64_t dim = embedding.shape[1];
  for (std::int64_t i = 0; i < dim; ++i) out[i] = weight_element(embedding, row * dim + i);
}

PackedModel pack_model(const Config& config, const ModelWeights& weights, const std::function<void(int, int)>& progress) {
  PackedModel model;
  model.embed_tokens = weights.embed_tokens;
  model.checkpoint = weights.checkpoint;
  model.layers.reserve(weights.layers.size());
  for (const LayerWeights& w : weights.layers) {
    const int layer = static_cast<int>(model.layers.size());
    PackedLayer packed;
    packed.attn_hc = pack_hc(w.attn_hc);
    packed.mlp_hc = pack_hc(w.mlp_hc);
    if (w.gdn) packed.gdn = pack_gdn(config, *w.gdn);
    if (w.qsa) packed.qsa = pack_qsa(*w.qsa);
    if (w.ple) packed.ple = pack_ple(config, layer, *w.ple);
    packed.moe = pack_moe(w.moe);
    model.packed_bytes += layer_bytes(packed);
    model.layers.push_back(std::move(packed));
    if (progress) progress(layer + 1, static_cast<int>(weights.layers.size()));
  }
  model.mixer = pack_hc(weights.mixer);
  model.lm_head = PackedLinear::pack(weights.lm_head);
  model.packed_bytes += hc_bytes(model.mixer) + model.lm_head.bytes();
  return model;
}

}  // namespace tetrad::cpu
