// Could the goldens tell right from a plausible wrong? Every mutant of cpu/mutants.h is run through the same gates as the product and must
// miss a tolerance by at least ten times; the table is printed.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/bf16.h"
#include "cpu/mutants.h"
#include "cpu/qsa_index.h"
#include "engine/verify.h"
#include "support/loaded_model.h"

namespace tetrad {
namespace {

using cpu::Mutant;

constexpr double kRequiredDistance = 10.0;
constexpr const char* kCheckpoints[] = {"rand-small", "rand-heads"};

struct Finding {
  double distance = 0;  // tolerances away
  std::string where = "-";
  int exact_broken = 0;  // gates without a tolerance (ids, sets, table rows) that the mutant broke
};

Finding worst_finding(Mutant mutant) {
  Finding worst;
  for (const char* name : kCheckpoints) {
    cpu::active_mutant = mutant;  // before loading: norms add their one at load
    test::LoadedModel model(test::golden_directory(name));
    const VerifyReport report = verify_goldens(*model.pool, test::golden_directory(name) / "golden.safetensors");
    cpu::active_mutant = Mutant::kNone;
    for (const VerifyRow& row : report.rows) {
      if (row.pass) continue;
      if (row.tolerance == 0) {
        ++worst.exact_broken;
        continue;
      }
      const double distance = row.error_measure / row.tolerance;
      if (distance > worst.distance)
        worst.distance = distance, worst.where = fmt::format("{} case {} {}", name, row.golden_case, row.stage);
    }
  }
  return worst;
}

class Trap : public ::testing::TestWithParam<int> {};

TEST_P(Trap, mutant_is_caught) {
  const auto mutant = static_cast<Mutant>(GetParam());
  const Finding finding = worst_finding(mutant);
  fmt::print("{:<26} {:>10.1f} tolerances at {}; {} exact gates broken\n", cpu::mutant_name(mutant), finding.distance, finding.where,
             finding.exact_broken);
  EXPECT_GE(finding.distance, kRequiredDistance) << cpu::mutant_name(mutant);
}

std::vector<int> checkpoint_mutants() {
  std::vector<int> mutants;
  for (int m = 1; m < static_cast<int>(Mutant::kCount); ++m)
    if (static_cast<Mutant>(m) != Mutant::kPoolSum) mutants.push_back(m);  // has a fixture of its own below
  return mutants;
}

INSTANTIATE_TEST_SUITE_P(mutants, Trap, ::testing::ValuesIn(checkpoint_mutants()),
                         [](const auto& p) { return std::string(cpu::mutant_name(static_cast<Mutant>(p.param))); });

TEST(Trap, without_a_mutant_every_gate_passes) {
  const Finding finding = worst_finding(Mutant::kNone);
  EXPECT_EQ(finding.distance, 0.0) << finding.where;
  EXPECT_EQ(finding.exact_broken, 0);
}

// A sum instead of a mean is undone by the norm that follows, but for the norm's epsilon: only keys so small that epsilon counts tell the
// two apart, and neither random checkpoint has such keys.
TEST(Trap, small_keys_tell_a_sum_from_a_mean) {
  constexpr int kRatio = 4, kDim = 64;
  constexpr float kEps = 1e-6f;
  constexpr double kTolerance = 0.005;  // one bf16 step of a value below one, after the pooled mean was rounded to bf16
  std::vector<float> raw(kRatio * kDim), scale(kDim, 1.0f), cos(1, 1.0f), sin(1, 0.0f), got(kDim);
  for (std::size_t i = 0; i < raw.size(); ++i) raw[i] = round_bf16(4e-4f * static_cast<float>(static_cast<int>(i * 37 % 23) - 11) / 11.0f);
  std::vector<double> expected(kDim);
  double square = 0;
  for (int d = 0; d < kDim; ++d) {
    for (int r = 0; r < kRatio; ++r) expected[static_cast<std::size_t>(d)] += raw[static_cast<std::size_t>(r * kDim + d)] / kRatio;
    square += expected[static_cast<std::size_t>(d)] * expected[static_cast<std::size_t>(d)] / kDim;
  }
  const auto worst = [&](Mutant mutant) {
    cpu::active_mutant = mutant;
    cpu::pool_block_key({1, kDim, kRatio, 1, kEps}, raw.data(), scale.data(), cos.data(), sin.data(), 0, got.data());
    cpu::active_mutant = Mutant::kNone;
    double error = 0;
    for (std::size_t d = 0; d < got.size(); ++d) error = std::max(error, std::fabs(got[d] - expected[d] / std::sqrt(square + kEps)));
    return error;
  };
  EXPECT_LE(worst(Mutant::kNone), kTolerance);
  const double distance = worst(Mutant::kPoolSum) / kTolerance;
  fmt::print("{:<26} {:>10.1f} tolerances at small keys\n", cpu::mutant_name(Mutant::kPoolSum), distance);
  EXPECT_GE(distance, kRequiredDistance);
}

}  // namespace
}  // namespace tetrad
