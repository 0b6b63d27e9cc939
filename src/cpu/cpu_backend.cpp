#include "cpu/cpu_backend.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "cpu/forward.h"

namespace tetrad::cpu {
namespace {

class CpuBackend final : public Backend {
 public:
  CpuBackend(const Config& config, const ModelWeights& weights, const BackendOptions& options,
             const std::function<void(int, int)>& progress)
      : config_(config),
        max_rows_(std::max(options.max_rows, 1)),
        pool_(options.num_threads),
        rope_(config.rope),
        state_(config, make_state_layout(config), std::max(options.num_slots, 1), pages_for(config, options)),
        workspace_(config, max_rows_, longest_sequence()),
        model_(pack_model(config, weights, progress)) {
    plan_.rows = {{"weights", "packed linears, norms", model_.packed_bytes},
                  {"state", "slots (recurrent state)", static_cast<std::size_t>(num_slots()) * state_.layout().slot_bytes},
                  {"state", "pages (K, V, block keys)", static_cast<std::size_t>(num_pages()) * state_.layout().page_bytes},
                  {"workspace", "activations of one step", workspace_.bytes()}};
  }

  std::string_view name() const override { return "cpu"; }
  const Config& config() const override { return config_; }
  const StateLayout& state_layout() const override { return state_.layout(); }
  const MemoryPlan& memory_plan() const override { return plan_; }
  int num_slots() const override { return state_.num_slots(); }
  int num_pages() const override { return state_.num_pages(); }
  int max_rows() const override { return max_rows_; }

  StepResult step(const StepBatch& batch, std::span<float> logits) override {
    check(batch, logits);
    StepResult result;
    if (batch.token_ids.empty()) return result;
    StepContext context{config_, batch, state_, workspace_, pool_, rope_, result};
    forward(model_, context, logits);
    return result;
  }

  void clear_slot(int slot) override { state_.clear_slot(slot); }
  void copy_slot(int destination, int source) override {
    if (destination != source) std::memcpy(state_.slot(destination), state_.slot(source), state_.layout().slot_bytes);
  }
  void copy_page(int destination, int source) override {
    if (destination != source) std::memcpy(state_.page(destination), state_.page(source), state_.layout().page_bytes);
  }
  void read_slot(int slot, std::span<std::byte> bytes) const override { read(state_.slot(slot), state_.layout().slot_bytes, bytes); }
  void write_slot(int slot, std::span<const std::byte> bytes) override { write(state_.slot(slot), state_.layout().slot_bytes, bytes); }
  void read_page(int page, std::span<std::byte> bytes) const override { read(state_.page(page), state_.layout().page_bytes, bytes); }
  void write_page(int page, std::span<const std::byte> bytes) override { write(state_.page(page), state_.layout().page_bytes, bytes); }

 private:
  // Every page may belong to one sequence: scratch reaches as far.
  int longest_sequence() const {
    const std::int64_t tokens = static_cast<std::int64_t>(state_.num_pages()) * state_.layout().page_tokens;
    return static_cast<int>(std::min<std::int64_t>(tokens, config_.max_positions));
  }

  // Enough for max_tokens, and one partly filled page more for every slot.
  static int pages_for(const Config& config, const BackendOptions& options) {
    const int page_tokens = make_state_layout(config).page_tokens;
    const int tokens = options.max_tokens > 0 ? options.max_tokens : config.max_positions;
    return (tokens + page_tokens - 1) / page_tokens + std::max(options.num_slots, 1);
  }

  static void read(const std::byte* from, std::size_t size, std::span<std::byte> bytes) {
    TETRAD_CHECK(bytes.size() == size, "{} bytes asked for, {} there", bytes.size(), size);
    std::memcpy(bytes.data(), from, size);
  }
  static void write(std::byte* to, std::size_t size, std::span<const std::byte> bytes) {
    TETRAD_CHECK(bytes.size() == size, "{} bytes given, {} wanted", bytes.size(), size);
    std::memcpy(to, bytes.data(), size);
  }

