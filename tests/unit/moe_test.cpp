#include "cpu/moe.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <limits>
#include <numeric>
#include <optional>

#include "support/op_rig.h"

namespace tetrad::cpu::moe_test {
namespace {

using test::Bounded;
using test::BoundedRow;

struct Routing {
  bool finite;
  std::vector<int> ids;
  std::vector<float> weights;
};

Routing routed(const std::vector<float>& logits, int EK, bool renormalise = true) {
  Routing r{false, std::vector<int>(static_cast<std::size_t>(EK), -1), std::vector<float>(static_cast<std::size_t>(EK), -1.0f)};
  std::vector<float> probs(logits.size());
  r.finite = route(logits.data(), static_cast<int>(logits.size()), EK, renormalise, probs.data(), r.ids.data(), r.weights.data());
  return r;
}

TEST(moe, routing_by_hand) {
  const float ln2 = std::log(2.0f);
  const Routing r = routed({0.0f, 2 * ln2, ln2, 0.0f}, 2);  // probabilities 1/8, 4/8, 2/8, 1/8
  EXPECT_TRUE(r.finite);
  EXPECT_EQ(r.ids, (std::vector{1, 2}));
  EXPECT_NEAR(r.weights[0], 2.0 / 3, 0x1p-9);  // bf16 half step at 2/3
  EXPECT_NEAR(r.weights[1], 1.0 / 3, 0x1p-10);
  const Routing plain = routed({0.0f, 2 * ln2, ln2, 0.0f}, 2, false);
  EXPECT_EQ(plain.weights, (std::vector{0.5f, 0.25f}));  // bf16 takes up the error of exp
  EXPECT_EQ(routed({5, 5, 7, 5, 7}, 4).ids, (std::vector{2, 4, 0, 1})) << "lower index on ties";
  EXPECT_EQ(routed({1, 2, 3}, 3).ids, (std::vector{2, 1, 0})) << "every expert, in descending weight";
  EXPECT_EQ(routed({-3}, 1).weights, std::vector{1.0f}) << "one expert";
  EXPECT_EQ(routed({-1000, 1000, -1000}, 2).ids, (std::vector{1, 0})) << "underflow to 0 is a tie";
}

TEST(moe, routing_refuses_what_is_not_finite) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()})
    for (std::size_t where = 0; where < 4; ++where) {
      std::vector<float> logits{1, 2, 3, 4};
      logits[where] = bad;
      const Routing r = routed(logits, 2);
      EXPECT_FALSE(r.finite);
      EXPECT_EQ(r.ids, (std::vector{0, 1})) << "ids stay in range";
      for (const float w : r.weights) EXPECT_TRUE(std::isnan(w));
    }
}

TEST(moe, routing_equals_a_full_sort_with_many_ties) {
  test::RandomValues random(1);
  for (int trial = 0; trial < 2000; ++trial) {
    const int E = 1 + random.below(20), EK = 1 + random.below(E);
    std::vector<float> logits;
    for (int e = 0; e < E; ++e) logits.push_back(static_cast<float>(random.below(4)) * 0.5f);
    std::vector<int> order(static_cast<std::size_t>(E));
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int a, int b) { return logits[static_cast<std::size_t>(a)] > logits[static_cast<std::size_t>(b)]; });
    order.resize(static_cast<std::size_t>(EK));
    ASSERT_EQ(routed(logits, EK).ids, order) << "trial " << trial;
  }
}

struct Expert {
  Expert(int F, int D, test::RandomValues& random)
      : gate(F, D, random, 1 / std::sqrt(D)), up(F, D, random, 1 / std::sqrt(D)), down(D, F, random, 1 / std::sqrt(F)) {}
  BoundedRow output(const BoundedRow& x) const {
    BoundedRow hidden = gate.times(x);
    const BoundedRow other = up.times(x);
    for (std::size_t i = 0; i < hidden.size(); ++i) hidden[i] = bf(bf(test::bounded_silu(hidden[i])) * other[i]);
    return down.times(hidden);
  }
  test::Matrix gate, up, down;
};

test::Matrix stacked(std::initializer_list<const test::Matrix*> parts) {
  test::Matrix all;
  for (const test::Matrix* part : parts) {
    all.rows += part->rows;
    all.columns = part->columns;
    all.values.insert(all.values.end(), part->values.begin(), part->values.end());
  }
  return all;
}

struct MoeModel {
  MoeModel(const Config& config, unsigned seed)
      : c(config),
        random(seed),
        router(c.num_experts, c.hidden_size, random, 0.5),
        shared_gate(1, c.hidden_size, random, 0.3),
        shared(c.shared_expert_intermediate, c.hidden_size, random) {
    for (int e = 0; e < c.num_experts; ++e) experts.emplace_back(c.moe_intermediate, c.hidden_size, random);
    packed.router = router.pack();
    for (const Expert& e : experts) packed.experts.push_back({stacked({&e.gate, &e.up}).pack(), e.down.pack()});
    packed.shared = {stacked({&shared.gate, &shared.up, &shared_gate}).pack(), shared.down.pack()};
  }

