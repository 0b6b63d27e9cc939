#include "cuda/forward.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "cuda/kernels/ends.h"
#include "cuda/kernels/gdn.h"
#include "cuda/kernels/hyper_connections.h"
#include "cuda/kernels/moe.h"
#include "cuda/kernels/ple.h"
#include "cuda/kernels/qsa.h"

namespace tetrad::cuda {
namespace {

HcShape hc_shape(const Config& c) { return {c.hc_count, c.hidden_size, c.hc_lowrank, static_cast<float>(c.rms_norm_eps)}; }

// A step of few rows without a sink takes fewer launches to the same bits.
bool few_rows(const StepContext& step) {
  return step.T() <= hc_few_rows(hc_shape(step.config), step.stream) && step.batch.taps == nullptr &&
         step.config.hidden_size % kFragmentRows == 0;
}

// Memory idles while few rows wait for each other: what the linears after them read first comes into L2 meanwhile.
void fetch_ahead(std::initializer_list<const DeviceLinear*> weights, const StepContext& step) {
  if (few_rows(step)) step.prefetch.begin(weights, step.stream);
}

// streams -> normed, with the injection of the sub-block before it where there was one.
void hc_norm(const DeviceHc& w, const StepContext& step, bool inject) {
  const Config& c = step.config;
  Workspace& ws = step.ws;
  const HcShape s = hc_shape(c);
  const int T = step.T(), width = c.streams_size();
  if (few_rows(step)) return hc_inject_norm(s, T, inject ? ws.inject : nullptr, ws.y, ws.streams, w.norm_scale, ws.normed, step.stream);
  if (inject) return hc_inject_norm_rows(s, T, ws.inject, ws.y, ws.streams, w.norm_scale, ws.normed, step.stream);
  norm_rows({.T = T,
             .groups = c.hc_count,
             .D = c.hidden_size,
             .eps = s.eps,
             .x = ws.streams,
             .ldx = width,
             .scale = w.norm_scale,
             .shared_scale = false,
             .out = ws.normed,
             .ldo = width},
            step.stream);
}

// normed -> x [T, D], and the injection weights of the sub-block unless this is the final mixer; next: the linear that takes x.
void hc_mix_normed(const DeviceHc& w, const StepContext& step, const DeviceLinear& next, bool final) {
  const Config& c = step.config;
  Workspace& ws = step.ws;
  const int T = step.T(), width = c.streams_size();
  const HcShape s = hc_shape(c);
  bf16* inject = final ? nullptr : ws.inject;
  if (few_rows(step)) {
    if (!hc_down(s, w.down_inject, T, ws.normed, ws.low, ws.low_ld, inject, step.stream)) {
      linear_sums(w.down_inject, {.T = T, .x = ws.normed, .ldx = width}, ws.low_sums, step.stream);
      hc_activate_sums(s, T, ws.low_sums, linear_segments(w.down_inject), w.down_inject.row_fragments() * kFragmentRows, ws.low, ws.low_ld,
                       inject, step.stream);
    }
    fetch_ahead({&next}, step);
    return hc_up_mean(s, w.up, T, ws.low, ws.low_ld, ws.normed, ws.x, step.stream);
  }
  linear(w.down_inject, {.T = T, .x = ws.normed, .ldx = width, .y = ws.low_logits, .ldy = ws.low_ld}, step.stream);
  hc_activate(s, T, ws.low_logits, ws.low_ld, ws.low, ws.low_ld, inject, step.stream);
  linear(w.up, {.T = T, .x = ws.low, .ldx = ws.low_ld, .y = ws.stream_gate, .ldy = width}, step.stream);
  hc_mean(s, T, ws.stream_gate, ws.normed, ws.x, step.stream);
}

// streams -> x, with the injection of the sub-block before it where that is pending.
void hc_mix(const DeviceHc& w, const StepContext& step, const DeviceLinear& next, bool pending, bool final = false) {
  Workspace& ws = step.ws;
  const HcShape s = hc_shape(step.config);
  if (few_rows(step)) {
    const HcInjection injection{pending ? ws.inject : nullptr, ws.y, ws.streams, w.norm_scale, ws.streams_after, ws.normed};
    if (hc_inject_down(s, w.down_inject, step.T(), injection, ws.low, ws.low_ld, final ? nullptr : ws.inject_after, step.stream)) {
      std::swap(ws.streams, ws.streams_after);
      std::swap(ws.inject, ws.inject_after);
      fetch_ahead({&next}, step);
      return hc_up_mean(s, w.up, step.T(), ws.low, ws.low_ld, ws.normed, ws.x, step.stream);
    }
  }
  hc_norm(w, step, pending);
  hc_mix_normed(w, step, next, final);
}

// y into the streams; without a sink the next hc_norm does it, unless something else touches the streams before.
void inject_now(const StepContext& step) {
  hc_inject(hc_shape(step.config), step.T(), step.ws.inject, step.ws.y, step.ws.streams, step.stream);
}

void gdn_layer(const DeviceGdn& w, int layer, const StepContext& step, const DeviceHc& hc_after) {
  const Config& c = step.config;
  Workspace& ws = step.ws;
  const int T = step.T(), HV = c.gdn_value_heads, V = c.gdn_value_dim, conv = c.gdn_conv_dim();
  const GdnShape s{.HK = c.gdn_key_heads,
                   .HV = HV,
                   .K = c.gdn_key_dim,
                   .V = V,
                   .W = c.gdn_conv_width,
                   .conv = conv,
                   .z = conv,
                   .b = conv + HV * V,
                   .a = conv + HV * V + HV,
                   .row = ws.projected_ld,
                   .sigmoid_gate = c.output_gate == OutputGate::kSigmoid,
                   .eps = static_cast<float>(c.rms_norm_eps),
                   .conv_offset = step.slot_offset(StateKind::kGdnConv, layer),
                   .state_offset = step.slot_offset(StateKind::kGdnState, layer)};
  const GdnWeightsView weights{w.conv, w.neg_exp_a, w.dt_bias, w.norm};
  const GdnBuffers b{ws.projected, ws.conv, ws.decay, ws.beta, ws.unit_scales, ws.heads, ws.arrivals};
  linear(w.in, {.T = T, .x = ws.x, .ldx = c.hidden_size, .y = ws.projected, .ldy = s.row}, step.stream);
  fetch_ahead({&w.out, &hc_after.down_inject}, step);
  step.tap(layer, "gdn.qkv_proj", ws.projected, {{T, conv}, s.row});
  step.tap(layer, "gdn.z_proj", ws.projected + s.z, {{T, HV * V}, s.row});
  step.tap(layer, "gdn.b_proj", ws.projected + s.b, {{T, HV}, s.row});
  step.tap(layer, "gdn.a_proj", ws.projected + s.a, {{T, HV}, s.row});
  if (step.batch.taps == nullptr && takes_gdn_step(s, step.rows)) {
    gdn_step(s, weights, b, step.rows, step.stream);
  } else {
    gdn_conv(s, weights, b, step.rows, step.stream);
    gdn_move_window(s, b, step.rows, step.stream);
    gdn_gates(s, weights, b, T, step.stream);
    gdn_recurrence(s, b, step.rows, step.stream);
    step.tap(layer, "gdn.core", ws.heads, {{static_cast<std::int64_t>(T) * HV, V}});
    gdn_gated_norm(s, weights, b, T, step.stream);
    step.tap(layer, "gdn.normed", ws.heads, {{static_cast<std::int64_t>(T) * HV, V}});
  }
  linear(w.out, {.T = T, .x = ws.heads, .ldx = HV * V, .y = ws.y, .ldy = c.hidden_size}, step.stream);
}

QsaShape qsa_shape(const StepContext& step, int layer) {
  const Config& c = step.config;
  QsaShape s{.HQ = c.num_attention_heads,
             .HKV = c.num_kv_heads,
             .DH = c.head_dim,
             .HI = c.index_heads,
             .DI = c.index_head_dim,
             .R = c.compress_ratio,
             .DR = c.rope.rotary_dim,
             .k = 2 * c.num_attention_heads * c.head_dim,
             .v = 0,
             .index_q = 0,
             .index_k = 0,
             .row = step.ws.projected_ld,
             .topk = c.block_topk(),
             .attended = c.index_budget + c.compress_ratio,
             .max_blocks = step.ws.max_blocks,
             .layer = layer,
             .eps = static_cast<float>(c.rms_norm_eps),
             .rope_factor = 1.0f,
             .k_offset = 0,
             .v_offset = 0,
             .keys_offset = 0,
             .pending_offset = step.slot_offset(StateKind::kIndexKeys, layer)};
  s.v = s.k + s.HKV * s.DH;
  s.index_q = s.v + s.HKV * s.DH;
  s.index_k = s.index_q + s.HI * s.DI;
  const std::string prefix = "layers." + std::to_string(layer);
  s.k_offset = step.layout.page_section(prefix + ".k").offset;
  s.v_offset = step.layout.page_section(prefix + ".v").offset;
  s.keys_offset = step.layout.page_section(prefix + ".block_keys").offset;
  return s;
}

// Shows each row's selection to the sink, which may change it.
void tap_selection(const QsaShape& s, const QsaGroup& g, const StepContext& step) {
  if (step.batch.taps == nullptr) return;
  const auto rows = static_cast<std::size_t>(g.count), width = static_cast<std::size_t>(s.attended);
  std::vector<int> counts(rows), positions(rows * width), query(static_cast<std::size_t>(step.T()));
  std::vector<float> scores(rows * static_cast<std::size_t>(s.max_blocks));
  step.stream.copy(counts.data(), g.counts, rows * sizeof(int));
  step.stream.copy(positions.data(), g.positions, positions.size() * sizeof(int));
  step.stream.copy(scores.data(), g.scores, scores.size() * sizeof(float));
  step.stream.copy(query.data(), step.rows.position, query.size() * sizeof(int));
  step.stream.synchronize();
  for (std::size_t i = 0; i < rows; ++i) {
    int* row = positions.data() + i * width;
    std::vector<int> chosen(row, row + counts[i]);
    const int t = g.first + static_cast<int>(i), position = query[static_cast<std::size_t>(t)], blocks = (position + 1) / s.R;
    const float* first = scores.data() + i * static_cast<std::size_t>(s.max_blocks);
    step.batch.taps->record_selected(s.layer, t, chosen, {first, static_cast<std::size_t>(blocks > s.topk ? blocks : 0)});
    TETRAD_CHECK(!chosen.empty() && chosen.size() <= width && chosen.back() <= position, "{} positions for the query at {}", chosen.size(),
                 position);
    counts[i] = static_cast<int>(chosen.size());
    std::copy(chosen.begin(), chosen.end(), row);
  }
  step.stream.copy(g.counts, counts.data(), rows * sizeof(int));
  step.stream.copy(g.positions, positions.data(), positions.size() * sizeof(int));
  step.stream.synchronize();  // the vectors go away
}

void qsa_layer(const DeviceModel& model, const DeviceQsa& w, int layer, const StepContext& step, const DeviceHc& hc_after) {
  const Config& c = step.config;
  Workspace& ws = step.ws;
  QsaShape s = qsa_shape(step, layer);
  s.rope_factor = model.rope_factor;
  const int T = step.T();
  const QsaWeightsView weights{w.q_norm, w.k_norm, w.index_q_norm, w.index_k_norm, model.frequencies};
  linear(w.in, {.T = T, .x = ws.x, .ldx = c.hidden_size, .y = ws.projected, .ldy = s.row}, step.stream);
  fetch_ahead({&w.out, &hc_after.down_inject}, step);
  step.tap(layer, "qsa.q_proj", ws.projected, {{T, s.k}, s.row});
  step.tap(layer, "qsa.v_proj", ws.projected + s.v, {{T, s.HKV * s.DH}, s.row});
  step.tap(layer, "qsa.index_qk", ws.projected + s.index_q, {{T, (s.HI + 1) * s.DI}, s.row});
  const bool tapped = step.batch.taps != nullptr;
  if (tapped) qsa_norm(s, weights, ws.projected, T, step.stream);
  step.tap(layer, "qsa.q_normed", ws.projected, {{T, s.HQ, s.DH}, s.row, s.HQ, 2 * s.DH});
  step.tap(layer, "qsa.k_normed", ws.projected + s.k, {{T, s.HKV, s.DH}, s.row});
  qsa_prepare(s, weights, ws.projected, ws.rope_cos, ws.rope_sin, tapped, step.rows, step.stream);
  for (int first = 0; first < T; first += ws.group_rows) {
    const QsaGroup g{first, std::min(ws.group_rows, T - first), ws.block_scores, ws.positions, ws.counts};
    qsa_scores(s, ws.projected, g, step.most_blocks, step.rows, step.stream);
    qsa_select(s, g, step.most_blocks, step.rows, step.stream);
    tap_selection(s, g, step);
    qsa_attend(s, ws.projected, g, ws.heads, step.rows, step.stream);
  }
  step.tap(layer, "qsa.gated", ws.heads, {{T, s.HQ * s.DH}});
  linear(w.out, {.T = T, .x = ws.heads, .ldx = s.HQ * s.DH, .y = ws.y, .ldy = c.hidden_size}, step.stream);
}

void moe_layer(const DeviceMoe& w, int layer, const StepContext& step, const DeviceHc& hc_after) {
  const Config& c = step.config;
  Workspace& ws = step.ws;
  const int T = step.T(), E = c.num_experts, EK = c.experts_per_token, D = c.hidden_size, pairs = T * EK;
  const MoeShape s{.E = E,
                   .EK = EK,
                   .F = c.moe_intermediate,
                   .FS = c.shared_expert_intermediate,
                   .in_ld = ws.moe_in_ld,
                   .renormalise = c.norm_topk_prob};
  const LinearGroups up{.num_groups = E,
                        .num_active_bound = std::min(E, pairs),
                        .num_tiles_bound = pairs / kGroupTileRows + std::min(E, pairs),
                        .first = ws.grouping.first,
                        .active = ws.grouping.active,
                        .num_active = ws.grouping.num_active,
                        .tiles = ws.grouping.tiles,
                        .num_tiles = ws.grouping.num_tiles,
                        .data_stride = w.gate_up_stride,
                        .scale_stride = w.gate_up_scale_stride,
                        .x_rows = ws.grouping.token,
                        .num_x_rows = T};
  LinearGroups down = up;
  down.data_stride = w.down_stride;
  down.scale_stride = w.down_scale_stride;
  down.x_rows = nullptr;
  const bf16* shared_gate = ws.moe_in + E + 2 * s.FS;
  linear(w.in, {.T = T, .x = ws.x, .ldx = D, .y = ws.moe_in, .ldy = ws.moe_in_ld}, step.stream);
  fetch_ahead({&w.shared_down, &hc_after.down_inject}, step);
  const LinearArgs from_act{.T = pairs, .x = ws.act, .ldx = ws.act_ld, .y = ws.expert_out, .ldy = D, .groups = &down};
  const LinearArgs from_shared_act{.T = T, .x = ws.shared_act, .ldx = ws.shared_act_ld, .y = ws.shared_out, .ldy = D};
  if (step.batch.taps == nullptr && moe_few_applies(s, w.gate_up, w.shared_down, T)) {
    moe_route_few(s, ws.moe_in, T, layer, ws.expert_weights, ws.shared_act, ws.shared_act_ld, ws.grouping, ws.faults, step.stream);
    moe_gate_up_few(w.gate_up, {.T = pairs, .x = ws.x, .ldx = D, .y = ws.act, .ldy = ws.act_ld, .groups = &up}, ws.grouping, ws.act_ld,
                    step.stream);
    return moe_down_few(s, w.down, from_act, w.shared_down, from_shared_act, ws.grouping, ws.expert_weights, shared_gate, ws.y,
                        step.stream);
  }
  step.tap(layer, "moe.router_logits", ws.moe_in, {{T, E}, ws.moe_in_ld});
  moe_route(s, ws.moe_in, T, layer, ws.expert_ids, ws.expert_weights, ws.faults, step.stream);
  step.tap(layer, "moe.weights", ws.expert_weights, {{T, EK}});
  step.tap_ids(layer, "moe.experts", ws.expert_ids, T, EK);
  moe_group(ws.expert_ids, T, E, EK, ws.grouping, step.stream);
  linear(w.gate_up, {.T = pairs, .x = ws.x, .ldx = D, .y = ws.hidden, .ldy = ws.hidden_ld, .groups = &up}, step.stream);
  moe_activate(pairs, s.F, ws.hidden, ws.hidden_ld, ws.act, ws.act_ld, step.stream);
  linear(w.down, from_act, step.stream);
  moe_activate(T, s.FS, ws.moe_in + E, ws.moe_in_ld, ws.shared_act, ws.shared_act_ld, step.stream);
  linear(w.shared_down, from_shared_act, step.stream);
  step.tap(layer, "moe.shared_out", ws.shared_out, {{T, D}});
  if (step.batch.taps == nullptr)  // hidden_size is a multiple of 8 (check_geometry)
    return moe_finish(T, EK, D, ws.expert_weights, ws.grouping.place, ws.expert_out, ws.shared_out, shared_gate, ws.moe_in_ld, ws.y,
                      step.stream);
  moe_combine(T, EK, D, ws.expert_weights, ws.grouping.place, ws.expert_out, ws.routed, step.stream);
  step.tap(layer, "moe.routed_out", ws.routed, {{T, D}});
  moe_add_shared(T, D, ws.routed, ws.shared_out, shared_gate, ws.moe_in_ld, ws.y, step.stream);
}

void ple_layer(const DevicePle& w, int layer, const StepContext& step) {
  const Config& c = step.config;
  Workspace& ws = step.ws;
  const int T = step.T(), width = c.streams_size();
  const PleShape s{.HC = c.hc_count,
                   .D = c.hidden_size,
                   .NG = c.ngram_heads(),
                   .DE = c.ngram_row_dim(),
                   .ngram_size = c.ngram_size,
                   .heads_per_ngram = c.heads_per_ngram,
                   .conv_width = c.ple_conv_width,
                   .eos = c.ple_eos_token,
                   .table_rows = w.table_rows,
                   .eps = static_cast<float>(c.rms_norm_eps),
                   .history_offset = step.slot_offset(StateKind::kNgramHistory, -1),
                   .window_offset = step.slot_offset(StateKind::kPleConv, layer),
                   .window_rows = c.ple_conv_rows()};
  const PleWeightsView weights{w.multipliers, w.head_sizes, w.head_offsets, w.table,     w.fp8,
                               w.scale,       w.norm_key,   w.norm_query,   w.norm_conv, w.conv};
  const PleBuffers b{ws.ngram_rows,   ws.ngram_embedding, ws.embedding_ld, ws.key_value,
                     ws.key_value_ld, ws.ple_gated,       ws.ple_normed,   ws.ple_out};
  ple_row_ids(s, weights, b, step.rows, step.stream);
  step.tap_ids(layer, "ple.rows", ws.ngram_rows, T, s.NG);
  ple_gather(s, weights, b, T, step.stream);
  step.tap(layer, "ple.embedding", ws.ngram_embedding, {{T, c.ple_embed_dim}, ws.embedding_ld});
  linear(w.key_value, {.T = T, .x = ws.ngram_embedding, .ldx = ws.embedding_ld, .y = ws.key_value, .ldy = ws.key_value_ld}, step.stream);
  ple_gate(s, weights, b, ws.streams, T, step.stream);
  ple_convolve(s, weights, b, step.rows, step.stream);
  move_window({.width = width, .history = s.window_rows, .rows = ws.ple_normed, .ld = width, .offset = s.window_offset}, step.rows,
              step.stream);
  step.tap(layer, "ple.out", ws.ple_out, {{T, width}});
  ple_add(s, ws.ple_out, ws.streams, T, step.stream);
}

// In pieces, so that no step needs room for the logits of all its rows. Without memory on the host they stay, in one piece.
void logits_of_rows(const DeviceModel& model, const StepContext& step, std::span<float> logits) {
  const Config& c = step.config;
  Workspace& ws = step.ws;
  const int count = static_cast<int>(step.batch.logit_rows.size());
  TETRAD_CHECK(!logits.empty() || count <= ws.logit_rows, "{} rows of logits are to stay, there is room for {}", count, ws.logit_rows);
  for (int first = 0; first < count; first += ws.logit_rows) {
    const int some = std::min(ws.logit_rows, count - first);
    take_rows(ws.x, c.hidden_size, step.logit_rows + first, some, ws.wanted, step.rows, step.stream);
    linear(model.lm_head, {.T = some, .x = ws.wanted, .ldx = c.hidden_size, .y = ws.logits, .ldy = c.vocab_size}, step.stream);
    widen_logits(ws.logits, c.vocab_size, step.logit_rows + first, some, c.num_layers, ws.wide_logits, step.rows, step.stream);
    if (logits.empty()) continue;
    const std::size_t V = static_cast<std::size_t>(c.vocab_size);
    step.stream.copy(logits.data() + static_cast<std::size_t>(first) * V, ws.wide_logits,
                     static_cast<std::size_t>(some) * V * sizeof(float));
  }
}

}  // namespace

void forward(const DeviceModel& model, const StepContext& step, std::span<float> logits) {
  const Config& c = step.config;
  Workspace& ws = step.ws;
  const int T = step.T(), D = c.hidden_size;
  step.stream.fill(ws.faults, 0, static_cast<std::size_t>(T) * sizeof(int));
  rope_angles(T, c.rope.rotary_dim / 2, step.rows.position, model.frequencies, model.rope_factor, ws.rope_cos, ws.rope_sin, step.stream);
  embed(model.embedding, D, c.hc_count, ws.streams, step.rows, step.stream);
  bool pending = false;  // the last sub-block's y is not in the streams yet
  for (int layer = 0; layer < c.num_layers; ++layer) {
    const DeviceLayer& w = model.layers[static_cast<std::size_t>(layer)];
    step.tap(layer, "stream_in", ws.streams, {{T, c.streams_size()}});
    if (w.ple) {
      if (pending) inject_now(step);
      pending = false;
      ple_layer(*w.ple, layer, step);
    }

    hc_mix(w.attn_hc, step, w.gdn ? w.gdn->in : w.qsa->in, pending);
    step.tap(layer, "attn.mixed", ws.x, {{T, D}});
    step.tap(layer, "attn.inject", ws.inject, {{T, c.hc_count}});
    if (w.gdn)
      gdn_layer(*w.gdn, layer, step, w.mlp_hc);
    else
      qsa_layer(model, *w.qsa, layer, step, w.mlp_hc);
    step.tap(layer, "attn.out", ws.y, {{T, D}});
    pending = step.batch.taps == nullptr;
    if (!pending) inject_now(step);

    hc_mix(w.mlp_hc, step, w.moe.in, pending);
    step.tap(layer, "mlp.mixed", ws.x, {{T, D}});
    step.tap(layer, "mlp.inject", ws.inject, {{T, c.hc_count}});
    moe_layer(w.moe, layer, step, layer + 1 < c.num_layers ? model.layers[static_cast<std::size_t>(layer) + 1].attn_hc : model.mixer);
    step.tap(layer, "moe.out", ws.y, {{T, D}});
    if (!pending) inject_now(step);
    step.tap(layer, "stream_out", ws.streams, {{T, c.streams_size()}});
  }
  if (!c.ple_layers.empty()) move_history(c.ngram_size, step.slot_offset(StateKind::kNgramHistory, -1), step.rows, step.stream);
  advance_lengths(step.slot_offset(StateKind::kPositions, -1), step.rows, step.stream);

  hc_mix(model.mixer, step, model.lm_head, pending, true);
  step.tap(-1, "final.mixed", ws.x, {{T, D}});
  logits_of_rows(model, step, logits);
  step.prefetch.end(step.stream);
}

}  // namespace tetrad::cuda
