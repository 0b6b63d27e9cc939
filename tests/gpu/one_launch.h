#pragma once
// A small valid step of two sequences and, for each kernel that reads indices from the device, one launch of it over that step.
#include <algorithm>
#include <deque>
#include <limits>

#include "cuda/kernels/ends.h"
#include "cuda/kernels/gdn.h"
#include "cuda/kernels/moe.h"
#include "cuda/kernels/ple.h"
#include "cuda/kernels/qsa.h"
#include "cuda/kernels/sample.h"
#include "device_weight.h"

namespace tetrad::cuda::test {

inline constexpr int kVocab = 16, kSlots = 3, kPageTokens = 8, kMaxPages = 24, kPages = 48, kExperts = 4, kPicks = 2, kManyRows = 140;
inline constexpr std::size_t kSlotBytes = 4096;

// A valid step of two sequences, on the host until upload(); sequence 0 is past its budget. A case breaks one of the arrays before that.
struct Step {
  explicit Step(int rows) : T(rows + 2) {
    for (int i = 0; i < rows; ++i) sequence.push_back(0), position.push_back(start[0] + i);
    for (int i = 0; i < 2; ++i) sequence.push_back(1), position.push_back(start[1] + i);
    first_row = {0, rows, T};
    for (int t = 0; t < T; ++t) token_ids.push_back(1 + t % (kVocab - 1));
    save_slot.assign(T, -1);
    for (int i = 0; i < 2 * kMaxPages; ++i) pages.push_back(kPages - 1 - i);
    for (int i = 0; i < T * kPicks; ++i) expert_ids.push_back((i + i / 2) % kExperts), place.push_back(i);
    table_rows.assign(T * 2, 7);
    counts.assign(T, 3);
    for (int t = 0; t < T; ++t)
      for (int n = 0; n < 12; ++n) attended.push_back(std::max(position[t] - 2, 0) + n % 3);
    group_rows(T * kPicks);
  }
  // Rows of y by expert, three of the four with rows.
  void group_rows(int rows) {
    const int a = rows / 2, b = rows - rows / 4;
    first = {0, a, b, rows, rows};
    active = {0, 1, 2}, num_active = {3}, num_tiles = {0};
    records = {{0, 0, a, 0}, {1, a, b, 0}, {2, b, rows, 0}};
    tiles.clear();
    for (int e = 0; e < 3; ++e)
      for (int row = first[e]; row < first[e + 1]; row += kGroupTileRows) tiles.push_back({e, row});
    num_tiles[0] = static_cast<int>(tiles.size());
    token.clear();
    for (int i = 0; i < rows; ++i) token.push_back(i % T);
  }

  template <class V>
  V* device(const std::vector<V>& values) {
    held.emplace_back(values.size() * sizeof(V), "an array of a step");
    stream.copy(held.back().data(), values.data(), values.size() * sizeof(V));
    stream.synchronize();
    return reinterpret_cast<V*>(held.back().data());
  }
  template <class V>
  V* space(std::size_t count) {
    held.emplace_back(count * sizeof(V), "room");
    return reinterpret_cast<V*>(held.back().data());
  }
  bf16* random(std::size_t count) { return device(random_bf16(count, static_cast<unsigned>(held.size()))); }
  float* ones(std::size_t count) { return device(std::vector<float>(count, 1.0f)); }

  StepRows rows() {
    StepRows r;
    r.T = T, r.B = 2;
    r.token_ids = device(token_ids), r.sequence = device(sequence), r.position = device(position), r.save_slot = device(save_slot);
    r.first_row = device(first_row), r.start = device(start), r.slot = device(slot), r.pages = device(pages), r.max_pages = kMaxPages;
    r.slots = device(std::vector<std::byte>(kSlotBytes * kSlots, slot_fill)), r.slot_bytes = kSlotBytes, r.num_slots = kSlots;
    r.page_bytes = page_bytes, r.num_pages = kPages, r.page_tokens = kPageTokens, r.vocab_size = kVocab;
    r.page_memory = space<std::byte>(page_bytes * kPages);
    r.faults = space<int>(T);
    return r;
  }
  MoeGrouping grouping() {
    return {device(first),      device(place), device(token),     device(active),
            device(num_active), device(tiles), device(num_tiles), device(records)};
  }
  LinearGroups groups(const Experts& experts, const MoeGrouping& g) const {
    return {.num_groups = kExperts,
            .num_active_bound = kExperts,
            .num_tiles_bound = static_cast<int>(tiles.size()),
            .first = g.first,
            .active = g.active,
            .num_active = g.num_active,
            .tiles = g.tiles,
            .num_tiles = g.num_tiles,
            .data_stride = experts.stride,
            .scale_stride = experts.scale_stride,
            .x_rows = g.token,
            .num_x_rows = T};
  }

