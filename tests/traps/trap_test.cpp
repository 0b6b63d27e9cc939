// Could the goldens tell right from a plausible wrong? Every mutant of cpu/mutants.h is run through the same gates as the product and must
// miss a tolerance by at least ten times; the table is printed.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <limits>

#include "cpu/mutants.h"
#include "engine/verify.h"
#include "support/loaded_model.h"

namespace tetrad {
namespace {

using cpu::Mutant;

constexpr double kRequiredDistance = 10.0;
constexpr const char* kCheckpoints[] = {"rand-small", "rand-heads"};

struct Finding {
  double distance = 0;      // tolerances away, infinite for a violated exact gate
  std::string where = "-";
};

Finding worst_finding(Mutant mutant) {
  Finding worst;
  for (const char* name : kCheckpoints) {
    cpu::active_mutant = mutant;   // before loading: norms add their one at load
    test::LoadedModel model(test::golden_directory(name));
    const VerifyReport report = verify_goldens(*model.pool, test::golden_directory(name) / "golden.safetensors");
    cpu::active_mutant = Mutant::kNone;
    for (const VerifyRow& row : report.rows) {
      const double distance = row.pass ? 0.0 : row.tolerance == 0 ? std::numeric_limits<double>::infinity() : row.error_measure / row.tolerance;
      if (distance > worst.distance) worst = {distance, fmt::format("{} case {} {}", name, row.golden_case, row.stage)};
    }
  }
  return worst;
}

class Trap : public ::testing::TestWithParam<int> {};

TEST_P(Trap, mutant_is_caught) {
  const auto mutant = static_cast<Mutant>(GetParam());
  const Finding finding = worst_finding(mutant);
  fmt::print("{:<26} {:>12.1f} tolerances  {}\n", cpu::mutant_name(mutant), finding.distance, finding.where);
  EXPECT_GE(finding.distance, kRequiredDistance) << cpu::mutant_name(mutant);
}

INSTANTIATE_TEST_SUITE_P(mutants, Trap, ::testing::Range(1, static_cast<int>(Mutant::kCount)),
                         [](const auto& p) { return std::string(cpu::mutant_name(static_cast<Mutant>(p.param))); });

TEST(Trap, without_a_mutant_every_gate_passes) {
  const Finding finding = worst_finding(Mutant::kNone);
  EXPECT_EQ(finding.distance, 0.0) << finding.where;
}

}  // namespace
}  // namespace tetrad
