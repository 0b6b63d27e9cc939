#include "model/check_batch.h"

#include <algorithm>

#include "base/error.h"

namespace tetrad {
namespace {

void check_rows(const StepBatch& batch, std::size_t num_logits, const Backend& backend) {
  const Config& config = backend.config();
  const int T = static_cast<int>(batch.token_ids.size());
  TETRAD_CHECK(T <= backend.max_rows(), "{} rows in a step of at most {}", T, backend.max_rows());
  const bool kept = num_logits == 0 && static_cast<int>(batch.logit_rows.size()) <= backend.kept_logit_rows();
  TETRAD_CHECK(kept || num_logits == batch.logit_rows.size() * static_cast<std::size_t>(config.vocab_size), "{} logits for {} rows of {}",
               num_logits, batch.logit_rows.size(), config.vocab_size);
  for (int t = 0; t < T; ++t) {
    const int id = batch.token_ids[static_cast<std::size_t>(t)];
    if (id < 0 || id >= config.vocab_size)
      fail<InputError>("token id {} at row {} is outside the vocabulary of {}", id, t, config.vocab_size);
  }
  int last = -1;
  for (const int row : batch.logit_rows) {
    TETRAD_CHECK(row > last && row < T, "logit row {} after {} of {}", row, last, T);
    last = row;
  }
}

void check_sequence(const SequenceRows& sequence, const Backend& backend, const std::function<std::int64_t(int)>& length_of) {
  TETRAD_CHECK(sequence.slot >= 0 && sequence.slot < backend.num_slots(), "slot {} of {}", sequence.slot, backend.num_slots());
  const std::int64_t length = length_of(sequence.slot);
  TETRAD_CHECK(length == sequence.start, "slot {} holds {} tokens, the step starts at {}", sequence.slot, length, sequence.start);
  const std::int64_t end = static_cast<std::int64_t>(sequence.start) + sequence.num_rows;
  const int positions = backend.config().max_positions;
  if (end > positions) fail<InputError>("position {} is past the model's {} positions", end - 1, positions);
  TETRAD_CHECK(static_cast<int>(sequence.pages.size()) <= backend.num_pages(), "{} pages of {}", sequence.pages.size(),
               backend.num_pages());
  const std::int64_t covered = static_cast<std::int64_t>(sequence.pages.size()) * backend.state_layout().page_tokens;
  TETRAD_CHECK(covered >= end, "{} pages cover {} of {} positions", sequence.pages.size(), covered, end);
  for (const int page : sequence.pages) TETRAD_CHECK(page >= 0 && page < backend.num_pages(), "page {} of {}", page, backend.num_pages());
  int last = -1;
  for (const StateSave& save : sequence.saves) {
    TETRAD_CHECK(save.row > last && save.row < sequence.num_rows, "state save after row {} of {}", save.row, sequence.num_rows);
    TETRAD_CHECK(save.slot >= 0 && save.slot < backend.num_slots() && save.slot != sequence.slot, "state save into slot {}", save.slot);
    last = save.row;
  }
}

// A slot that two sequences use, or that one saves into while another is in it, would be advanced twice.
void check_slot_is_its_own(const StepBatch& batch, const SequenceRows& sequence) {
  for (const SequenceRows& other : batch.sequences) {
    if (&other == &sequence) continue;
    TETRAD_CHECK(other.slot != sequence.slot, "slot {} is in two sequences of the step", sequence.slot);
    for (const StateSave& save : other.saves)
      TETRAD_CHECK(save.slot != sequence.slot, "state save into slot {}, which is in the step", sequence.slot);
  }
}

}  // namespace

void check_batch(const StepBatch& batch, std::size_t num_logits, const Backend& backend,
                 const std::function<std::int64_t(int)>& length_of) {
  check_rows(batch, num_logits, backend);
  const int T = static_cast<int>(batch.token_ids.size());
  int next = 0;
  for (const SequenceRows& sequence : batch.sequences) {
    TETRAD_CHECK(sequence.first_row == next && sequence.num_rows > 0, "rows {}+{} where row {} comes next", sequence.first_row,
                 sequence.num_rows, next);
    next += sequence.num_rows;
    check_sequence(sequence, backend, length_of);
  }
  for (const SequenceRows& sequence : batch.sequences) check_slot_is_its_own(batch, sequence);
  TETRAD_CHECK(next == T, "sequences cover {} of {} rows", next, T);
}

int pages_for(const Config& config, const BackendOptions& options) {
  const int page_tokens = make_state_layout(config).page_tokens;
  const int tokens = options.max_tokens > 0 ? options.max_tokens : config.max_positions;
  return (tokens + page_tokens - 1) / page_tokens + std::max(options.num_slots, 1);
}

Config with_budget_within(Config config, const BackendOptions& options) {
  const std::int64_t ratio = std::max(config.compress_ratio, 1), longest = longest_sequence(config, pages_for(config, options));
  const std::int64_t most = (longest + ratio - 1) / ratio * ratio;  // a multiple of the ratio, as the config's own is
  config.index_budget = static_cast<int>(std::min<std::int64_t>(config.index_budget, most));
  return config;
}

int longest_sequence(const Config& config, int num_pages) {
  const std::int64_t tokens = static_cast<std::int64_t>(num_pages) * make_state_layout(config).page_tokens;
  return static_cast<int>(std::min<std::int64_t>(tokens, config.max_positions));
}

}  // namespace tetrad
