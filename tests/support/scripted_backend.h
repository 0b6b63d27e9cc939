#pragma once
// A Backend whose logits are a function of the tokens fed so far. Slots and pages are kept for real: a slot holds the length of its
// sequence, pages hold the token ids, and every step checks both, so a wrong start, slot or page is noticed. It keeps logits and chooses
// from them as a device would, with the host's functions.
#include <functional>
#include <span>
#include <vector>

#include "engine/row_chooser.h"
#include "model/backend.h"

namespace tetrad::testing {

class ScriptedBackend : public Backend {
 public:
  // history: every token up to and including the row; logits [V] start out as zeros.
  using Script = std::function<void(std::span<const int> history, std::span<float> logits)>;

  struct Sizes {
    int vocab_size = 4096;
    int max_positions = 512;
    int num_slots = 4;
    int num_pages = 64;
    int max_rows = 16;
    int kept_rows = 8;  // of logits that it can keep and choose from; more of a step go to the host
  };

  ScriptedBackend(const Sizes& sizes, Script script);

  std::string_view name() const override { return "scripted"; }
  const Config& config() const override { return config_; }
  const StateLayout& state_layout() const override { return layout_; }
  const MemoryPlan& memory_plan() const override { return plan_; }
  int num_slots() const override { return sizes_.num_slots; }
  int num_pages() const override { return sizes_.num_pages; }
  int max_rows() const override { return sizes_.max_rows; }
  StepResult step(const StepBatch& batch, std::span<float> logits) override;
  int kept_logit_rows() const override { return sizes_.kept_rows; }
  void choose(const ChoiceBatch& batch, std::span<ChosenToken> chosen) override;
  void read_logits(int first_row, std::span<float> logits) override;
  void clear_slot(int slot) override;
  void copy_slot(int destination, int source) override;
  void copy_page(int destination, int source) override;
  void read_slot(int slot, std::span<std::byte> bytes) const override;
  void write_slot(int slot, std::span<const std::byte> bytes) override;
  void read_page(int page, std::span<std::byte> bytes) const override;
  void write_page(int page, std::span<const std::byte> bytes) override;

  int steps = 0;          // steps run
  int rows_computed = 0;  // packed rows of all steps
  int choose_calls = 0, tokens_chosen = 0, rows_read = 0;
  int fault_at = -1;                                  // a row at this position reports a fault in layer 2
  int fault_token = -1;                               // and so does a row of this token
  std::function<void(const StepBatch&)> before_step;  // may wait, to give a step a duration, or throw, to make it fail as a whole

 private:
  int& length(int slot);
  int& token(std::span<const int> pages, int position);

  Sizes sizes_;
  Script script_;
  Config config_;
  StateLayout layout_;
  MemoryPlan plan_;
  std::vector<int> slots_, pages_;
  std::vector<float> kept_;  // [rows, V] of the last step
  RowChooser chooser_;
};

// Answers with `answer` after a prompt of `prompt_length` tokens, then with `after` for ever: the token to come has logit 10.
ScriptedBackend::Script answer_script(int prompt_length, std::vector<int> answer, int after);

}  // namespace tetrad::testing
