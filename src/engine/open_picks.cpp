#include "engine/open_picks.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>
#include <optional>

namespace tetrad {
namespace {

constexpr double kMoveMultiple = 2.0;  // how far beyond the reference's own movement the scores of what was swapped may lie
constexpr double kLargestMove = 0.05;  // of a score: 0.023 measured

std::optional<int> number_of(std::string_view text) {
  int value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0) return std::nullopt;
  return value;
}

// "case6.layer3"
std::optional<std::pair<int, int>> case_and_layer(std::string_view name) {
  constexpr std::string_view kCase = "case", kLayer = ".layer";
  const std::size_t dot = name.find('.');
  if (!name.starts_with(kCase) || dot == std::string_view::npos || !name.substr(dot).starts_with(kLayer)) return std::nullopt;
  const auto golden_case = number_of(name.substr(kCase.size(), dot - kCase.size())), layer = number_of(name.substr(dot + kLayer.size()));
  if (!golden_case || !layer) return std::nullopt;
  return std::pair{*golden_case, *layer};
}

OpenPick read_pick(const GoldenValue& value, const Config& config, int row) {
  const GoldenValue blocks = value.field("blocks"), move = value.field("move");
  OpenPick pick{blocks.ids(), 0};
  const int complete = (row + 1) / config.compress_ratio;
  if (static_cast<int>(pick.blocks.size()) != config.block_topk() || complete <= config.block_topk())
    blocks.refuse(fmt::format("{} blocks, row {} chooses {} of {}", pick.blocks.size(), row, config.block_topk(), complete));
  if (std::adjacent_find(pick.blocks.begin(), pick.blocks.end(), std::greater_equal<>()) != pick.blocks.end() ||
      pick.blocks.back() >= complete)
    blocks.refuse(fmt::format("expected blocks below {}, ascending", complete));
  if (!move.json().is_number() || !(move.json().get<double>() > 0)) move.refuse("expected a positive number");
  pick.move = move.json().get<double>();
  return pick;
}

}  // namespace

bool OpenPicks::explained(const OpenPick& pick, const std::vector<int>& own, std::span<const float> scores) const {
  std::vector<int> mine, theirs;
  std::set_difference(own.begin(), own.end(), pick.blocks.begin(), pick.blocks.end(), std::back_inserter(mine));
  std::set_difference(pick.blocks.begin(), pick.blocks.end(), own.begin(), own.end(), std::back_inserter(theirs));
  if (mine.size() != theirs.size()) return false;
  for (const int a : mine)
    for (const int b : theirs) {
      const double score = scores[static_cast<std::size_t>(a)], other = scores[static_cast<std::size_t>(b)];
      // Written so that a NaN explains nothing.
      if (!(pick.move <= kLargestMove * std::fabs(score)) || !(std::fabs(score - other) <= kMoveMultiple * pick.move)) return false;
    }
  return true;
}

void OpenPicks::record_selected(int layer, int step_row, std::vector<int>& positions, std::span<const float> block_scores) {
  const auto found = picks_.find({layer, first_row_ + step_row});
  if (found == picks_.end()) return;
  const auto complete = static_cast<int>(block_scores.size());
  const std::vector<int>& blocks = found->second.blocks;
  std::vector<int> own;
  for (const int position : positions)
    if (const int block = position / compress_ratio_; block < complete && (own.empty() || own.back() != block)) own.push_back(block);
  if (own == blocks) return;
  ++differing_;
  if (blocks.back() >= complete || !explained(found->second, own, block_scores)) {
    ++wrong_;
    return;
  }
  std::erase_if(positions, [&](int position) { return position < complete * compress_ratio_; });
  for (const int block : blocks)
    for (int i = 0; i < compress_ratio_; ++i) positions.push_back(block * compress_ratio_ + i);
  std::sort(positions.begin(), positions.end());
}

std::map<int, OpenPicks> read_open_picks(const GoldenValue& golden, const Config& config, const std::vector<std::size_t>& tokens) {
  if (!golden.json().is_object() || !golden.json().contains("open_picks")) return {};
  const GoldenValue layers = golden.field("open_picks").field("rows");
  if (!layers.json().is_object()) layers.refuse("expected an object");
  std::map<int, std::map<OpenPicks::Key, OpenPick>> picks;
  for (const auto& [name, of_layer] : layers.json().items()) {
    const GoldenValue rows = layers.field(name);
    const auto place = case_and_layer(name);
    if (!place || static_cast<std::size_t>(place->first) >= tokens.size()) rows.refuse("names no case and layer");
    if (place->second >= config.num_layers || config.layer_kinds[static_cast<std::size_t>(place->second)] != LayerKind::kQsa)
      rows.refuse("is no layer of sparse attention");
    if (!of_layer.is_object()) rows.refuse("expected an object");
    for (const auto& [row_name, pick] : of_layer.items()) {
      const auto row = number_of(row_name);
      if (!row || static_cast<std::size_t>(*row) >= tokens[static_cast<std::size_t>(place->first)])
        rows.field(row_name).refuse(fmt::format("is no row of case {}", place->first));
      picks[place->first][{place->second, *row}] = read_pick(rows.field(row_name), config, *row);
    }
  }
  std::map<int, OpenPicks> by_case;
  for (auto& [golden_case, of_case] : picks) by_case.emplace(golden_case, OpenPicks(std::move(of_case), config.compress_ratio));
  return by_case;
}

}  // namespace tetrad
