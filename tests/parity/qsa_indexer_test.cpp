// The indexer alone at the published geometry, from the fused projection on, against the reference's scores and selections.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

#include "cpu/qsa_index.h"
#include "engine/golden_file.h"
#include "support/loaded_model.h"

namespace tetrad::qsa_indexer_test {
namespace {

constexpr int kHeads = 4, kDim = 128, kRatio = 4, kRotary = 64, kCases = 10, kExactCases = 8;
// Up to 130 tokens scores agree to this, relative plus absolute. Past that single scores differ by a flipped bf16 rounding in a block key
// or query (docs/numerics.md): the share of such scores is bounded instead, and their size by one bf16 step of a term.
constexpr double kScoreTolerance = 2e-6;
constexpr double kFlippedShare = 0.01;
constexpr double kFlippedSize = 0.02;

struct Indexer {
  explicit Indexer(const GoldenFile& golden, int index) : name(fmt::format("case{}.", index)), fused(golden.floats(name + "fused_qk")) {
    RopeConfig rope_config;
    rope_config.rotary_dim = kRotary;
    rope = cpu::RopeTable(rope_config);
    const auto plus_one = [](std::vector<float> w) {
      for (float& x : w) x += 1.0f;
      return w;
    };
    q_scale = plus_one(golden.floats(name + "q_norm"));
    k_scale = plus_one(golden.floats(name + "k_norm"));
    tokens = static_cast<int>(fused.size()) / ((kHeads + 1) * kDim);
  }

  std::vector<float> query(int row) const {
    const float* source = fused.data() + static_cast<std::ptrdiff_t>(row) * (kHeads + 1) * kDim;
    std::vector<float> q(source, source + kHeads * kDim);
    float cos[kRotary / 2], sin[kRotary / 2];
    rope.angles(row, cos, sin);
    for (int j = 0; j < kHeads; ++j) cpu::index_query(geometry, q_scale.data(), cos, sin, kRotary, q.data() + j * kDim);
    return q;
  }

  std::vector<bf16> block_keys() const {
    std::vector<bf16> keys;
    std::vector<float> raw(kRatio * kDim), kb(kDim);
    float cos[kRotary / 2], sin[kRotary / 2];
    for (int b = 0; (b + 1) * kRatio <= tokens; ++b) {
      for (int r = 0; r < kRatio; ++r) {
        const float* key = fused.data() + (static_cast<std::ptrdiff_t>(b * kRatio + r) * (kHeads + 1) + kHeads) * kDim;
        std::copy_n(key, kDim, raw.data() + r * kDim);
      }
      rope.angles(b * kRatio, cos, sin);
      cpu::pool_block_key(geometry, raw.data(), k_scale.data(), cos, sin, kRotary, kb.data());
      for (const float x : kb) keys.push_back(to_bf16(x));
    }
    return keys;
  }

  std::string name;
  std::vector<float> fused, q_scale, k_scale;
  cpu::RopeTable rope;
  int tokens = 0;
  cpu::IndexGeometry geometry{kHeads, kDim, kRatio, 0, 1e-6f};
};

int budget_of(int index) { return index == 7 ? 64 : index == 8 ? 128 : 2048; }  // qsa-indexer.json

TEST(qsa_indexer, scores_and_selection_equal_the_reference) {
  const GoldenFile golden(test::golden_directory("qsa-indexer.safetensors"));
  for (int index = 0; index < kCases; ++index) {
    Indexer indexer(golden, index);
    indexer.geometry.topk = budget_of(index) / kRatio;
    const std::vector<bf16> keys = indexer.block_keys();
    const auto rows = golden.integers(indexer.name + "rows");
    const auto expected = golden.floats(indexer.name + "scores");
    const auto selected = golden.integers(indexer.name + "selected");
    const std::size_t columns = expected.size() / rows.size();
    std::vector<float> scores(columns);
    std::vector<std::uint64_t> order(columns);
    std::vector<int> blocks(columns + 1), positions(static_cast<std::size_t>(indexer.tokens) + kRatio);
    double worst = 0, worst_flipped = 0;
    std::int64_t total = 0, flipped = 0, wrong_sets = 0, tied = 0;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const int row = static_cast<int>(rows[i]), num_blocks = (row + 1) / kRatio;
      const std::vector<float> q = indexer.query(row);
      cpu::block_scores(indexer.geometry, q.data(), keys.data(), num_blocks, scores.data());
      for (int b = 0; b < static_cast<int>(columns); ++b) {
        const float reference = expected[i * columns + static_cast<std::size_t>(b)];
        if (b >= num_blocks) {
          EXPECT_TRUE(std::isnan(reference));
          continue;
        }
        const double error = std::fabs(scores[static_cast<std::size_t>(b)] - reference) / (1.0 + std::fabs(reference));
        ++total;
        flipped += error > kScoreTolerance;
        double& largest = error > kScoreTolerance ? worst_flipped : worst;
        largest = std::max(largest, error);
      }
      const int count =
          cpu::select_blocks({scores.data(), static_cast<std::size_t>(num_blocks)}, indexer.geometry.topk, order.data(), blocks.data());
      const int attended = cpu::expand_selection(indexer.geometry, {blocks.data(), static_cast<std::size_t>(count)}, row, positions.data());
      std::vector<std::int64_t> mask(static_cast<std::size_t>(indexer.tokens), 0);
      for (int n = 0; n < attended; ++n) mask[static_cast<std::size_t>(positions[static_cast<std::size_t>(n)])] = 1;
      // Blocks chosen on one side only must tie with those of the other side.
      for (int a = 0; a < num_blocks; ++a)
        for (int b = 0; b < num_blocks; ++b) {
          const auto mine = [&](int block) { return mask[static_cast<std::size_t>(block) * kRatio] != 0; };
          const auto theirs = [&](int block) { return selected[i * mask.size() + static_cast<std::size_t>(block) * kRatio] != 0; };
          if (!mine(a) || theirs(a) || mine(b) || !theirs(b)) continue;
          const float score_a = scores[static_cast<std::size_t>(a)], score_b = scores[static_cast<std::size_t>(b)];
          const float reference_a = expected[i * columns + static_cast<std::size_t>(a)],
                      reference_b = expected[i * columns + static_cast<std::size_t>(b)];
          (std::fabs(score_a - score_b) <= kScoreTolerance * (1 + score_a) ? tied : wrong_sets) += 1;
          fmt::print("  row {}: block {} ({:.7g}, reference {:.7g}) for {} ({:.7g}, reference {:.7g})\n", row, a, score_a, reference_a, b,
                     score_b, reference_b);
        }
      for (int p = num_blocks * kRatio; p <= row; ++p) EXPECT_NE(mask[static_cast<std::size_t>(p)], 0) << "tail of row " << row;
    }
    fmt::print("case {} tokens {:>5}: worst {:.2e}, flipped {} of {} (worst {:.2e}), {} of {} selections differ, {} ties\n", index,
               indexer.tokens, worst, flipped, total, worst_flipped, wrong_sets, rows.size(), tied);
    EXPECT_TRUE(index >= kExactCases || flipped == 0) << index;
    EXPECT_LE(static_cast<double>(flipped), kFlippedShare * static_cast<double>(total)) << index;
    EXPECT_LE(worst_flipped, kFlippedSize) << index;
    EXPECT_EQ(wrong_sets, 0) << index;
  }
}

}  // namespace
}  // namespace tetrad::qsa_indexer_test
