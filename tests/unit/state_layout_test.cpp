#include "model/state_layout.h"

#include <gtest/gtest.h>

#include <set>

#include "base/error.h"
#include "support/op_rig.h"

namespace tetrad::state_layout_test {
namespace {

Config everything() {
  Config c = test::small_config();
  c.num_layers = 3;
  c.layer_kinds = {LayerKind::kGdn, LayerKind::kQsa, LayerKind::kGdn};
  c.ple_layers = {0, 1};
  c.ngram_size = 3;
  c.heads_per_ngram = 2;
  c.ple_embed_dim = 8;
  c.ple_conv_width = 4;
  c.mtp_layers = 1;
  return c;
}

// Sections in order, without overlap, aligned, inside the total.
void expect_disjoint(const std::vector<StateSection>& sections, std::size_t total) {
  std::size_t end = 0;
  for (const StateSection& s : sections) {
    EXPECT_GE(s.offset, end) << s.name;
    EXPECT_EQ(s.offset % 64, 0u) << s.name;
    end = s.offset + s.bytes;
  }
  EXPECT_LE(end, total);
  EXPECT_EQ(total % 64, 0u);
}

TEST(state_layout, every_kind_has_a_place) {
  const StateLayout layout = make_state_layout(everything());
  expect_disjoint(layout.slot_sections, layout.slot_bytes);
  expect_disjoint(layout.page_sections, layout.page_bytes);
  std::set<StateKind> kinds;
  std::set<std::string> slot_names, page_names;
  for (const StateSection& s : layout.slot_sections) kinds.insert(s.kind), slot_names.insert(s.name);
  for (const StateSection& s : layout.page_sections) kinds.insert(s.kind), page_names.insert(s.name);
  EXPECT_EQ(kinds.size(), 8u);
  EXPECT_EQ(slot_names, (std::set<std::string>{"positions", "ngram_history", "layers.0.ple_conv", "layers.0.gdn_conv", "layers.0.gdn_state",
                                               "layers.1.ple_conv", "layers.1.pending_index_keys", "layers.2.gdn_conv",
                                               "layers.2.gdn_state", "mtp.layers.0.pending_index_keys", "mtp.layers.0.streams"}));
  EXPECT_EQ(page_names, (std::set<std::string>{"layers.1.k", "layers.1.v", "layers.1.block_keys", "mtp.layers.0.k", "mtp.layers.0.v",
                                               "mtp.layers.0.block_keys"}));
}

TEST(state_layout, sizes_by_hand) {
  // HKV 1, DH 8, DI 8, R 4; conv_dim 2*2*8 + 2*8 = 48, W 4; S 2*8*8; streams 4*24; history of 9 normed rows and 2 ids.
  const StateLayout layout = make_state_layout(everything());
  const auto bytes = [&](StateKind kind, int layer) { return layout.slot_section(kind, layer).bytes; };
  EXPECT_EQ(bytes(StateKind::kPositions, -1), 8u);
  EXPECT_EQ(bytes(StateKind::kNgramHistory, -1), 2u * 4);
  EXPECT_EQ(bytes(StateKind::kPleConv, 0), 9u * 96 * 2);
  EXPECT_EQ(bytes(StateKind::kGdnConv, 0), 3u * 48 * 2);
  EXPECT_EQ(bytes(StateKind::kGdnState, 2), 2u * 8 * 8 * 4);
  EXPECT_EQ(bytes(StateKind::kIndexKeys, 1), 3u * 8 * 2);
  EXPECT_EQ(layout.page_section("layers.1.k").row_bytes, 16u);
  EXPECT_EQ(layout.page_section("layers.1.k").bytes, 64u * 16);
  EXPECT_EQ(layout.page_section("layers.1.block_keys").bytes, 16u * 16);
  EXPECT_EQ(layout.page_section("layers.1.block_keys").tokens_per_row, 4);
  EXPECT_EQ(layout.page_section("mtp.layers.0.v").kind, StateKind::kDraft);
}

TEST(state_layout, pages_hold_whole_blocks_for_every_ratio) {
  for (int R = 2; R <= 70; ++R) {
    Config c = everything();
    c.compress_ratio = R;
    c.index_budget = 2 * R;
    const StateLayout layout = make_state_layout(c);
    EXPECT_EQ(layout.page_tokens % R, 0) << R;
    EXPECT_GE(layout.page_tokens, 64) << R;
    const StateSection& keys = layout.page_section("layers.1.block_keys");
    EXPECT_EQ(keys.bytes, static_cast<std::size_t>(layout.page_tokens / R) * keys.row_bytes);
    EXPECT_EQ(layout.slot_section(StateKind::kIndexKeys, 1).bytes, static_cast<std::size_t>(R - 1) * keys.row_bytes);
    expect_disjoint(layout.page_sections, layout.page_bytes);
  }
}

TEST(state_layout, parts_that_a_model_lacks_take_no_room) {
  Config c = everything();
  c.ple_layers.clear();
  c.mtp_layers = 0;
  c.layer_kinds = {LayerKind::kGdn, LayerKind::kGdn, LayerKind::kGdn};
  c.gdn_conv_width = 1;
  const StateLayout layout = make_state_layout(c);
  EXPECT_TRUE(layout.page_sections.empty());
  EXPECT_EQ(layout.page_bytes, 0u);
  EXPECT_EQ(layout.slot_section(StateKind::kGdnConv, 0).bytes, 0u);
  expect_disjoint(layout.slot_sections, layout.slot_bytes);
  EXPECT_THROW(layout.slot_section(StateKind::kNgramHistory, -1), InternalError);
  EXPECT_THROW(layout.page_section("layers.1.k"), InternalError);
}

TEST(state_layout, kinds_have_distinct_names) {
  std::set<std::string_view> names;
  for (int kind = 0; kind < 8; ++kind) names.insert(state_kind_name(static_cast<StateKind>(kind)));
  EXPECT_EQ(names.size(), 8u);
  EXPECT_THROW(state_kind_name(static_cast<StateKind>(8)), InternalError);
}

TEST(state_memory, slots_start_clear_and_indices_are_checked) {
  const Config c = everything();
  cpu::StateMemory memory(c, make_state_layout(c), 2, 3);
  EXPECT_EQ(memory.bytes(), 2 * memory.layout().slot_bytes + 3 * memory.layout().page_bytes);
  EXPECT_EQ(memory.section<std::int32_t>(1, StateKind::kNgramHistory, -1)[0], c.ple_eos_token);
  EXPECT_EQ(memory.length(1), 0);
  memory.length(1) = 5;
  memory.clear_slot(1);
  EXPECT_EQ(memory.length(1), 0);
  for (const int bad : {-1, 2}) EXPECT_THROW(memory.slot(bad), InternalError);
  for (const int bad : {-1, 3}) EXPECT_THROW(memory.page(bad), InternalError);
}

}  // namespace
}  // namespace tetrad::state_layout_test
