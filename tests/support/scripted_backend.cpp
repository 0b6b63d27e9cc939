#include "support/scripted_backend.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "model/check_choices.h"

namespace tetrad::testing {
namespace {

constexpr int kPageTokens = 8;

}  // namespace

ScriptedBackend::ScriptedBackend(const Sizes& sizes, Script script) : sizes_(sizes), script_(std::move(script)) {
  config_.vocab_size = sizes.vocab_size;
  config_.max_positions = sizes.max_positions;
  layout_.page_tokens = kPageTokens;
  layout_.slot_bytes = sizeof(int);
  layout_.page_bytes = kPageTokens * sizeof(int);
  layout_.slot_sections = {{.kind = StateKind::kPositions, .layer = -1, .name = "positions", .offset = 0, .bytes = sizeof(int)}};
  layout_.page_sections = {
      {.kind = StateKind::kKv, .layer = 0, .name = "tokens", .offset = 0, .bytes = layout_.page_bytes, .row_bytes = sizeof(int)}};
  slots_.assign(static_cast<std::size_t>(sizes.num_slots), -1);  // undefined until cleared
  pages_.assign(static_cast<std::size_t>(sizes.num_pages) * kPageTokens, -1);
}

int& ScriptedBackend::length(int slot) {
  TETRAD_CHECK(slot >= 0 && slot < sizes_.num_slots, "slot {} of {}", slot, sizes_.num_slots);
  return slots_[static_cast<std::size_t>(slot)];
}

int& ScriptedBackend::token(std::span<const int> pages, int position) {
  const auto index = static_cast<std::size_t>(position / kPageTokens);
  TETRAD_CHECK(index < pages.size(), "position {} is beyond {} pages", position, pages.size());
  const int page = pages[index];
  TETRAD_CHECK(page >= 0 && page < sizes_.num_pages, "page {} of {}", page, sizes_.num_pages);
  return pages_[static_cast<std::size_t>(page * kPageTokens + position % kPageTokens)];
}

StepResult ScriptedBackend::step(const StepBatch& batch, std::span<float> logits) {
  TETRAD_CHECK(static_cast<int>(batch.token_ids.size()) <= sizes_.max_rows, "{} rows of at most {}", batch.token_ids.size(),
               sizes_.max_rows);
  if (before_step) before_step(batch);
  kept_.clear();
  if (logits.empty() && !batch.logit_rows.empty()) {
    TETRAD_CHECK(static_cast<int>(batch.logit_rows.size()) <= sizes_.kept_rows, "{} rows are to be kept", batch.logit_rows.size());
    kept_.resize(batch.logit_rows.size() * static_cast<std::size_t>(sizes_.vocab_size));
    logits = kept_;
  }
  ++steps;
  rows_computed += static_cast<int>(batch.token_ids.size());
  StepResult result;
  std::size_t logit_row = 0;
  for (std::size_t s = 0; s < batch.sequences.size(); ++s) {
    const SequenceRows& rows = batch.sequences[s];
    TETRAD_CHECK(rows.start == length(rows.slot), "step starts at {}, slot {} holds {}", rows.start, rows.slot, length(rows.slot));
    std::vector<int> history;
    for (int p = 0; p < rows.start; ++p) history.push_back(token(rows.pages, p));
    for (int r = 0; r < rows.num_rows; ++r) {
      const int packed = rows.first_row + r;
      const int id = batch.token_ids[static_cast<std::size_t>(packed)];
      if (id < 0 || id >= sizes_.vocab_size) fail<InputError>("token id {}", id);
      token(rows.pages, rows.start + r) = id;
      history.push_back(id);
      if (rows.start + r == fault_at || id == fault_token) result.faults.push_back({static_cast<int>(s), packed, 2, "router logits"});
      if (logit_row >= batch.logit_rows.size() || batch.logit_rows[logit_row] != packed) continue;
      const auto row =
          logits.subspan(logit_row++ * static_cast<std::size_t>(sizes_.vocab_size), static_cast<std::size_t>(sizes_.vocab_size));
      std::fill(row.begin(), row.end(), 0.0f);
      script_(history, row);
    }
    length(rows.slot) = rows.start + rows.num_rows;
    for (const StateSave& save : rows.saves) length(save.slot) = rows.start + save.row + 1;
  }
  return result;
}

void ScriptedBackend::choose(const ChoiceBatch& batch, std::span<ChosenToken> chosen) {
  const auto vocab = static_cast<std::size_t>(sizes_.vocab_size);
  check_choices(batch, chosen.size(), static_cast<int>(kept_.size() / vocab), sizes_.vocab_size);
  ++choose_calls;
  tokens_chosen += static_cast<int>(chosen.size());
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    const std::span row(kept_.data() + static_cast<std::size_t>(batch.choices[i].row) * vocab, vocab);
    chosen[i] = chooser_.choose(row, batch.limit, batch.holes, batch.choices[i]);
  }
}

void ScriptedBackend::read_logits(int first_row, std::span<float> logits) {
  const auto vocab = static_cast<std::size_t>(sizes_.vocab_size), first = static_cast<std::size_t>(first_row) * vocab;
  TETRAD_CHECK(first + logits.size() <= kept_.size(), "{} logits from row {} of {}", logits.size(), first_row, kept_.size() / vocab);
  rows_read += static_cast<int>(logits.size() / vocab);
  std::copy_n(kept_.begin() + static_cast<std::ptrdiff_t>(first), logits.size(), logits.begin());
}

void ScriptedBackend::clear_slot(int slot) { length(slot) = 0; }
void ScriptedBackend::copy_slot(int destination, int source) { length(destination) = length(source); }

void ScriptedBackend::copy_page(int destination, int source) {
  std::vector<std::byte> bytes(layout_.page_bytes);
  read_page(source, bytes);
  write_page(destination, bytes);
}

void ScriptedBackend::read_slot(int slot, std::span<std::byte> bytes) const {
  std::memcpy(bytes.data(), &slots_[static_cast<std::size_t>(slot)], sizeof(int));
}
void ScriptedBackend::write_slot(int slot, std::span<const std::byte> bytes) { std::memcpy(&length(slot), bytes.data(), sizeof(int)); }
void ScriptedBackend::read_page(int page, std::span<std::byte> bytes) const {
  std::memcpy(bytes.data(), &pages_[static_cast<std::size_t>(page) * kPageTokens], layout_.page_bytes);
}
void ScriptedBackend::write_page(int page, std::span<const std::byte> bytes) {
  std::memcpy(&pages_[static_cast<std::size_t>(page) * kPageTokens], bytes.data(), layout_.page_bytes);
}

ScriptedBackend::Script answer_script(int prompt_length, std::vector<int> answer, int after) {
  return [=](std::span<const int> history, std::span<float> logits) {
    const auto step = static_cast<std::size_t>(std::max(static_cast<int>(history.size()) - prompt_length, 0));
    logits[static_cast<std::size_t>(step < answer.size() ? answer[step] : after)] = 10.0f;
  };
}

}  // namespace tetrad::testing
