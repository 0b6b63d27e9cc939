#include "cuda/step_description.h"

#include <algorithm>

namespace tetrad::cuda {
namespace {

// Of the largest step: five integers per row, three per sequence and its pages.
std::size_t most_integers(int max_rows, int num_slots, int max_pages) {
  const auto T = static_cast<std::size_t>(max_rows), B = static_cast<std::size_t>(num_slots);
  return 5 * T + B * (3 + static_cast<std::size_t>(max_pages)) + 1;
}

int num_rows(const StepBatch& batch, int b) { return batch.sequences[static_cast<std::size_t>(b)].num_rows; }

}  // namespace

StepDescription::StepDescription(int max_rows, int num_slots, int max_pages)
    : max_pages_(max_pages),
      host_(most_integers(max_rows, num_slots, max_pages), "description of a step"),
      device_(most_integers(max_rows, num_slots, max_pages), "description of a step") {}

StepRows StepDescription::send(const StepBatch& batch, const Stream& stream, const int** logit_rows) {
  const int T = static_cast<int>(batch.token_ids.size()), B = static_cast<int>(batch.sequences.size());
  int used = 0;
  int* host = nullptr;
  const auto take = [&](int count) {
    host = host_.data() + used;
    const int* device = device_.data() + used;
    used += count;
    return device;
  };
  StepRows rows;
  rows.T = T, rows.B = B;
  rows.token_ids = take(T);
  std::copy(batch.token_ids.begin(), batch.token_ids.end(), host);
  rows.sequence = take(T);
  for (int b = 0; b < B; ++b) std::fill_n(host + batch.sequences[static_cast<std::size_t>(b)].first_row, num_rows(batch, b), b);
  rows.position = take(T);
  for (const SequenceRows& s : batch.sequences)
    for (int i = 0; i < s.num_rows; ++i) host[s.first_row + i] = s.start + i;
  rows.save_slot = take(T);
  std::fill_n(host, T, -1);
  for (const SequenceRows& s : batch.sequences)
    for (const StateSave& save : s.saves) host[s.first_row + save.row] = save.slot;
  rows.first_row = take(B + 1);
  for (int b = 0; b < B; ++b) host[b] = batch.sequences[static_cast<std::size_t>(b)].first_row;
  host[B] = T;
  rows.start = take(B);
  for (int b = 0; b < B; ++b) host[b] = batch.sequences[static_cast<std::size_t>(b)].start;
  rows.slot = take(B);
  for (int b = 0; b < B; ++b) host[b] = batch.sequences[static_cast<std::size_t>(b)].slot;
  rows.max_pages = max_pages_;
  rows.pages = take(B * max_pages_);
  std::fill_n(host, B * max_pages_, -1);  // a page past the list traps
  for (int b = 0; b < B; ++b) {
    const auto& pages = batch.sequences[static_cast<std::size_t>(b)].pages;
    const auto count = std::min(pages.size(), static_cast<std::size_t>(max_pages_));
    std::copy_n(pages.begin(), count, host + b * max_pages_);
  }
  *logit_rows = take(static_cast<int>(batch.logit_rows.size()));
  std::copy(batch.logit_rows.begin(), batch.logit_rows.end(), host);
  stream.copy(device_.data(), host_.data(), static_cast<std::size_t>(used) * sizeof(int));
  return rows;
}

}  // namespace tetrad::cuda
