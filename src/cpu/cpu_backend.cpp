#include "cpu/cpu_backend.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "cpu/forward.h"
#include "model/check_batch.h"

namespace tetrad::cpu {
namespace {

class CpuBackend final : public Backend {
 public:
  CpuBackend(const Config& config, const ModelWeights& weights, const BackendOptions& options,
             const std::function<void(int, int)>& progress)
      : config_(with_budget_within(config, options)),
        max_rows_(std::max(options.max_rows, 1)),
        pool_(options.num_threads),
        rope_(config.rope),
        state_(config, make_state_layout(config), std::max(options.num_slots, 1), pages_for(config, options)),
        workspace_(config_, max_rows_, longest_sequence(config, state_.num_pages())),
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
    check_batch(batch, logits.size(), *this, [this](int slot) { return state_.length(slot); });
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
  static void read(const std::byte* from, std::size_t size, std::span<std::byte> bytes) {
    TETRAD_CHECK(bytes.size() == size, "{} bytes asked for, {} there", bytes.size(), size);
    std::memcpy(bytes.data(), from, size);
  }
  static void write(std::byte* to, std::size_t size, std::span<const std::byte> bytes) {
    TETRAD_CHECK(bytes.size() == size, "{} bytes given, {} wanted", bytes.size(), size);
    std::memcpy(to, bytes.data(), size);
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
