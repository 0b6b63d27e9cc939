#pragma once
// Rows where the reference's own runs leave the choice of index blocks open, as golden.json records them (scripts/add_open_picks.py): such
// a row goes on with the recorded blocks, so that its logits can be compared.
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "engine/golden_json.h"
#include "model/config.h"
#include "model/taps.h"

namespace tetrad {

struct OpenPick {
  std::vector<int> blocks;  // that the reference's bf16 CPU run chose, ascending
  double move = 0;          // by how much its runs move the two scores at the edge of the choice
};

// The open rows of one case.
class OpenPicks : public TapSink {
 public:
  using Key = std::pair<int, int>;  // layer, row

  OpenPicks() = default;
  OpenPicks(std::map<Key, OpenPick> picks, int compress_ratio) : picks_(std::move(picks)), compress_ratio_(compress_ratio) {}

  bool empty() const { return picks_.empty(); }
  std::size_t size() const { return picks_.size(); }
  // The rows of the next step are those of the prompt from `first` on.
  void begin_step(int first) { first_row_ = first; }
  int differing() const { return differing_; }  // rows that chose other blocks than the reference
  // Rows among them that no movement of the reference explains: the scores of what was swapped lie more than twice the movement apart,
  // or the movement is larger than roundings make it.
  int wrong() const { return wrong_; }

  void record(int, std::string_view, std::span<const float>, std::vector<std::int64_t>) override {}
  void record_ids(int, std::string_view, std::span<const std::int64_t>, std::vector<std::int64_t>) override {}
  void record_selected(int layer, int step_row, std::vector<int>& positions, std::span<const float> block_scores) override;

 private:
  bool explained(const OpenPick& pick, const std::vector<int>& own, std::span<const float> scores) const;

  std::map<Key, OpenPick> picks_;
  int compress_ratio_ = 1, first_row_ = 0, differing_ = 0, wrong_ = 0;
};

// By case, from `open_picks` of a golden.json, nothing where that is missing. `tokens`: of each case. Throws LoadError for rows, layers or
// blocks that the cases or the model do not have.
std::map<int, OpenPicks> read_open_picks(const GoldenValue& golden, const Config& config, const std::vector<std::size_t>& tokens);

}  // namespace tetrad