  int T;
  std::vector<int> token_ids, sequence, position, save_slot, first_row, start{20, 3}, slot{0, 1}, pages, logit_rows{0, 5, 3};
  std::vector<int> expert_ids, place, counts, attended;
  std::vector<int> first, active, num_active, num_tiles, token;
  std::vector<int2> tiles;
  std::vector<int4> records;
  std::vector<int> choice_rows{1, 0}, adjusted{3, 5}, choice_masks{0, -1}, vocabulary_holes{2};
  std::vector<std::int64_t> table_rows;
  std::byte slot_fill{0};
  std::size_t page_bytes = 0;
  Stream stream;
  std::deque<DeviceBuffer<std::byte>> held;
};

// --- One launch each ---

inline constexpr int kHidden = 32, kStreams = 2;

inline void run_embed(Step& s) {
  embed(s.random(kVocab * kHidden), kHidden, kStreams, s.space<bf16>(s.T * kStreams * kHidden), s.rows(), s.stream);
}
inline void run_take_rows(Step& s) {
  take_rows(s.random(s.T * kHidden), kHidden, s.device(s.logit_rows), 3, s.space<bf16>(3 * kHidden), s.rows(), s.stream);
}
inline void run_widen_logits(Step& s) {  // a row that is not finite is written down, and its index looked at for that
  std::vector<bf16> logits(3 * kVocab, to_bf16(std::numeric_limits<float>::quiet_NaN()));
  widen_logits(s.device(logits), kVocab, s.device(s.logit_rows), 3, 4, s.space<float>(3 * kVocab), s.rows(), s.stream);
}
inline void run_sample(Step& s) {
  std::vector<DeviceChoice> choices(2);
  for (int i = 0; i < 2; ++i) choices[i].inverse_temperature = 1.0f, choices[i].row = s.choice_rows[i], choices[i].mask = s.choice_masks[i];
  choices[1].num_adjustments = 2;
  std::vector<TokenAdjustment> adjustments;
  for (const int id : s.adjusted) adjustments.push_back({.id = id, .flags = TokenAdjustment::kBiased, .bias = 1.0f});
  sample({.num_choices = 2,
          .num_rows = 2,
          .V = kVocab,
          .limit = kVocab,
          .num_holes = 1,
          .num_adjustments = static_cast<int>(adjustments.size()),
          .num_masks = 1,
          .logits = s.ones(2 * kVocab),
          .choices = s.device(choices),
          .holes = s.device(s.vocabulary_holes),
          .adjustments = s.device(adjustments),
          .masks = s.device(std::vector<std::uint32_t>{0xff00u}),
          .chosen = s.space<ChosenToken>(2)},
         sample_plan(kVocab, s.stream), s.stream);
}
inline void run_advance_lengths(Step& s) { advance_lengths(0, s.rows(), s.stream); }

inline GdnShape gdn_shape(int W) {
  GdnShape g{.HK = 1,
             .HV = 2,
             .K = 8,
             .V = 8,
             .W = W,
             .conv = 32,
             .z = 32,
             .b = 48,
             .a = 50,
             .row = 56,
             .sigmoid_gate = true,
             .eps = 1e-6f,
             .conv_offset = 0,
             .state_offset = 256};
  return g;
}
struct GdnArrays {
  GdnArrays(Step& s, const GdnShape& g)
      : weights{s.ones(g.W * g.conv), s.ones(g.HV), s.ones(g.HV), s.ones(g.V)},
        buffers{s.random(s.T * g.row),  s.random(s.T * g.conv),          s.ones(s.T * g.HV),         s.ones(s.T * g.HV),
                s.ones(s.T * 2 * g.HK), s.space<bf16>(s.T * g.HV * g.V), s.space<unsigned>(2 * g.HK)} {}
  GdnWeightsView weights;
  GdnBuffers buffers;
};
template <int W>
inline void run_gdn_conv(Step& s) {
  const GdnArrays a(s, gdn_shape(W));
  gdn_conv(gdn_shape(W), a.weights, a.buffers, s.rows(), s.stream);
}
inline void run_gdn_move_window(Step& s) {
  const GdnArrays a(s, gdn_shape(4));
  gdn_move_window(gdn_shape(4), a.buffers, s.rows(), s.stream);
}
inline void run_gdn_recurrence(Step& s) {
  const GdnArrays a(s, gdn_shape(4));
  gdn_recurrence(gdn_shape(4), a.buffers, s.rows(), s.stream);
}
inline void run_gdn_step(Step& s) {
  const GdnArrays a(s, gdn_shape(4));
  gdn_step(gdn_shape(4), a.weights, a.buffers, s.rows(), s.stream);
}

inline QsaShape qsa_shape(Step& s, bool published) {
  QsaShape q{};
  q.HQ = 2, q.HKV = 1, q.DH = 8, q.HI = published ? 4 : 1, q.DI = published ? 128 : 8, q.R = 4, q.DR = 8;
  q.k = 2 * q.HQ * q.DH, q.v = q.k + q.DH, q.index_q = q.v + q.DH, q.index_k = q.index_q + q.HI * q.DI, q.row = q.index_k + q.DI;
  q.topk = 2, q.attended = 12, q.max_blocks = kMaxPages * kPageTokens / q.R;
  q.eps = 1e-6f, q.rope_factor = 1.0f;
  q.k_offset = 0, q.v_offset = sizeof(bf16) * kPageTokens * q.DH, q.keys_offset = 2 * q.v_offset;
  q.pending_offset = 0;
  s.page_bytes = q.keys_offset + sizeof(bf16) * kPageTokens / q.R * q.DI;
  return q;
}
inline void run_qsa_prepare(Step& s) {
  const QsaShape q = qsa_shape(s, false);
  qsa_prepare(q, {s.ones(q.DH), s.ones(q.DH), s.ones(q.DI), s.ones(q.DI), s.ones(q.DR / 2)}, s.random(s.T * q.row), s.ones(s.T * q.DR / 2),
              s.ones(s.T * q.DR / 2), false, s.rows(), s.stream);
}
template <bool kPublished>
inline void run_qsa_scores(Step& s) {
  const QsaShape q = qsa_shape(s, kPublished);
  qsa_scores(q, s.random(s.T * q.row), {0, s.T, s.space<float>(s.T * q.max_blocks), nullptr, nullptr}, q.max_blocks, s.rows(), s.stream);
}
inline void run_qsa_select(Step& s) {
  const QsaShape q = qsa_shape(s, false);
  qsa_select(q, {0, s.T, s.ones(s.T * q.max_blocks), s.space<int>(s.T * q.attended), s.space<int>(s.T)}, q.max_blocks, s.rows(), s.stream);
}
inline void run_qsa_attend(Step& s) {
  const QsaShape q = qsa_shape(s, false);
  qsa_attend(q, s.random(s.T * q.row), {0, s.T, nullptr, s.device(s.attended), s.device(s.counts)}, s.space<bf16>(s.T * q.HQ * q.DH),
             s.rows(), s.stream);
}

inline void run_moe_group(Step& s) {
  const int pairs = s.T * kPicks;
  const MoeGrouping g{s.space<int>(kExperts + 1),      s.space<int>(pairs), s.space<int>(pairs),    s.space<int>(kExperts), s.space<int>(1),
                      s.space<int2>(pairs + kExperts), s.space<int>(1),     s.space<int4>(kExperts)};
  moe_group(s.device(s.expert_ids), s.T, kExperts, kPicks, g, s.stream);
}
inline void run_moe_combine(Step& s) {
  moe_combine(s.T, kPicks, kHidden, s.ones(s.T * kPicks), s.device(s.place), s.random(s.T * kPicks * kHidden), s.space<bf16>(s.T * kHidden),
              s.stream);
}
inline void run_moe_finish(Step& s) {
  moe_finish(s.T, kPicks, kHidden, s.ones(s.T * kPicks), s.device(s.place), s.random(s.T * kPicks * kHidden), s.random(s.T * kHidden),
             s.random(s.T), 1, s.space<bf16>(s.T * kHidden), s.stream);
}
// By groups: few rows, many without wgmma (K too short), many with it.
template <int K>
inline void run_linear_groups(Step& s) {
  const Experts experts(kExperts, 16, K, false, 1, s.stream);
  const MoeGrouping g = s.grouping();
  const LinearGroups groups = s.groups(experts, g);
  const int rows = static_cast<int>(s.token.size());
  linear(experts.linear, {.T = rows, .x = s.random(s.T * K), .ldx = K, .y = s.space<bf16>(rows * 16), .ldy = 16, .groups = &groups},
         s.stream);
}
inline constexpr int kIntermediate = 16;
inline void run_moe_gate_up_few(Step& s) {
  const Experts experts(kExperts, 2 * kIntermediate, kHidden, false, 1, s.stream);
  const MoeGrouping g = s.grouping();
  const LinearGroups groups = s.groups(experts, g);
  const int pairs = s.T * kPicks;
  moe_gate_up_few(experts.linear,
                  {.T = pairs,
                   .x = s.random(s.T * kHidden),
                   .ldx = kHidden,
                   .y = s.space<bf16>(pairs * kIntermediate),
                   .ldy = kIntermediate,
                   .groups = &groups},
                  g, kIntermediate, s.stream);
}
inline void run_moe_down_few(Step& s) {
  const Experts experts(kExperts, kHidden, kIntermediate, false, 1, s.stream);
  const Weight shared(kHidden, kIntermediate, false, 9, s.stream);
  const MoeGrouping g = s.grouping();
  LinearGroups groups = s.groups(experts, g);
  groups.x_rows = nullptr;
  const int pairs = s.T * kPicks;
  const MoeShape shape{.E = kExperts, .EK = kPicks, .F = kIntermediate, .FS = kIntermediate, .in_ld = 8, .renormalise = true};
  moe_down_few(shape, experts.linear,
               {.T = pairs,
                .x = s.random(pairs * kIntermediate),
                .ldx = kIntermediate,
                .y = s.space<bf16>(pairs * kHidden),
                .ldy = kHidden,
                .groups = &groups},
               shared.linear,
               {.T = s.T, .x = s.random(s.T * kIntermediate), .ldx = kIntermediate, .y = s.space<bf16>(s.T * kHidden), .ldy = kHidden}, g,
               s.ones(pairs), s.random(s.T * 8), s.space<bf16>(s.T * kHidden), s.stream);
  s.stream.synchronize();  // the weights go away
}

inline PleShape ple_shape() {
  return {.HC = 1,
          .D = 8,
          .NG = 2,
          .DE = 4,
          .ngram_size = 3,
          .heads_per_ngram = 1,
          .conv_width = 2,
          .eos = 0,
          .table_rows = 10,
          .eps = 1e-6f,
          .history_offset = 1024,
          .window_offset = 2048,
          .window_rows = 3};
}
struct PleArrays {
  explicit PleArrays(Step& s)
      : weights{s.device(std::vector<std::int64_t>{3, 5, 7}),
                s.device(std::vector<std::int64_t>{5, 5}),
                s.device(std::vector<std::int64_t>{0, 5}),
                s.random(10 * 4),
                false,
                1.0f,
                s.ones(8),
                s.ones(8),
                s.ones(8),
                s.ones(16)},
        buffers{s.device(s.table_rows), s.space<bf16>(s.T * 8), 8, s.random(s.T * 16), 16, s.random(s.T * 8),
                s.random(s.T * 8),      s.space<bf16>(s.T * 8)} {}
  PleWeightsView weights;
  PleBuffers buffers;
};
inline void run_ple_row_ids(Step& s) {
  const PleArrays a(s);
  ple_row_ids(ple_shape(), a.weights, a.buffers, s.rows(), s.stream);
}
inline void run_ple_gather(Step& s) {
  const PleArrays a(s);
  ple_gather(ple_shape(), a.weights, a.buffers, s.T, s.stream);
}
inline void run_ple_convolve(Step& s) {
  const PleArrays a(s);
  ple_convolve(ple_shape(), a.weights, a.buffers, s.rows(), s.stream);
}
inline void run_move_history(Step& s) { move_history(3, 1024, s.rows(), s.stream); }

}  // namespace tetrad::cuda::test
