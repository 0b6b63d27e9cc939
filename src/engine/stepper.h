#pragma once
// Packs rows of several sequences into one step of the backend and keeps their states in step with it.
#include <optional>
#include <span>
#include <vector>

#include "engine/logprobs.h"
#include "engine/sequence_state.h"

namespace tetrad {

enum class LogitsWanted { kNone, kLast, kAll };

struct StepRequest {
  SequenceState* state = nullptr;
  std::span<const int> token_ids;  // to be appended to the sequence; not empty
  LogitsWanted logits = LogitsWanted::kLast;
  std::span<const StateSave> saves = {};  // points of this chunk whose recurrent state is kept: slots of the caller's
  bool choose = false;                    // its logits are for choose() alone: they stay on the device where the backend chooses itself
};

struct StepOutcome {
  std::span<const float> logits;       // [rows wanted, V]; valid until the next step of the backend; empty where they stayed on the device
  int kept_row = -1;                   // of the logits that stayed: the last row's index, for TokenChoice
  std::optional<SequenceFault> fault;  // this sequence went non-finite: its state is cleared, its request must fail
};

// The error that a request fails with when its sequence went non-finite.
NumericError numeric_error(const SequenceFault& fault);

class Stepper {
 public:
  explicit Stepper(StatePool& pool) : pool_(&pool) {}

  // One backend step; at most backend.max_rows() rows in all. Outcomes in the order of the requests. Throws CapacityError or
  // the backend's own error; no sequence has changed then, and pages taken for the step are given back.
  std::vector<StepOutcome> run(std::span<const StepRequest> requests, TapSink* taps = nullptr);

  // One call of the backend for all choices from rows that stayed on the device in the last step, before the next.
  std::vector<ChosenToken> choose(const SampleableIds& ids, std::span<const TokenChoice> choices);

  // Feeds a long prompt in chunks of at most chunk rows (0: max_rows); logits of the last row.
  StepOutcome prefill(SequenceState& state, std::span<const int> token_ids, int chunk = 0);

 private:
  StepResult step(std::span<const StepRequest> requests, TapSink* taps);
  std::span<float> host_memory(std::size_t rows);

  StatePool* pool_;
  std::vector<float> own_logits_;  // where the backend has no memory for them
  std::span<float> logits_;        // of the rows that go to the host, in the order of the requests
  bool kept_ = false;              // those of requests to choose stayed on the device in the last step
};

}  // namespace tetrad
