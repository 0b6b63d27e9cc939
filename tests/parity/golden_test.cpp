// The whole forward against the reference, prefill, decode and every stage (engine/verify.h).
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "engine/verify.h"
#include "support/loaded_model.h"

namespace tetrad::golden_test {
namespace {

class Golden : public ::testing::TestWithParam<const char*> {};

TEST_P(Golden, every_case_and_stage_is_within_the_references_own_spread) {
  const auto directory = test::golden_directory(GetParam());
  test::LoadedModel model(directory);
  const VerifyReport report = verify_goldens(*model.pool, directory / "golden.safetensors");
  fmt::print("{}", report.table());
  EXPECT_TRUE(report.passed());
}

INSTANTIATE_TEST_SUITE_P(checkpoints, Golden,
                         ::testing::Values("rand-small", "rand-heads", "variant-streams3", "variant-ratio8", "variant-ngram4",
                                           "variant-ngram2", "variant-nople", "variant-fp8"),
                         [](const auto& p) {
                           std::string name = p.param;
                           for (char& c : name)
                             if (c == '-') c = '_';
                           return name;
                         });

}  // namespace
}  // namespace tetrad::golden_test
