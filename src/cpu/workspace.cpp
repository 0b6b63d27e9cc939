#include "cpu/workspace.h"

#include <algorithm>
#include <type_traits>

namespace tetrad::cpu {
namespace {

int widest_projection(const Config& c) {
  const int gdn = c.gdn_conv_dim() + c.gdn_value_size() + 2 * c.gdn_value_heads;
  const int qsa = (2 * c.num_attention_heads + 2 * c.num_kv_heads) * c.head_dim + (c.index_heads + 1) * c.index_head_dim;
  return std::max(gdn, qsa);
}

template <class V>
std::size_t vector_bytes(const V& v) {
  return v.size() * sizeof(typename V::value_type);
}

}  // namespace

Workspace::Workspace(const Config& c, int max_rows, int max_positions) {
  const auto T = static_cast<std::size_t>(max_rows);
  const auto D = static_cast<std::size_t>(c.hidden_size);
  const auto HC = static_cast<std::size_t>(c.hc_count);
  const auto EK = static_cast<std::size_t>(c.experts_per_token);
  const auto E = static_cast<std::size_t>(c.num_experts);
  streams.resize(T * HC * D);
  x.resize(T * D);
  y.resize(T * D);
  inject.resize(T * HC);
  normed.resize(T * HC * D);
  low_rank.resize(T * (static_cast<std::size_t>(c.hc_lowrank) + HC));
  stream_gate.resize(T * HC * D);
  projected.resize(T * static_cast<std::size_t>(widest_projection(c)));
  heads.resize(T * static_cast<std::size_t>(std::max(c.gdn_value_size(), c.num_attention_heads * c.head_dim)));
  conv.resize(T * static_cast<std::size_t>(c.gdn_conv_dim()));
  decay.resize(T * static_cast<std::size_t>(c.gdn_value_heads));
  beta.resize(T * static_cast<std::size_t>(c.gdn_value_heads));
  rope_cos.resize(T * static_cast<std::size_t>(c.rope.rotary_dim / 2));
  rope_sin.resize(rope_cos.size());

  const std::size_t blocks = static_cast<std::size_t>(max_positions / std::max(c.compress_ratio, 1)) + 1;
  const std::size_t attended = static_cast<std::size_t>(c.index_budget + c.compress_ratio);
  block_scores.resize(kRowGroup * blocks);
  block_order.resize(kRowGroup * blocks);
  selected_blocks.resize(kRowGroup * static_cast<std::size_t>(c.block_topk() + 1));
  selected.resize(kRowGroup * attended);
  k_rows.resize(kRowGroup * attended);
  v_rows.resize(kRowGroup * attended);
  raw_index_keys.resize(static_cast<std::size_t>(c.compress_ratio + 1) * static_cast<std::size_t>(c.index_head_dim));
  block_rope.resize(static_cast<std::size_t>(c.rope.rotary_dim));
  attention_scores.resize(kRowGroup * static_cast<std::size_t>(c.num_attention_heads) * attended);

  router_logits.resize(T * E);
  router_probs.resize(T * E);
  expert_ids.resize(T * EK);
  expert_weights.resize(T * EK);
  expert_first.resize(E + 1);
  expert_rows.resize(T * EK);
  grouped_x.resize(T * EK * D);
  grouped_hidden.resize(T * EK * 2 * static_cast<std::size_t>(c.moe_intermediate));
  grouped_out.resize(T * EK * D);
  shared_hidden.resize(T * (2 * static_cast<std::size_t>(c.shared_expert_intermediate) + 1));
  shared_out.resize(T * D);
  jobs.reserve(E + 1);

  if (!c.ple_layers.empty()) {
    ngram_rows.resize(T * static_cast<std::size_t>(c.ngram_heads()));
    ngram_embedding.resize(T * static_cast<std::size_t>(c.ple_embed_dim));
    ple_key_value.resize(T * (HC * D + D));
    ple_gated.resize(T * HC * D);
    ple_normed.resize(T * HC * D);
  }
  logit_rows.resize(T * D);
}

std::size_t Workspace::bytes() const {
  std::size_t total = 0;
  for (const auto* v : {&streams,
                        &x,
                        &y,
                        &inject,
                        &normed,
                        &low_rank,
                        &stream_gate,
                        &projected,
                        &heads,
                        &conv,
                        &decay,
                        &beta,
                        &rope_cos,
                        &rope_sin,
                        &block_scores,
                        &attention_scores,
                        &router_logits,
                        &router_probs,
                        &expert_weights,
                        &grouped_x,
                        &grouped_hidden,
                        &grouped_out,
                        &shared_hidden,
                        &shared_out,
                        &ngram_embedding,
                        &ple_key_value,
                        &ple_gated,
                        &ple_normed,
                        &logit_rows,
                        &raw_index_keys,
                        &block_rope})
    total += vector_bytes(*v);
  for (const auto* v : {&selected, &expert_ids, &expert_first, &expert_rows, &selected_blocks}) total += vector_bytes(*v);
  return total + vector_bytes(block_order) + vector_bytes(k_rows) + vector_bytes(v_rows) + vector_bytes(ngram_rows);
}

}  // namespace tetrad::cpu
