// Rows whose choice of blocks the reference leaves open: only what its own movement explains is put in place (engine/open_picks.h).
#include "engine/open_picks.h"

#include <gtest/gtest.h>

#include <limits>

#include "base/error.h"

namespace tetrad::open_picks_test {
namespace {

using nlohmann::ordered_json;

Config config_of_two_layers() {
  Config config;
  config.num_layers = 2;
  config.layer_kinds = {LayerKind::kGdn, LayerKind::kQsa};
  config.compress_ratio = 4;
  config.index_budget = 8;
  return config;
}

std::map<int, OpenPicks> read(const std::string& rows) {
  const ordered_json json = ordered_json::parse(R"({"open_picks": {"rows": )" + rows + "}}");
  return read_open_picks(GoldenValue(json, "golden.json"), config_of_two_layers(), {3, 30});
}

std::string refusal(const std::string& rows) {
  try {
    read(rows);
  } catch (const LoadError& error) {
    return error.what();
  }
  return "(nothing thrown)";
}

// Row 18 of 30: four complete blocks of four tokens, three of the tail.
constexpr const char* kRow18 = R"({"case1.layer1": {"18": {"blocks": [0, 2], "move": 0.01}}})";
const std::vector<float> kScores{1.0f, 0.995f, 0.99f, 0.2f};
std::vector<int> positions_of(std::initializer_list<int> blocks) {
  std::vector<int> positions;
  for (const int block : blocks)
    for (int i = 0; i < 4; ++i) positions.push_back(4 * block + i);
  for (const int tail : {16, 17, 18}) positions.push_back(tail);
  return positions;
}

TEST(OpenPicks, another_choice_within_the_movement_gives_way_to_the_recorded_one) {
  OpenPicks open = read(kRow18).at(1);
  EXPECT_EQ(open.size(), 1u);
  std::vector<int> positions = positions_of({0, 1});
  open.record_selected(1, 18, positions, kScores);
  EXPECT_EQ(positions, positions_of({0, 2}));
  EXPECT_EQ(open.differing(), 1);
  EXPECT_EQ(open.wrong(), 0);
}

TEST(OpenPicks, rows_of_a_later_step_are_found) {
  OpenPicks open = read(kRow18).at(1);
  open.begin_step(16);
  std::vector<int> positions = positions_of({0, 1});
  open.record_selected(1, 2, positions, kScores);
  EXPECT_EQ(positions, positions_of({0, 2}));
}

TEST(OpenPicks, the_same_choice_and_other_rows_stay) {
  OpenPicks open = read(kRow18).at(1);
  std::vector<int> same = positions_of({0, 2}), other = positions_of({1, 3});
  open.record_selected(1, 18, same, kScores);
  open.record_selected(1, 17, other, kScores);
  open.record_selected(0, 18, other, kScores);
  EXPECT_EQ(same, positions_of({0, 2}));
  EXPECT_EQ(other, positions_of({1, 3}));
  EXPECT_EQ(open.differing(), 0);
}

TEST(OpenPicks, a_choice_that_no_movement_explains_is_wrong_and_stays) {
  const auto wrong_with = [](const std::vector<float>& scores, std::initializer_list<int> blocks) {
    OpenPicks open = read(kRow18).at(1);
    std::vector<int> positions = positions_of(blocks);
    open.record_selected(1, 18, positions, scores);
    EXPECT_EQ(positions, positions_of(blocks));
    return open.wrong();
  };
  EXPECT_EQ(wrong_with(kScores, {0, 3}), 1) << "far from the one left out";
  EXPECT_EQ(wrong_with({1.0f, 1.011f, 0.99f, 0.2f}, {0, 1}), 1) << "just more than twice the movement";
  EXPECT_EQ(wrong_with({1.0f, std::numeric_limits<float>::quiet_NaN(), 0.99f, 0.2f}, {0, 1}), 1);
  EXPECT_EQ(wrong_with({0.1f, 0.0995f, 0.099f, 0.02f}, {0, 1}), 1) << "a movement of a tenth of the score is no rounding";
  EXPECT_EQ(wrong_with(kScores, {0}), 1) << "too few blocks";
  EXPECT_EQ(wrong_with({1.0f, 0.995f}, {0, 1}), 1) << "blocks that are not there";
}

TEST(OpenPicks, what_case_and_model_do_not_have_is_damage) {
  const auto row = [](const std::string& blocks, const std::string& move) {
    return R"({"case1.layer1": {"18": {"blocks": )" + blocks + R"(, "move": )" + move + "}}}";
  };
  const std::pair<std::string, const char*> cases[] = {
      {"[]", "expected an object"},
      {R"({"case2.layer1": {}})", "names no case and layer"},
      {R"({"case1layer1": {}})", "names no case and layer"},
      {R"({"case1.layer-1": {}})", "names no case and layer"},
      {R"({"case1.layer0": {}})", "no layer of sparse attention"},
      {R"({"case1.layer2": {}})", "no layer of sparse attention"},
      {R"({"case1.layer1": 3})", "expected an object"},
      {R"({"case1.layer1": {"30": {"blocks": [0, 1], "move": 0.01}}})", "is no row of case 1"},
      {R"({"case1.layer1": {"x": {"blocks": [0, 1], "move": 0.01}}})", "is no row of case 1"},
      {R"({"case1.layer1": {"8": {"blocks": [0, 1], "move": 0.01}}})", "2 blocks, row 8 chooses 2 of 2"},
      {row("[0]", "0.01"), "1 blocks, row 18 chooses 2 of 4"},
      {row("[2, 0]", "0.01"), "expected blocks below 4, ascending"},
      {row("[1, 1]", "0.01"), "expected blocks below 4, ascending"},
      {row("[0, 4]", "0.01"), "expected blocks below 4, ascending"},
      {row("[0, -1]", "0.01"), "expected a token id"},
      {row("[0, 1]", "0"), "expected a positive number"},
      {row("[0, 1]", "\"much\""), "expected a positive number"},
  };
  for (const auto& [rows, part] : cases) EXPECT_NE(refusal(rows).find(part), std::string::npos) << rows << ": " << refusal(rows);
}

TEST(OpenPicks, a_golden_without_them_has_none) {
  const ordered_json json = ordered_json::parse("{}");
  EXPECT_TRUE(read_open_picks(GoldenValue(json, "golden.json"), config_of_two_layers(), {3}).empty());
}

}  // namespace
}  // namespace tetrad::open_picks_test
