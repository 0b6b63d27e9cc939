// The router alone: 210 rows of 512 logits, ten picks and their weights, to the bit.
#include <gtest/gtest.h>

#include "cpu/moe.h"
#include "engine/golden_file.h"
#include "support/loaded_model.h"

namespace tetrad::moe_router_test {
namespace {

constexpr int kExperts = 512, kPicks = 10;

TEST(moe_router, picks_and_weights_equal_the_reference) {
  const GoldenFile golden(test::golden_directory("moe-router.safetensors"));
  const auto logits = golden.floats("router_logits");
  const auto experts = golden.integers("experts");
  const auto weights = golden.floats("weights"), plain = golden.floats("weights_no_renorm");
  std::vector<float> probs(kExperts);
  int ids[kPicks];
  float got[kPicks];
  int rows_with_ties = 0;
  for (std::size_t row = 0; row * kExperts < logits.size(); ++row) {
    const float* l = logits.data() + row * kExperts;
    for (const bool renormalise : {true, false}) {
      ASSERT_TRUE(cpu::route(l, kExperts, kPicks, renormalise, probs.data(), ids, got));
      bool same_ids = true;
      for (int k = 0; k < kPicks; ++k) {
        const std::size_t at = row * kPicks + static_cast<std::size_t>(k);
        EXPECT_EQ(got[k], (renormalise ? weights : plain)[at]) << "row " << row << " pick " << k;
        // Where two logits are equal the reference leaves the order open: the logit must be the same, and ours the lower index.
        if (ids[k] != experts[at]) same_ids = false;
        EXPECT_EQ(l[ids[k]], l[experts[at]]) << "row " << row << " pick " << k;
      }
      rows_with_ties += !same_ids;
      for (int k = 1; k < kPicks; ++k) EXPECT_TRUE(l[ids[k - 1]] > l[ids[k]] || (l[ids[k - 1]] == l[ids[k]] && ids[k - 1] < ids[k]));
    }
  }
  RecordProperty("rows_with_ties", rows_with_ties);
}

}  // namespace
}  // namespace tetrad::moe_router_test
