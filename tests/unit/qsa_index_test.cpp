#include "cpu/qsa_index.h"

#include <gtest/gtest.h>

#include <limits>
#include <numeric>

#include "support/op_rig.h"

namespace tetrad::cpu::qsa_index_test {
namespace {

using test::Bounded;
using test::BoundedRow;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

std::vector<int> select(const std::vector<float>& scores, int topk) {
  std::vector<std::uint64_t> order(scores.size());
  std::vector<int> blocks(static_cast<std::size_t>(topk), -1);
  const int count = select_blocks(scores, topk, order.data(), blocks.data());
  blocks.resize(static_cast<std::size_t>(count));
  return blocks;
}

// The rule in its plainest form: one block after another, the best that is left.
std::vector<int> brute_force(const std::vector<float>& scores, int topk) {
  std::vector<bool> taken(scores.size(), false);
  std::vector<int> chosen;
  const auto better = [](float a, float b) { return std::isnan(b) ? false : std::isnan(a) ? true : a > b; };
  while (static_cast<int>(chosen.size()) < topk && chosen.size() < scores.size()) {
    int best = -1;
    for (std::size_t b = 0; b < scores.size(); ++b)
      if (!taken[b] && (best < 0 || better(scores[b], scores[static_cast<std::size_t>(best)]))) best = static_cast<int>(b);
    taken[static_cast<std::size_t>(best)] = true;
    chosen.push_back(best);
  }
  std::sort(chosen.begin(), chosen.end());
  return chosen;
}

TEST(qsa_index, selection_rule) {
  EXPECT_EQ(select({1, 3, 2, 5}, 2), (std::vector{1, 3})) << "higher score first, output ascending";
  EXPECT_EQ(select({5, 1, 5, 5, 5}, 3), (std::vector{0, 2, 3})) << "lower index on ties";
  EXPECT_EQ(select({0, 0, 0, 0}, 1), (std::vector{0}));
  EXPECT_EQ(select({-0.0f, 0.0f, -0.0f, 0.0f}, 2), (std::vector{0, 1})) << "-0 equals +0";
  EXPECT_EQ(select({0.0f, -0.0f, 1e-45f}, 2), (std::vector{0, 2})) << "the least subnormal is above zero";
  EXPECT_EQ(select({-1, -2, -0.5f}, 2), (std::vector{0, 2}));
  EXPECT_EQ(select({1, kNan, 9, kInf}, 2), (std::vector{1, 3})) << "a NaN ranks above everything";
  EXPECT_EQ(select({kNan, 2, -kNan, kNan}, 2), (std::vector{0, 2})) << "whatever its sign; lower index among NaNs";
  EXPECT_EQ(select({-kInf, 3, -kInf}, 2), (std::vector{0, 1}));
  EXPECT_EQ(select({}, 4), (std::vector<int>{}));
  EXPECT_EQ(select({1, kNan, 0}, 3), (std::vector{0, 1, 2})) << "a budget just reached keeps all";
  EXPECT_EQ(select({2, 1}, 8), (std::vector{0, 1})) << "a budget not reached keeps all";
}

TEST(qsa_index, selection_equals_brute_force_with_many_ties) {
  test::RandomValues random(1);
  const float pool[] = {0.0f, -0.0f, 1.0f, 1.0f, 2.0f, -1.0f, 0x1.000002p0f, kNan, kInf, -kInf, 1e-45f, 1e-40f};
  for (int trial = 0; trial < 4000; ++trial) {
    const int count = random.below(40), distinct = 1 + random.below(12), topk = 1 + random.below(20);
    std::vector<float> scores;
    for (int b = 0; b < count; ++b) scores.push_back(pool[random.below(distinct)]);
    ASSERT_EQ(select(scores, topk), brute_force(scores, topk)) << "trial " << trial;
  }
}

TEST(qsa_index, expansion_adds_the_tail_for_every_ratio) {
  for (int R = 2; R <= 8; ++R) {
    const IndexGeometry g{.HI = 1, .DI = 1, .R = R, .topk = 2, .eps = 0};
    for (int position = 0; position < 4 * R; ++position) {
      const int complete = (position + 1) / R;
      std::vector<int> blocks;
      if (complete > 0) blocks.push_back(0);
      if (complete > 2) blocks.push_back(2);
      std::vector<int> expected, got(static_cast<std::size_t>(3 * R + R));
      for (const int b : blocks)
        for (int r = 0; r < R; ++r) expected.push_back(b * R + r);
      for (int p = complete * R; p <= position; ++p) expected.push_back(p);
      got.resize(static_cast<std::size_t>(expand_selection(g, blocks, position, got.data())));
      EXPECT_EQ(got, expected) << "R " << R << ", position " << position;
      const bool tail = (position + 1) % R != 0;
      EXPECT_EQ(!got.empty() && got.back() == position, tail || (complete > 0 && blocks.back() == complete - 1));
    }
  }
}

TEST(qsa_index, pooled_keys_and_queries_agree_with_double) {
  test::RandomValues random(2);
  // The norm takes the size of a key out again, and a sum for a mean with it, unless the epsilon counts: half of the keys are that small.
  for (const int R : {2, 3, 4, 5, 7, 8}) {
    for (const int DI : {4, 9, 32}) {
      const double size = DI == 9 ? 1.0 : 1e-3;
      const IndexGeometry g{.HI = 1, .DI = DI, .R = R, .topk = 4, .eps = 1e-6f};
      const int DR = 4;
      const std::vector<float> raw = random.row(R * DI, size), scale = random.row(DI, 1.0), cos = random.row(2, 1.0),
                               sin = random.row(2, 1.0);
      const auto rotated = [&](BoundedRow x) {
        const BoundedRow before = x;
        for (std::size_t i = 0; i < DR / 2; ++i) {
          x[i] = bf(bf(before[i] * Bounded(cos[i])) - bf(before[i + DR / 2] * Bounded(sin[i])));
          x[i + DR / 2] = bf(bf(before[i + DR / 2] * Bounded(cos[i])) + bf(before[i] * Bounded(sin[i])));
        }
        return x;
      };
      BoundedRow mean;
      for (int i = 0; i < DI; ++i) {
        BoundedRow column;
        for (int r = 0; r < R; ++r) column.emplace_back(raw[static_cast<std::size_t>(r * DI + i)]);
        mean.push_back(bf(test::bounded_sum(column) / Bounded(R)));
      }
      std::vector<float> key(static_cast<std::size_t>(DI));
      pool_block_key(g, raw.data(), scale.data(), cos.data(), sin.data(), DR, key.data());
      test::expect_within(key, rotated(test::bounded_norm(mean, scale, 1e-6, 1)), 0.15, "key of " + std::to_string(R));

      std::vector<float> query(raw.begin(), raw.begin() + DI);
      const BoundedRow expected = rotated(test::bounded_norm(test::exactly(query), scale, 1e-6, 1));
      index_query(g, scale.data(), cos.data(), sin.data(), DR, query.data());
      test::expect_within(query, expected, 0.15, "query");
    }
  }
}

TEST(qsa_index, block_scores_agree_with_double) {
  test::RandomValues random(3);
  for (const int HI : {1, 2, 4, 5}) {
    for (const int DI : {1, 7, 32, 129}) {
      const IndexGeometry g{.HI = HI, .DI = DI, .R = 4, .topk = 4, .eps = 1e-6f};
      const int num_blocks = 13;
      const std::vector<float> q = random.row(HI * DI, 1.0), keys = random.row(num_blocks * DI, 1.0);
      std::vector<bf16> bits;
      for (const float k : keys) bits.push_back(to_bf16(k));
      std::vector<float> scores(static_cast<std::size_t>(num_blocks), -1.0f);
      block_scores(g, q.data(), bits.data(), num_blocks, scores.data());
      BoundedRow expected;
      for (int b = 0; b < num_blocks; ++b) {
        BoundedRow heads;
        for (int j = 0; j < HI; ++j) {
          const BoundedRow head = test::exactly({q.data() + j * DI, static_cast<std::size_t>(DI)}),
                           key = test::exactly({keys.data() + b * DI, static_cast<std::size_t>(DI)});
          Bounded dot = test::bounded_dot(head, key);
          dot.value = std::max(dot.value, 0.0);  // a sign that rounding flips costs no more than the bound of the dot product
          heads.push_back(dot);
        }
        expected.push_back(test::bounded_sum(heads) / Bounded(std::sqrt(DI), test::kFloatHalfStep * std::sqrt(DI)));
      }
      test::expect_within(scores, expected, 1e-3, std::to_string(HI) + " heads of " + std::to_string(DI));
    }
  }
}

TEST(qsa_index, a_nan_key_scores_nan_and_is_selected) {
  const IndexGeometry g{.HI = 2, .DI = 4, .R = 4, .topk = 1, .eps = 1e-6f};
  std::vector<bf16> keys(5 * 4, to_bf16(1.0f));
  keys[3 * 4 + 2] = to_bf16(kNan);
  const std::vector<float> q(8, 1.0f);
  std::vector<float> scores(5);
  block_scores(g, q.data(), keys.data(), 5, scores.data());
  for (int b = 0; b < 5; ++b) EXPECT_EQ(std::isnan(scores[static_cast<std::size_t>(b)]), b == 3);
  EXPECT_EQ(select(scores, 1), std::vector{3});
  block_scores(g, q.data(), keys.data(), 0, scores.data());  // nothing to score is nothing done
}

}  // namespace
}  // namespace tetrad::cpu::qsa_index_test
