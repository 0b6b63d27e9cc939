#pragma once
// The one interface between the engine and a device, at the granularity of a step. A backend owns the memory of all sequence state:
// fixed-size slots (recurrent state, one per sequence) and pages (token-indexed state, shared by reference count in the engine).
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/config.h"
#include "model/state_layout.h"
#include "model/taps.h"
#include "model/token_choice.h"

namespace tetrad {

// After the row with index `row` of its sequence (0-based within this step) is processed, the slot's contents are also written to `slot`.
struct StateSave {
  int row = 0;
  int slot = 0;
};

// Consecutive packed rows of one sequence: a prefill chunk or one decode row.
struct SequenceRows {
  int first_row = 0;  // into StepBatch::token_ids
  int num_rows = 0;
  int start = 0;                     // position of the first row = tokens already in the state; checked against the slot
  int slot = 0;                      // recurrent state, read and updated in place
  std::span<const int> pages;        // page p holds positions [p*page_tokens, (p+1)*page_tokens); covers start + num_rows
  std::span<const StateSave> saves;  // ascending rows
};

struct StepBatch {
  std::span<const int> token_ids;           // [T], each in [0, V)
  std::span<const SequenceRows> sequences;  // [B], covering [0, T) in order
  std::span<const int> logit_rows;          // packed rows whose logits are wanted, ascending
  TapSink* taps = nullptr;
};

// A sequence whose numbers went non-finite in this step; the others are unaffected.
struct SequenceFault {
  int sequence = 0;  // index into StepBatch::sequences
  int row = 0;       // packed row
  int layer = -1;    // -1: the final logits
  std::string what;  // "router logits", "index scores", "logits"
};

struct StepResult {
  std::vector<SequenceFault> faults;
};

struct MemoryPlan {
  struct Row {
    std::string arena;  // "weights", "state", "workspace"
    std::string name;
    std::size_t bytes = 0;
  };
  std::vector<Row> rows;
  std::size_t total_bytes() const;
  std::string table() const;  // printed at start
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string_view name() const = 0;  // "cpu", "cuda:0"
  virtual const Config& config() const = 0;
  virtual const StateLayout& state_layout() const = 0;
  virtual const MemoryPlan& memory_plan() const = 0;
  virtual int num_slots() const = 0;
  virtual int num_pages() const = 0;
  virtual int max_rows() const = 0;  // packed rows a step may hold

  // Runs the model over the batch. logits: [logit_rows.size(), V] f32, written whole; or empty, and then they stay on the device, where
  // that keeps so many rows. Throws InputError for a token id outside the vocabulary and InternalError for a batch that breaks the contract
  // above, before any state changes.
  virtual StepResult step(const StepBatch& batch, std::span<float> logits) = 0;

  // Memory of the backend's own for `count` logits, which a step fills without a copy on the host; the next step overwrites it. Empty: any
  // memory serves as well.
  virtual std::span<float> logit_memory(std::size_t /*count*/) { return {}; }

  // Rows of logits that a step can leave on the device, for the two below, until the next step. 0: none, logits go to the host.
  virtual int kept_logit_rows() const { return 0; }
  // Chooses a token for each entry of the batch (token_choice.h): what the host's sampler chooses from the same row, to the id. Throws
  // InternalError for a batch that breaks its contract; what is wrong with a row is said in its result, and the others are unaffected.
  virtual void choose(const ChoiceBatch& batch, std::span<ChosenToken> chosen);
  // logits: [n, V] <- rows [first_row, first_row + n) that the last step left.
  virtual void read_logits(int first_row, std::span<float> logits);

  // State movement; indices are checked. A cleared slot is an empty sequence (n-gram history = end of text).
  virtual void clear_slot(int slot) = 0;
  virtual void copy_slot(int destination, int source) = 0;
  virtual void copy_page(int destination, int source) = 0;
  virtual void read_slot(int slot, std::span<std::byte> bytes) const = 0;  // state_layout().slot_bytes
  virtual void write_slot(int slot, std::span<const std::byte> bytes) = 0;
  virtual void read_page(int page, std::span<std::byte> bytes) const = 0;  // state_layout().page_bytes
  virtual void write_page(int page, std::span<const std::byte> bytes) = 0;
};

struct BackendOptions {
  int num_slots = 4;
  int max_tokens = 0;   // token capacity of all pages together; 0: max_positions of the model
  int max_rows = 512;   // packed rows of a step
  int num_threads = 0;  // CPU backend; 0: all
};

}  // namespace tetrad
