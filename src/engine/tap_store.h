#pragma once
// A TapSink that keeps everything it is handed, and can put the reference's values in place of any stage.
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "model/taps.h"

namespace tetrad {

struct TapTensor {
  std::vector<float> values;
  std::vector<std::int64_t> shape;
};

class TapStore : public TapSink {
 public:
  using Key = std::pair<int, std::string>;  // layer, stage

  void record(int layer, std::string_view stage, std::span<const float> values, std::vector<std::int64_t> shape) override;
  void record_ids(int layer, std::string_view stage, std::span<const std::int64_t> values, std::vector<std::int64_t> shape) override;
  void record_selected(int layer, int row, std::vector<int>& positions, std::span<const float> block_scores) override;
  bool replace(int layer, std::string_view stage, std::span<float> values) override;

  std::map<Key, TapTensor> tensors;
  std::map<Key, std::vector<std::int64_t>> ids;
  struct Selection {
    std::vector<int> positions;  // as chosen, before any forcing
    std::vector<float> block_scores;
  };
  std::map<int, std::map<int, Selection>> selected;                  // layer -> row
  std::map<int, std::map<int, std::vector<int>>> forced_selections;  // layer -> row -> positions
  std::map<Key, std::vector<float>> forced;                          // what the step goes on with after that stage
};

}  // namespace tetrad
