#include "model/step_work.h"

#include <algorithm>

namespace tetrad {
namespace {

constexpr double kBf16 = 2.0, kF32 = 4.0;

struct LayerWeightsCount {
  double dense = 0;   // elements of the linears every token uses
  double expert = 0;  // elements of one routed expert
};

double hyper_connection(const Config& c, bool inject) {
  const double width = c.streams_size();
  return 2.0 * width * c.hc_lowrank + (inject ? width * c.hc_count : 0.0);
}

LayerWeightsCount count(const Config& c, int layer) {
  const double D = c.hidden_size;
  LayerWeightsCount n;
  n.dense = 2.0 * hyper_connection(c, true);
  if (c.layer_kinds[static_cast<std::size_t>(layer)] == LayerKind::kGdn)
    n.dense += D * (c.gdn_conv_dim() + 2.0 * c.gdn_value_size() + 2.0 * c.gdn_value_heads);
  else
    n.dense += D * ((3.0 * c.num_attention_heads + 2.0 * c.num_kv_heads) * c.head_dim + (c.index_heads + 1.0) * c.index_head_dim);
  if (c.has_ple(layer)) n.dense += static_cast<double>(c.ple_embed_dim) * (c.streams_size() + D);
  n.dense += D * c.num_experts + 3.0 * D * c.shared_expert_intermediate + D;
  n.expert = 3.0 * D * c.moe_intermediate;
  return n;
}

}  // namespace

StepWork decode_work(const Config& c, int context, double expert_weight_bytes) {
  StepWork work;
  double weights = hyper_connection(c, false) + static_cast<double>(c.vocab_size) * c.hidden_size;
  double experts = 0;
  for (int layer = 0; layer < c.num_layers; ++layer) {
    const LayerWeightsCount n = count(c, layer);
    weights += n.dense;
    experts += n.expert * c.experts_per_token;
    if (c.layer_kinds[static_cast<std::size_t>(layer)] == LayerKind::kGdn) {
      work.state_bytes += 2.0 * kF32 * c.gdn_value_heads * c.gdn_key_dim * c.gdn_value_dim;
    } else {
      const double attended = std::min(context, c.index_budget + c.compress_ratio - 1);
      const double scored = context / c.compress_ratio > c.block_topk() ? context / c.compress_ratio : 0;
      work.state_bytes += kBf16 * (2.0 * attended * c.num_kv_heads * c.head_dim + scored * c.index_head_dim);
    }
  }
  work.weight_bytes = kBf16 * weights + expert_weight_bytes * experts;
  work.flops = 2.0 * (weights + experts);
  return work;
}

double prefill_flops(const Config& c, int tokens) {
  const double head = static_cast<double>(c.vocab_size) * c.hidden_size;
  const double all = decode_work(c, 0).flops;
  return (all - 2.0 * head) * tokens + 2.0 * head;
}

}  // namespace tetrad