  // y [D] of one token, or nothing where rounding could change which experts are picked.
  std::optional<BoundedRow> oracle(std::span<const float> token) const {
    const BoundedRow x = test::exactly(token);
    const BoundedRow logits = router.times(x);
    BoundedRow p;
    for (const Bounded& l : logits) p.push_back(test::bounded_exp(l));
    std::vector<std::size_t> order(logits.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return logits[a].value > logits[b].value; });
    const auto EK = static_cast<std::size_t>(c.experts_per_token);
    if (EK < order.size() && logits[order[EK - 1]].value - logits[order[EK]].value <= logits[order[EK - 1]].error + logits[order[EK]].error)
      return std::nullopt;
    order.resize(EK);
    const Bounded all = test::bounded_sum(p);
    BoundedRow picked;
    for (const std::size_t e : order) picked.push_back(p[e] / all);
    const Bounded sum = c.norm_topk_prob ? test::bounded_sum(picked) : Bounded(1.0);
    std::vector<BoundedRow> products(static_cast<std::size_t>(c.hidden_size));
    for (std::size_t k = 0; k < EK; ++k) {
      const BoundedRow out = experts[order[k]].output(x);
      const Bounded weight = bf(picked[k] / sum);
      for (std::size_t d = 0; d < out.size(); ++d) products[d].push_back(bf(weight * out[d]));
    }
    const Bounded gate = bf(test::bounded_sigmoid(shared_gate.times(x)[0]));
    const BoundedRow common = shared.output(x);
    BoundedRow y;
    for (std::size_t d = 0; d < products.size(); ++d) y.push_back(bf(bf(test::bounded_sum(products[d])) + bf(gate * common[d])));
    return y;
  }

  Config c;
  test::RandomValues random;
  test::Matrix router, shared_gate;
  Expert shared;
  std::vector<Expert> experts;
  PackedMoe packed;
};

TEST(moe, layer_agrees_with_double) {
  struct Shape {
    int experts, picked, F, FS;
    bool renormalise;
  };
  for (const Shape s : {Shape{5, 2, 10, 6, true}, {1, 1, 8, 8, true}, {4, 4, 7, 3, true}, {6, 3, 9, 5, false}, {9, 1, 1, 1, true}}) {
    Config c = test::small_config();
    c.num_experts = s.experts;
    c.experts_per_token = s.picked;
    c.moe_intermediate = s.F;
    c.shared_expert_intermediate = s.FS;
    c.norm_topk_prob = s.renormalise;
    MoeModel model(c, static_cast<unsigned>(s.experts));
    test::OpRig rig(c, 32, 3);
    for (const int T : {0, 1, 2, 19}) {
      const std::vector<float> x = model.random.row(T * c.hidden_size, 1.0);
      std::vector<float> y(x.size());
      rig.step(std::vector<int>(static_cast<std::size_t>(T), 0), 0, {},
               [&](StepContext& step) { moe_layer(model.packed, 0, x.data(), y.data(), step); });
      int compared = 0;
      for (int t = 0; t < T; ++t) {
        const auto row = [&](const std::vector<float>& v) {
          return std::span(v).subspan(static_cast<std::size_t>(t * c.hidden_size), static_cast<std::size_t>(c.hidden_size));
        };
        const auto expected = model.oracle(row(x));
        if (!expected) continue;
        ++compared;
        test::expect_within(row(y), *expected, 0.25, fmt::format("{} of {} experts, row {} of {}", s.picked, s.experts, t, T));
      }
      EXPECT_GE(2 * compared, T) << "too few rows with a clear choice";
      EXPECT_TRUE(rig.result.faults.empty());
    }
  }
}

TEST(moe, a_poisoned_row_is_a_fault_and_leaves_the_others) {
  const Config c = test::small_config();
  MoeModel model(c, 3);
  test::OpRig rig(c, 8, 2);
  std::vector<float> x = model.random.row(4 * c.hidden_size, 1.0), clean(x.size()), got(x.size());
  const std::vector<int> ids(4, 0);
  rig.step(ids, 0, {}, [&](StepContext& step) { moe_layer(model.packed, 7, x.data(), clean.data(), step); });
  x[static_cast<std::size_t>(2 * c.hidden_size + 5)] = std::nanf("");
  rig.step(ids, 0, {}, [&](StepContext& step) { moe_layer(model.packed, 7, x.data(), got.data(), step); });
  ASSERT_EQ(rig.result.faults.size(), 1u);
  EXPECT_EQ(rig.result.faults[0].row, 2);
  EXPECT_EQ(rig.result.faults[0].layer, 7);
  EXPECT_EQ(rig.result.faults[0].sequence, 0);
  EXPECT_EQ(rig.result.faults[0].what, "router logits");
  for (std::size_t i = 0; i < got.size(); ++i) {
    const bool own = i / static_cast<std::size_t>(c.hidden_size) == 2;
    EXPECT_TRUE(own ? std::isnan(got[i]) : got[i] == clean[i]) << i;
  }
}

}  // namespace
}  // namespace tetrad::cpu::moe_test
