#pragma once
// The indexer of qsa at the published geometry on the device, from the fused projection on: block keys, scores and selection of every row
// of a case of tests/goldens/qsa-indexer.safetensors.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

#include "cuda/kernels/qsa.h"
#include "device_arrays.h"
#include "engine/golden_file.h"
#include "model/rope_frequencies.h"

namespace tetrad::cuda::test {

inline constexpr int kIndexerCases = 10, kIndexerRatio = 4;
inline int indexer_budget(int index) { return index == 7 ? 64 : index == 8 ? 128 : 2048; }  // qsa-indexer.json

struct IndexedRows {
  int tokens = 0, max_blocks = 0, attended = 0;
  std::vector<float> scores;           // [tokens, max_blocks]
  std::vector<int> positions, counts;  // [tokens, attended], [tokens]
};

inline IndexedRows run_indexer(const GoldenFile& golden, int index) {
  constexpr int kHeads = 4, kDim = 128, kRotary = 64, kPageTokens = 64;
  const std::string name = fmt::format("case{}.", index);
  const std::vector<float> fused = golden.floats(name + "fused_qk");
  const auto plus_one = [&](const char* tensor) {
    std::vector<float> w = golden.floats(name + tensor);
    for (float& x : w) x += 1.0f;
    return w;
  };
  const Stream stream;
  IndexedRows result;
  const int T = result.tokens = static_cast<int>(fused.size()) / ((kHeads + 1) * kDim);
  // One attention head beside the indexer's, of zeros: what the kernels make of it nobody reads.
  QsaShape s{};
  s.HQ = s.HKV = 1, s.DH = kDim, s.HI = kHeads, s.DI = kDim, s.R = kIndexerRatio, s.DR = kRotary;
  s.k = 2 * kDim, s.v = 3 * kDim, s.index_q = 4 * kDim, s.index_k = s.index_q + kHeads * kDim, s.row = s.index_k + kDim;
  s.topk = indexer_budget(index) / kIndexerRatio, s.attended = result.attended = indexer_budget(index) + kIndexerRatio;
  s.max_blocks = result.max_blocks = T / kIndexerRatio + 1;
  s.eps = 1e-6f, s.rope_factor = 1.0f;
  const std::size_t kv = sizeof(bf16) * kPageTokens * kDim;
  s.k_offset = 0, s.v_offset = kv, s.keys_offset = 2 * kv;
  const std::size_t page_bytes = 2 * kv + sizeof(bf16) * kPageTokens / kIndexerRatio * kDim;
  const int num_pages = (T + kPageTokens - 1) / kPageTokens;

  std::vector<bf16> projected(static_cast<std::size_t>(T) * static_cast<std::size_t>(s.row), to_bf16(0.0f));
  for (int t = 0; t < T; ++t)
    for (int i = 0; i < (kHeads + 1) * kDim; ++i)
      projected[static_cast<std::size_t>(t * s.row + s.index_q + i)] =
          to_bf16(fused[static_cast<std::size_t>(t * (kHeads + 1) * kDim + i)]);
  RopeConfig rope_config;
  rope_config.rotary_dim = kRotary;
  const RopeFrequencies rope = rope_frequencies(rope_config);
  std::vector<int> position(static_cast<std::size_t>(T)), page(static_cast<std::size_t>(num_pages));
  std::iota(position.begin(), position.end(), 0);
  std::iota(page.begin(), page.end(), 0);
  auto device_projected = to_device(projected, stream);
  const auto device_position = to_device(position, stream), device_page = to_device(page, stream),
             zero = to_device(std::vector<int>(static_cast<std::size_t>(T), 0), stream),
             none = to_device(std::vector<int>(static_cast<std::size_t>(T), -1), stream),
             first_row = to_device(std::vector<int>{0, T}, stream);
  auto faults = to_device(std::vector<int>(static_cast<std::size_t>(T), 0), stream);
  const auto frequencies = to_device(rope.inverse, stream), ones = to_device(std::vector<float>(kDim, 1.0f), stream),
             q_norm = to_device(plus_one("q_norm"), stream), k_norm = to_device(plus_one("k_norm"), stream);
  DeviceBuffer<std::byte> pages(page_bytes * static_cast<std::size_t>(num_pages), "pages"), slot(sizeof(bf16) * 3 * kDim, "slot");
  DeviceBuffer<float> cosines(static_cast<std::size_t>(T) * kRotary / 2, "cos"), sines(cosines.size(), "sin"),
      scores(static_cast<std::size_t>(T) * static_cast<std::size_t>(s.max_blocks), "scores");
  DeviceBuffer<int> positions(static_cast<std::size_t>(T) * static_cast<std::size_t>(s.attended), "positions"),
      counts(static_cast<std::size_t>(T), "counts");
  StepRows r;
  r.T = T, r.B = 1, r.sequence = zero.data(), r.position = device_position.data(), r.save_slot = none.data();
  r.first_row = first_row.data(), r.start = zero.data(), r.slot = zero.data(), r.pages = device_page.data(), r.max_pages = num_pages;
  r.slots = slot.data(), r.slot_bytes = slot.bytes(), r.num_slots = 1;
  r.page_memory = pages.data(), r.page_bytes = page_bytes, r.num_pages = num_pages, r.page_tokens = kPageTokens, r.faults = faults.data();
  rope_angles(T, kRotary / 2, r.position, frequencies.data(), rope.attention_factor, cosines.data(), sines.data(), stream);
  qsa_prepare(s, {ones.data(), ones.data(), q_norm.data(), k_norm.data(), frequencies.data()}, device_projected.data(), cosines.data(),
              sines.data(), false, r, stream);
  const int most_blocks = T / kIndexerRatio;
  const QsaGroup group{0, T, scores.data(), positions.data(), counts.data()};
  QsaShape all = s;
  all.topk = 0;  // scores of every row, also of those that keep all their blocks
  qsa_scores(all, device_projected.data(), group, most_blocks, r, stream);
  qsa_select(s, group, most_blocks, r, stream);
  result.scores = to_host(scores, stream), result.positions = to_host(positions, stream), result.counts = to_host(counts, stream);
  for (const int fault : to_host(faults, stream))
    if (fault != 0) result.counts.clear();  // a score that is not a number: nothing to compare
  return result;
}

// Scores of a case beside the reference's: those that agree to kIndexerScoreTolerance, relative plus absolute, and the others, which differ
// by a flipped rounding in a key or query (parity/qsa_indexer_test.cpp has the measurements).
inline constexpr double kIndexerScoreTolerance = 2e-6, kIndexerFlippedShare = 0.01, kIndexerFlippedSize = 0.02;
struct ScoreErrors {
  std::int64_t total = 0, flipped = 0, wrongly_finite = 0;
  double worst = 0, worst_flipped = 0;
};
inline ScoreErrors score_errors(const GoldenFile& golden, int index, const IndexedRows& got) {
  const std::string name = fmt::format("case{}.", index);
  const auto rows = golden.integers(name + "rows");
  const auto expected = golden.floats(name + "scores");
  const std::size_t columns = expected.size() / rows.size();
  ScoreErrors errors;
  for (std::size_t i = 0; i < rows.size(); ++i)
    for (std::size_t b = 0; b < columns; ++b) {
      const float reference = expected[i * columns + b];
      if (static_cast<int>(b) >= (static_cast<int>(rows[i]) + 1) / kIndexerRatio) {
        errors.wrongly_finite += std::isnan(reference) ? 0 : 1;
        continue;
      }
      const float score = got.scores[static_cast<std::size_t>(rows[i]) * static_cast<std::size_t>(got.max_blocks) + b];
      const double error = std::fabs(score - reference) / (1.0 + std::fabs(reference));
      const bool flipped = !(error <= kIndexerScoreTolerance);
      ++errors.total, errors.flipped += flipped;
      double& largest = flipped ? errors.worst_flipped : errors.worst;
      if (!(error <= largest)) largest = error;
    }
  return errors;
}

}  // namespace tetrad::cuda::test
