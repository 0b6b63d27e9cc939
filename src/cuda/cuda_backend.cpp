#include "cuda/cuda_backend.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "base/error.h"
#include "cuda/forward.h"
#include "cuda/kernels/gdn.h"
#include "cuda/runtime/range.h"
#include "cuda/step_description.h"
#include "cuda/step_faults.h"
#include "cuda/step_graphs.h"
#include "cuda/token_chooser.h"
#include "model/check_batch.h"
#include "model/check_choices.h"

namespace tetrad::cuda {
namespace {

constexpr int kReplayedRows = 64;

void check_geometry(const Config& c) {
  const auto multiple_of_8 = [](int value, std::string_view what) {
    if (value % 8 != 0) fail<LoadError>("{} is {}; the CUDA backend takes multiples of 8, use --device cpu", what, value);
  };
  multiple_of_8(c.hidden_size, "hidden_size");
  multiple_of_8(c.gdn_value_size(), "linear_num_value_heads * linear_value_head_dim");
  multiple_of_8(c.num_attention_heads * c.head_dim, "num_attention_heads * head_dim");
  if (c.gdn_key_dim > kGdnMaxKey)
    fail<LoadError>("linear_key_head_dim is {}; the CUDA backend takes up to {}, use --device cpu", c.gdn_key_dim, kGdnMaxKey);
}

int select_device(int device) {
  const int count = device_count();
  if (device < 0 || device >= count) fail<LoadError>("--device cuda:{}: there are {} CUDA devices here", device, count);
  check(cudaSetDevice(device), "choosing device {}", device);
  return device;
}

class CudaBackend final : public Backend {
 public:
  CudaBackend(const Config& config, const ModelWeights& weights, const BackendOptions& options, int device,
              const std::function<void(int, int)>& progress)
      : device_(select_device(device)),
        name_("cuda:" + std::to_string(device)),
        config_(with_budget_within(config, options)),
        layout_(make_state_layout(config)),
        num_slots_(std::max(options.num_slots, 1)),
        num_pages_(pages_for(config, options)),
        max_rows_(std::max(options.max_rows, 1)),
        max_pages_((longest_sequence(config, num_pages_) + layout_.page_tokens - 1) / layout_.page_tokens),
        lengths_(static_cast<std::size_t>(num_slots_)),
        model_(load_device_model(config, weights, stream_, progress)),
        slots_(static_cast<std::size_t>(num_slots_) * layout_.slot_bytes, "slots (recurrent state)"),
        pages_(static_cast<std::size_t>(num_pages_) * layout_.page_bytes, "pages (K, V, block keys)"),
        workspace_(config_, max_rows_, longest_sequence(config, num_pages_)),
        description_(max_rows_, num_slots_, max_pages_),
        host_faults_(static_cast<std::size_t>(max_rows_), "faults of a step"),
        host_logits_(static_cast<std::size_t>(std::min(workspace_.logit_rows, kReplayedRows)) * static_cast<std::size_t>(config.vocab_size),
                     "logits on their way to the host") {
    for (int s = 0; s < num_slots_; ++s) clear_slot(s);
    plan_.rows = {{"weights", "linears in fragments, norms", model_.memory.bytes()},
                  {"state", "slots (recurrent state)", slots_.bytes()},
                  {"state", "pages (K, V, block keys)", pages_.bytes()},
                  {"workspace", "activations of one step", workspace_.bytes()}};
    if (config_.vocab_size <= kSampleMostIds) {
      chooser_.emplace(config_.vocab_size, kReplayedRows, sample_plan(config_.vocab_size, stream_));
      plan_.rows.push_back({"workspace", "choices of tokens", chooser_->bytes()});
    }
    for (const auto& table : model_.tables) plan_.rows.push_back({"weights", "n-gram table", table.bytes()});
    for (const auto& table : model_.host_tables) plan_.rows.push_back({"host", "n-gram table, pinned", table.bytes()});
  }

  std::string_view name() const override { return name_; }
  const Config& config() const override { return config_; }
  const StateLayout& state_layout() const override { return layout_; }
  const MemoryPlan& memory_plan() const override { return plan_; }
  int num_slots() const override { return num_slots_; }
  int num_pages() const override { return num_pages_; }
  int max_rows() const override { return max_rows_; }