  void check(const StepBatch& batch, std::span<float> logits) {
    const int T = static_cast<int>(batch.token_ids.size());
    TETRAD_CHECK(T <= max_rows_, "{} rows in a step of at most {}", T, max_rows_);
    TETRAD_CHECK(logits.size() == batch.logit_rows.size() * static_cast<std::size_t>(config_.vocab_size), "{} logits for {} rows of {}",
                 logits.size(), batch.logit_rows.size(), config_.vocab_size);
    for (int t = 0; t < T; ++t) {
      const int id = batch.token_ids[static_cast<std::size_t>(t)];
      if (id < 0 || id >= config_.vocab_size)
        fail<InputError>("token id {} at row {} is outside the vocabulary of {}", id, t, config_.vocab_size);
    }
    int last = -1;
    for (const int row : batch.logit_rows) {
      TETRAD_CHECK(row > last && row < T, "logit row {} after {} of {}", row, last, T);
      last = row;
    }
    int next = 0;
    for (const SequenceRows& sequence : batch.sequences) {
      TETRAD_CHECK(sequence.first_row == next && sequence.num_rows > 0, "rows {}+{} where row {} comes next", sequence.first_row,
                   sequence.num_rows, next);
      next += sequence.num_rows;
      check(sequence);
    }
    for (const SequenceRows& sequence : batch.sequences) check_slot_is_its_own(batch, sequence);
    TETRAD_CHECK(next == T, "sequences cover {} of {} rows", next, T);
  }

  void check(const SequenceRows& sequence) {
    TETRAD_CHECK(state_.length(sequence.slot) == sequence.start, "slot {} holds {} tokens, the step starts at {}", sequence.slot,
                 state_.length(sequence.slot), sequence.start);
    const std::int64_t end = static_cast<std::int64_t>(sequence.start) + sequence.num_rows;
    if (end > config_.max_positions) fail<InputError>("position {} is past the model's {} positions", end - 1, config_.max_positions);
    TETRAD_CHECK(static_cast<int>(sequence.pages.size()) <= num_pages(), "{} pages of {}", sequence.pages.size(), num_pages());
    const std::int64_t covered = static_cast<std::int64_t>(sequence.pages.size()) * state_.layout().page_tokens;
    TETRAD_CHECK(covered >= end, "{} pages cover {} of {} positions", sequence.pages.size(), covered, end);
    for (const int page : sequence.pages) TETRAD_CHECK(page >= 0 && page < num_pages(), "page {} of {}", page, num_pages());
    int last = -1;
    for (const StateSave& save : sequence.saves) {
      TETRAD_CHECK(save.row > last && save.row < sequence.num_rows, "state save after row {} of {}", save.row, sequence.num_rows);
      TETRAD_CHECK(save.slot >= 0 && save.slot < num_slots() && save.slot != sequence.slot, "state save into slot {}", save.slot);
      last = save.row;
    }
  }

  // A slot that two sequences use, or that one saves into while another is in it, would be advanced twice.
  static void check_slot_is_its_own(const StepBatch& batch, const SequenceRows& sequence) {
    for (const SequenceRows& other : batch.sequences) {
      if (&other == &sequence) continue;
      TETRAD_CHECK(other.slot != sequence.slot, "slot {} is in two sequences of the step", sequence.slot);
      for (const StateSave& save : other.saves)
        TETRAD_CHECK(save.slot != sequence.slot, "state save into slot {}, which is in the step", sequence.slot);
    }
  }

  Config config_;
  int max_rows_;
  ThreadPool pool_;
  RopeTable rope_;
  StateMemory state_;
  Workspace workspace_;
  PackedModel model_;
  MemoryPlan plan_;
};

}  // namespace

std::unique_ptr<Backend> make_backend(const Config& config, const ModelWeights& weights, const BackendOptions& options,
                                      const std::function<void(int, int)>& progress) {
  return std::make_unique<CpuBackend>(config, weights, options, progress);
}

}  // namespace tetrad::cpu
