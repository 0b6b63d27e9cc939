#include "engine/stepper.h"

#include <algorithm>

namespace tetrad {
namespace {

int rows_wanted(const StepRequest& request) {
  switch (request.logits) {
    case LogitsWanted::kNone: return 0;
    case LogitsWanted::kLast: return 1;
    case LogitsWanted::kAll: return static_cast<int>(request.token_ids.size());
  }
  return 0;
}

}  // namespace

NumericError numeric_error(const SequenceFault& fault) {
  const std::string where = fault.layer < 0 ? std::string() : fmt::format("layer {}: ", fault.layer);
  return NumericError(fmt::format("{}{} of row {} are not finite: the weights or the state are damaged", where, fault.what, fault.row));
}

StepResult Stepper::step(std::span<const StepRequest> requests, TapSink* taps) {
  Backend& backend = pool_->backend();
  std::vector<int> ids, logit_rows;
  std::vector<SequenceRows> sequences;
  for (const StepRequest& request : requests) request.state->prepare(static_cast<int>(request.token_ids.size()));
  for (const StepRequest& request : requests) {
    const int first = static_cast<int>(ids.size()), rows = static_cast<int>(request.token_ids.size());
    ids.insert(ids.end(), request.token_ids.begin(), request.token_ids.end());
    sequences.push_back({.first_row = first,
                         .num_rows = rows,
                         .start = request.state->length(),
                         .slot = request.state->slot(),
                         .pages = request.state->pages(),
                         .saves = request.saves});
    for (int r = rows - rows_wanted(request); r < rows; ++r) logit_rows.push_back(first + r);
  }
  const StepBatch batch{.token_ids = ids, .sequences = sequences, .logit_rows = logit_rows, .taps = taps};
  kept_ = static_cast<int>(logit_rows.size()) <= backend.kept_logit_rows() &&
          std::any_of(requests.begin(), requests.end(), [](const StepRequest& request) { return request.choose; });
  if (!kept_) {
    logits_ = host_memory(logit_rows.size());
    return backend.step(batch, logits_);
  }
  StepResult result = backend.step(batch, {});
  std::size_t host_rows = 0;
  for (const StepRequest& request : requests) host_rows += request.choose ? 0 : static_cast<std::size_t>(rows_wanted(request));
  logits_ = host_memory(host_rows);
  const auto vocab = static_cast<std::size_t>(backend.config().vocab_size);
  int row = 0;
  std::size_t read = 0;
  for (const StepRequest& request : requests) {
    const auto rows = static_cast<std::size_t>(rows_wanted(request));
    if (!request.choose && rows > 0) {
      backend.read_logits(row, logits_.subspan(read, rows * vocab));
      read += rows * vocab;
    }
    row += static_cast<int>(rows);
  }
  return result;
}

std::span<float> Stepper::host_memory(std::size_t rows) {
  Backend& backend = pool_->backend();
  const std::size_t count = rows * static_cast<std::size_t>(backend.config().vocab_size);
  std::span<float> memory = backend.logit_memory(count);
  if (memory.size() == count) return memory;
  own_logits_.resize(count);
  return own_logits_;
}

std::vector<ChosenToken> Stepper::choose(const SampleableIds& ids, std::span<const TokenChoice> choices) {
  std::vector<ChosenToken> chosen(choices.size());
  if (!choices.empty()) pool_->backend().choose({.limit = ids.limit, .holes = ids.holes, .choices = choices}, chosen);
  return chosen;
}

std::vector<StepOutcome> Stepper::run(std::span<const StepRequest> requests, TapSink* taps) {
  for (std::size_t i = 0; i < requests.size(); ++i)
    TETRAD_CHECK(requests[i].state != nullptr && !requests[i].token_ids.empty(), "request {} has no state or no tokens", i);
  StepResult result;
  try {
    result = step(requests, taps);
  } catch (...) {
    for (const StepRequest& request : requests) request.state->trim();
    throw;
  }
  const auto vocab = static_cast<std::size_t>(pool_->backend().config().vocab_size);
  std::vector<StepOutcome> outcomes(requests.size());
  std::size_t offset = 0;
  int row = 0;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const int rows = rows_wanted(requests[i]);
    row += rows;
    if (kept_ && requests[i].choose) {
      outcomes[i].kept_row = rows > 0 ? row - 1 : -1;
    } else {
      const std::size_t count = static_cast<std::size_t>(rows) * vocab;
      outcomes[i].logits = std::span<const float>(logits_).subspan(offset, count);
      offset += count;
    }
    requests[i].state->advance(static_cast<int>(requests[i].token_ids.size()));
  }
  for (SequenceFault& fault : result.faults) {
    const auto i = static_cast<std::size_t>(fault.sequence);
    requests[i].state->clear();
    outcomes[i].fault = std::move(fault);
  }
  return outcomes;
}

StepOutcome Stepper::prefill(SequenceState& state, std::span<const int> token_ids, int chunk) {
  TETRAD_CHECK(!token_ids.empty(), "empty prompt");
  const int limit = pool_->backend().max_rows();
  const auto size = static_cast<std::size_t>(chunk > 0 ? std::min(chunk, limit) : limit);
  for (std::size_t first = 0;; first += size) {
    const auto piece = token_ids.subspan(first, std::min(size, token_ids.size() - first));
    const bool last = first + piece.size() == token_ids.size();
    const StepRequest request{.state = &state, .token_ids = piece, .logits = last ? LogitsWanted::kLast : LogitsWanted::kNone};
    StepOutcome outcome = run({&request, 1}).front();
    if (last || outcome.fault) return outcome;
  }
}

}  // namespace tetrad