  StepResult step(const StepBatch& batch, std::span<float> logits) override {
    use_device();
    check_batch(batch, logits.size(), *this, [this](int slot) { return lengths_[static_cast<std::size_t>(slot)]; });
    rows_left_ = logits.empty() ? static_cast<int>(batch.logit_rows.size()) : 0;
    StepResult result;
    if (batch.token_ids.empty()) return result;
    const ProfilerRange range(batch.token_ids.size(), batch.sequences.size());
    const int* logit_rows = nullptr;
    StepRows rows = description_.send(batch, stream_, &logit_rows);
    rows.slots = slots_.data();
    rows.page_memory = pages_.data();
    rows.slot_bytes = layout_.slot_bytes, rows.page_bytes = layout_.page_bytes;
    rows.num_slots = num_slots_, rows.num_pages = num_pages_, rows.page_tokens = layout_.page_tokens, rows.vocab_size = config_.vocab_size;
    rows.faults = workspace_.faults;
    int most_blocks = 0;
    for (const SequenceRows& s : batch.sequences)
      most_blocks = std::max(most_blocks, (s.start + s.num_rows) / std::max(config_.compress_ratio, 1));
    if (can_replay(batch, logits.size())) {
      most_blocks = replayed_blocks(most_blocks);
      const std::span<float> staged(host_logits_.data(), logits.size());
      const StepContext context{config_, batch, layout_, rows, logit_rows, most_blocks, workspace_, stream_, prefetch_};
      graphs_.replay({rows.T, static_cast<int>(batch.logit_rows.size()), most_blocks, !logits.empty()}, stream_,
                     [&] { enqueue(context, staged); });
      stream_.synchronize();
      if (logits.data() != staged.data()) std::copy(staged.begin(), staged.end(), logits.begin());
    } else {
      enqueue({config_, batch, layout_, rows, logit_rows, most_blocks, workspace_, stream_, prefetch_}, logits);
      stream_.synchronize();
    }
    for (const SequenceRows& s : batch.sequences) {
      for (const StateSave& save : s.saves) lengths_[static_cast<std::size_t>(save.slot)] = s.start + save.row + 1;
      lengths_[static_cast<std::size_t>(s.slot)] = s.start + s.num_rows;
    }
    report_faults(batch, host_faults_.data(), result);
    return result;
  }

  std::span<float> logit_memory(std::size_t count) override {
    return count <= host_logits_.size() ? std::span(host_logits_.data(), count) : std::span<float>();
  }

  int kept_logit_rows() const override { return chooser_ ? workspace_.logit_rows : 0; }
  void choose(const ChoiceBatch& batch, std::span<ChosenToken> chosen) override {
    use_device();
    check_choices(batch, chosen.size(), rows_left_, config_.vocab_size);
    chooser_->choose(workspace_.wide_logits, rows_left_, batch, chosen, stream_);
  }
  void read_logits(int first_row, std::span<float> logits) override {
    use_device();
    const auto vocab = static_cast<std::size_t>(config_.vocab_size), first = static_cast<std::size_t>(first_row) * vocab;
    TETRAD_CHECK(first_row >= 0 && first + logits.size() <= static_cast<std::size_t>(rows_left_) * vocab,
                 "{} logits from row {} of {} that the step left", logits.size(), first_row, rows_left_);
    stream_.copy(logits.data(), workspace_.wide_logits + first, logits.size_bytes());
    stream_.synchronize();
  }

  void clear_slot(int index) override {
    use_device();
    stream_.fill(slot(index), 0, layout_.slot_bytes);
    if (!config_.ple_layers.empty()) {
      const std::vector<std::int32_t> history(static_cast<std::size_t>(config_.ngram_size - 1), config_.ple_eos_token);
      stream_.copy(slot(index) + layout_.slot_section(StateKind::kNgramHistory, -1).offset, history.data(),
                   history.size() * sizeof(std::int32_t));
      stream_.synchronize();  // the history goes away
    }
    lengths_[static_cast<std::size_t>(index)] = 0;
  }
  void copy_slot(int destination, int source) override {
    if (destination == source) return;
    move(slot(destination), slot(source), layout_.slot_bytes);
    lengths_[static_cast<std::size_t>(destination)] = lengths_[static_cast<std::size_t>(source)];
  }
  void copy_page(int destination, int source) override {
    if (destination != source) move(page(destination), page(source), layout_.page_bytes);
  }
  void read_slot(int index, std::span<std::byte> bytes) const override {
    check_size(bytes.size(), layout_.slot_bytes);
    move(bytes.data(), slot(index), bytes.size());
  }
  void write_slot(int index, std::span<const std::byte> bytes) override {
    check_size(bytes.size(), layout_.slot_bytes);
    std::int64_t length = 0;
    std::memcpy(&length, bytes.data() + layout_.slot_section(StateKind::kPositions, -1).offset, sizeof(length));
    move(slot(index), bytes.data(), bytes.size());
    lengths_[static_cast<std::size_t>(index)] = length;
  }
  void read_page(int index, std::span<std::byte> bytes) const override {
    check_size(bytes.size(), layout_.page_bytes);
    move(bytes.data(), page(index), bytes.size());
  }
  void write_page(int index, std::span<const std::byte> bytes) override {
    check_size(bytes.size(), layout_.page_bytes);
    move(page(index), bytes.data(), bytes.size());
  }

  void set_replays(bool on) { replays_ = on; }
  void profile(Profiler* profiler) { stream_.set_profiler(profiler); }
  Profiler& profiler() { return profiler_; }
  const Stream& stream() const { return stream_; }

