#include "cuda/workspace.h"

#include <algorithm>

namespace tetrad::cuda {
namespace {

constexpr std::size_t kRowAlignment = 256;

int widest_projection(const Config& c) {
  const int gdn = c.gdn_conv_dim() + c.gdn_value_size() + 2 * c.gdn_value_heads;
  const int qsa = (2 * c.num_attention_heads + 2 * c.num_kv_heads) * c.head_dim + (c.index_heads + 1) * c.index_head_dim;
  return std::max(gdn, qsa);
}

}  // namespace

Workspace::Workspace(const Config& c, int max_rows, int max_positions) {
  low_width = c.hc_lowrank + c.hc_count;
  low_ld = padded(low_width);
  projected_ld = padded(widest_projection(c));
  moe_in_ld = padded(c.num_experts + 2 * c.shared_expert_intermediate + 1);
  hidden_ld = padded(2 * c.moe_intermediate);
  act_ld = padded(c.moe_intermediate);
  shared_act_ld = padded(c.shared_expert_intermediate);
  embedding_ld = padded(c.ple_embed_dim);
  key_value_ld = padded(c.streams_size() + c.hidden_size);
  max_blocks = padded(max_positions / std::max(c.compress_ratio, 1) + 1);  // eight scores are a sector of the caches
  group_rows = static_cast<int>(
      std::clamp<std::size_t>(kScoreBytes / (static_cast<std::size_t>(max_blocks) * sizeof(float)), 1, static_cast<std::size_t>(max_rows)));
  logit_rows = static_cast<int>(std::clamp<std::size_t>(kLogitBytes / (static_cast<std::size_t>(c.vocab_size) * sizeof(float)), 1,
                                                        static_cast<std::size_t>(max_rows)));
  std::size_t bytes = 0;
  place(c, max_rows, nullptr, &bytes);
  memory_ = DeviceBuffer<std::byte>(bytes, "workspace of a step");
  place(c, max_rows, memory_.data(), &bytes);
}

// Run without memory it only counts.
void Workspace::place(const Config& c, int max_rows, std::byte* memory, std::size_t* bytes) {
  std::size_t used = 0;
  const auto T = static_cast<std::size_t>(max_rows);
  const auto take = [&]<class P>(P*& pointer, std::size_t count) {
    pointer = memory == nullptr ? nullptr : reinterpret_cast<P*>(memory + used);
    used += (count * sizeof(P) + kRowAlignment - 1) / kRowAlignment * kRowAlignment;
  };
  const auto D = static_cast<std::size_t>(c.hidden_size), HC = static_cast<std::size_t>(c.hc_count);
  const auto E = static_cast<std::size_t>(c.num_experts), pairs = T * static_cast<std::size_t>(c.experts_per_token);
  const auto HV = static_cast<std::size_t>(c.gdn_value_heads);
  take(streams, T * HC * D);
  take(streams_after, T * HC * D);
  take(x, T * D);
  take(y, T * D);
  take(inject, T * HC);
  take(inject_after, T * HC);
  take(normed, T * HC * D);
  take(low_logits, T * low_ld);
  take(low, T * low_ld);
  take(stream_gate, T * HC * D);
  const DeviceLinear down{.N = low_width, .K = c.streams_size()};
  take(low_sums, static_cast<std::size_t>(linear_segments(down)) * kFewLinearRows * down.row_fragments() * kFragmentRows);
  take(projected, T * projected_ld);
  take(heads, T * static_cast<std::size_t>(std::max(c.gdn_value_size(), c.num_attention_heads * c.head_dim)));
  take(conv, T * static_cast<std::size_t>(c.gdn_conv_dim()));
  take(decay, T * HV);
  take(beta, T * HV);
  take(unit_scales, T * 2 * static_cast<std::size_t>(c.gdn_key_heads));
  take(arrivals, T * static_cast<std::size_t>(c.gdn_key_heads));
  take(rope_cos, T * static_cast<std::size_t>(c.rope.rotary_dim / 2));
  take(rope_sin, T * static_cast<std::size_t>(c.rope.rotary_dim / 2));
  const auto G = static_cast<std::size_t>(group_rows);
  take(block_scores, G * static_cast<std::size_t>(max_blocks));
  take(positions, G * static_cast<std::size_t>(c.index_budget + c.compress_ratio));
  take(counts, G);
  take(moe_in, T * moe_in_ld);
  take(expert_ids, pairs);
  take(expert_weights, pairs);
  take(grouping.first, E + 1);
  take(grouping.place, pairs);
  take(grouping.token, pairs);
  take(grouping.active, E);
  take(grouping.num_active, 1);
  take(grouping.tiles, pairs / kGroupTileRows + 1 + E);
  take(grouping.num_tiles, 1);
  take(grouping.records, std::min(E, pairs));
  take(hidden, pairs * hidden_ld);
  take(act, pairs * act_ld);
  take(expert_out, pairs * D);
  take(shared_act, T * shared_act_ld);
  take(shared_out, T * D);
  take(routed, T * D);
  if (!c.ple_layers.empty()) {
    take(ngram_rows, T * static_cast<std::size_t>(c.ngram_heads()));
    take(ngram_embedding, T * embedding_ld);
    take(key_value, T * key_value_ld);
    take(ple_gated, T * HC * D);
    take(ple_normed, T * HC * D);
    take(ple_out, T * HC * D);
  }
  const auto L = static_cast<std::size_t>(logit_rows), V = static_cast<std::size_t>(c.vocab_size);
  take(wanted, L * D);
  take(logits, L * V);
  take(wide_logits, L * V);
  take(faults, T);
  *bytes = used;
}

}  // namespace tetrad::cuda
