#include "engine/tap_store.h"

#include <algorithm>

#include "base/error.h"

namespace tetrad {

void TapStore::record(int layer, std::string_view stage, std::span<const float> values, std::vector<std::int64_t> shape) {
  tensors[{layer, std::string(stage)}] = {{values.begin(), values.end()}, std::move(shape)};
}

void TapStore::record_ids(int layer, std::string_view stage, std::span<const std::int64_t> values, std::vector<std::int64_t>) {
  ids[{layer, std::string(stage)}].assign(values.begin(), values.end());
}

void TapStore::record_selected(int layer, int row, std::vector<int>& positions, std::span<const float> block_scores) {
  selected[layer][row] = {positions, {block_scores.begin(), block_scores.end()}};
  const auto of_layer = forced_selections.find(layer);
  if (of_layer == forced_selections.end()) return;
  const auto reference = of_layer->second.find(row);
  if (reference != of_layer->second.end()) positions = reference->second;
}

bool TapStore::replace(int layer, std::string_view stage, std::span<float> values) {
  const auto reference = forced.find({layer, std::string(stage)});
  if (reference == forced.end()) return false;
  TETRAD_CHECK(reference->second.size() == values.size(), "{} forced values for {} of {}", reference->second.size(), values.size(), stage);
  std::copy(reference->second.begin(), reference->second.end(), values.begin());
  return true;
}

}  // namespace tetrad