 private:
  void enqueue(const StepContext& context, std::span<float> logits) {
    forward(model_, context, logits);
    stream_.copy(host_faults_.data(), workspace_.faults, static_cast<std::size_t>(context.T()) * sizeof(int));
  }

  // A sink wants to look between launches, a profiler to time them.
  bool can_replay(const StepBatch& batch, std::size_t num_logits) const {
    const bool decode = std::all_of(batch.sequences.begin(), batch.sequences.end(), [](const SequenceRows& s) { return s.num_rows == 1; });
    return replays_ && decode && batch.taps == nullptr && stream_.profiler() == nullptr &&
           batch.token_ids.size() <= static_cast<std::size_t>(kReplayedRows) && num_logits <= host_logits_.size();
  }

  // Scores are launched for as many blocks as the longest row sees; a recording is for the next power of two of them.
  int replayed_blocks(int most_blocks) const {
    int blocks = std::max(config_.block_topk(), 1);
    while (blocks < most_blocks) blocks *= 2;
    return most_blocks <= config_.block_topk() ? config_.block_topk() : blocks;
  }

  static void check_size(std::size_t given, std::size_t size) { TETRAD_CHECK(given == size, "{} bytes where {} are", given, size); }

  // The current device is a property of the calling thread.
  void use_device() const { check(cudaSetDevice(device_), "choosing device {}", device_); }

  std::byte* slot(int index) const {
    TETRAD_CHECK(index >= 0 && index < num_slots_, "slot {} of {}", index, num_slots_);
    return const_cast<std::byte*>(slots_.data()) + static_cast<std::size_t>(index) * layout_.slot_bytes;
  }
  std::byte* page(int index) const {
    TETRAD_CHECK(index >= 0 && index < num_pages_, "page {} of {}", index, num_pages_);
    return const_cast<std::byte*>(pages_.data()) + static_cast<std::size_t>(index) * layout_.page_bytes;
  }
  void move(std::byte* to, const std::byte* from, std::size_t bytes) const {
    use_device();
    stream_.copy(to, from, bytes);
    stream_.synchronize();
  }

  int device_;
  std::string name_;
  Config config_;
  StateLayout layout_;
  int num_slots_, num_pages_, max_rows_, max_pages_;
  std::vector<std::int64_t> lengths_;
  Profiler profiler_;
  Stream stream_;
  WeightPrefetch prefetch_;
  DeviceModel model_;
  DeviceBuffer<std::byte> slots_, pages_;
  Workspace workspace_;
  StepDescription description_;
  PinnedBuffer<int> host_faults_;
  PinnedBuffer<float> host_logits_;
  StepGraphs graphs_;
  std::optional<TokenChooser> chooser_;
  int rows_left_ = 0;  // of logits, on the device, by the last step
  bool replays_ = true;
  MemoryPlan plan_;
};

CudaBackend& cuda_backend(Backend& backend) {
  auto* on_gpu = dynamic_cast<CudaBackend*>(&backend);
  TETRAD_CHECK(on_gpu != nullptr, "backend {} is no CUDA backend", backend.name());
  return *on_gpu;
}

}  // namespace

void set_replays(Backend& backend, bool on) { cuda_backend(backend).set_replays(on); }

void start_profile(Backend& backend) {
  CudaBackend& on_gpu = cuda_backend(backend);
  on_gpu.profile(&on_gpu.profiler());
}

std::vector<StemTime> end_profile(Backend& backend) {
  CudaBackend& on_gpu = cuda_backend(backend);
  on_gpu.profile(nullptr);
  std::vector<StemTime> times;
  for (const auto& [stem, sum] : on_gpu.profiler().take()) times.push_back({stem, sum.launches, sum.microseconds, sum.bytes, sum.flops});
  return times;
}

double measure_copy_gb_per_s(Backend& backend) {
  constexpr std::size_t kBytes = std::size_t{1} << 28;  // several times the L2
  constexpr int kCopies = 16, kRounds = 5;
  const Stream& stream = cuda_backend(backend).stream();
  DeviceBuffer<std::byte> from(kBytes, "bandwidth measurement"), to(kBytes, "bandwidth measurement");
  Profiler clock;
  double best = 0;
  for (int r = 0; r < kRounds; ++r) {
    clock.begin("copy", 0, 0, stream.get());
    for (int i = 0; i < kCopies; ++i) stream.copy(to.data(), from.data(), kBytes);
    clock.end(stream.get());
    best = std::max(best, 2e-3 * kCopies * kBytes / clock.take().at("copy").microseconds);
  }
  return best;
}

int device_count() {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  (void)cudaGetLastError();  // no driver, or no device: not an error here
  return 0;
}

std::unique_ptr<Backend> make_backend(const Config& config, const ModelWeights& weights, const BackendOptions& options, int device,
                                      const std::function<void(int, int)>& progress) {
  check_geometry(config);
  return std::make_unique<CudaBackend>(config, weights, options, device, progress);
}

}  // namespace tetrad::cuda
