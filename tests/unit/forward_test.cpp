// What a step computes does not depend on how many threads compute it.
#include "cpu/forward.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "support/loaded_model.h"

namespace tetrad::forward_test {
namespace {

using test::LoadedModel;

struct Computed {
  std::vector<float> logits;
  std::vector<std::pair<StateKind, std::uint64_t>> checksums;
};

// A long prompt, decoded tokens, and a second sequence beside them.
Computed run(const char* golden, int threads) {
  LoadedModel m(test::golden_directory(golden), {.num_slots = 2, .max_tokens = 512, .max_rows = 128, .num_threads = threads});
  const std::vector<int> ids = test::random_ids(150, m.config.vocab_size, 1, m.config.ple_eos_token);
  Computed result;
  SequenceState a(*m.pool), b(*m.pool);
  Stepper stepper(*m.pool);
  const auto step = [&](std::span<const int> first, std::span<const int> second) {
    std::vector<StepRequest> requests{{&a, first, LogitsWanted::kAll}};
    if (!second.empty()) requests.push_back({&b, second, LogitsWanted::kAll});
    for (const StepOutcome& outcome : stepper.run(requests))
      result.logits.insert(result.logits.end(), outcome.logits.begin(), outcome.logits.end());
  };
  const std::span<const int> all(ids);
  step(all.subspan(0, 100), {});
  step(all.subspan(100, 33), all.subspan(0, 17));
  step(all.subspan(133, 1), all.subspan(17, 1));
  step(all.subspan(134, 1), all.subspan(18, 60));
  result.checksums = a.checksums();
  for (const auto& sum : b.checksums()) result.checksums.push_back(sum);
  return result;
}

class Threads : public ::testing::TestWithParam<const char*> {};

TEST_P(Threads, one_two_and_three_give_the_same_bits) {
  const Computed expected = run(GetParam(), 1);
  ASSERT_FALSE(expected.logits.empty());
  EXPECT_TRUE(std::all_of(expected.logits.begin(), expected.logits.end(), [](float l) { return std::isfinite(l); }));
  for (const int threads : {2, 3}) {
    const Computed got = run(GetParam(), threads);
    ASSERT_EQ(got.logits.size(), expected.logits.size());
    EXPECT_EQ(0, std::memcmp(got.logits.data(), expected.logits.data(), expected.logits.size() * sizeof(float))) << threads << " threads";
    EXPECT_EQ(got.checksums, expected.checksums) << threads << " threads";
  }
}

INSTANTIATE_TEST_SUITE_P(goldens, Threads,
                         ::testing::Values("rand-small", "rand-heads", "variant-fp8", "variant-ratio8", "variant-streams3"),
                         [](const auto& p) {
                           std::string name = p.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace tetrad::forward_test
