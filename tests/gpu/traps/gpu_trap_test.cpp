// Could the gates of the GPU tell right from a plausible wrong? Every fault of kernels/mutants.cuh runs on the device through the same
// gates as the product, `verify` over goldens or the comparison of a kernel's own test, and must miss a tolerance by at least ten times.
// Each fault prints a line "mutant {...}", which scripts/gpu_gate.sh puts into its result file.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "cpu/moe.h"
#include "cpu/qsa_index.h"
#include "cuda/kernels/gdn.h"
#include "cuda/kernels/moe.h"
#include "cuda/kernels/mutants.cuh"
#include "cuda/token_chooser.h"
#include "device_weight.h"
#include "engine/row_chooser.h"
#include "engine/verify.h"
#include "indexer_golden.h"
#include "support/loaded_model.h"

namespace tetrad::cuda {
namespace {

using test::to_device;
using test::to_host;

constexpr double kRequiredDistance = 10.0;

// A fault for as long as it lives.
struct ActiveMutant {
  explicit ActiveMutant(Mutant m) { select_mutant(m); }
  ~ActiveMutant() {
    try {
      select_mutant(Mutant::kNone);
    } catch (const CudaError& error) {
      ADD_FAILURE() << "the device is gone, no fault after this one can be judged: " << error.what();
    }
  }
  ActiveMutant(const ActiveMutant&) = delete;
  ActiveMutant& operator=(const ActiveMutant&) = delete;
};

struct Finding {
  double distance = 0;  // tolerances away
  std::string where = "-";
  int exact_broken = 0;  // gates without a tolerance (ids, sets, table rows) that the fault broke
};

void report(Mutant m, const Finding& finding) {
  fmt::print("mutant {{\"name\": \"{}\", \"tolerances\": {:.1f}, \"where\": \"{}\", \"exact_gates_broken\": {}}}\n", mutant_name(m),
             finding.distance, finding.where, finding.exact_broken);
}

// --- Through verify ---

std::string row_name(const VerifyRow& row) { return fmt::format("case {} {}", row.golden_case, row.stage); }

// A model on the device, and the rows that it misses without a fault (docs/testing.md): these prove nothing.
struct Subject {
  explicit Subject(const std::string& name) : model(::tetrad::test::golden_directory(name)) {
    for (const VerifyRow& row : verify(name).rows)
      if (!row.pass) missed.insert(row_name(row)), worst_missed = std::max(worst_missed, row.error_measure / row.tolerance);
  }
  VerifyReport verify(const std::string& name) const {
    return verify_goldens(*model.pool, ::tetrad::test::golden_directory(name) / "golden.safetensors");
  }
  ::tetrad::test::LoadedModel model;
  std::set<std::string> missed;
  double worst_missed = 0;
};

const Subject& subject(const std::string& name) {
  static std::map<std::string, std::unique_ptr<Subject>> subjects;
  auto& entry = subjects[name];
  if (!entry) entry = std::make_unique<Subject>(name);
  return *entry;
}

// The checkpoints one after the other, until one is far enough away.
Finding worst_of_verify(Mutant mutant, const std::vector<const char*>& checkpoints) {
  Finding worst;
  for (const char* name : checkpoints) {
    const Subject& on = subject(name);  // loaded and judged before the fault is chosen
    const ActiveMutant active(mutant);
    for (const VerifyRow& row : on.verify(name).rows) {
      if (row.pass || on.missed.contains(row_name(row))) continue;
      if (row.tolerance == 0) {
        ++worst.exact_broken;
        continue;
      }
      const double distance = row.error_measure / row.tolerance;
      if (distance > worst.distance) worst.distance = distance, worst.where = fmt::format("{} {}", name, row_name(row));
    }
    if (worst.distance >= kRequiredDistance) break;
  }
  return worst;
}

// These the goldens cannot tell from the product, or only by chance: each has a comparison of its own below.
const std::set<Mutant> kWithFixture{Mutant::kSegmentOrder,    Mutant::kScaleOfNextBlock, Mutant::kWindowTooFar,
                                    Mutant::kPoolTruncated,   Mutant::kTieHigherIndex,   Mutant::kRouterTieHigher,
                                    Mutant::kSampleTieHigher, Mutant::kSampleDrawAtLeast};

class GpuTrap : public ::testing::TestWithParam<Mutant> {};

TEST_P(GpuTrap, is_caught_by_verify) {
  const Mutant mutant = GetParam();
  Finding finding;
  try {
    finding = mutant == Mutant::kPleScaleMissing ? worst_of_verify(mutant, {"variant-fp8"})
                                                 : worst_of_verify(mutant, {"rand-small", "rand-heads"});
  } catch (const std::exception& error) {
    FAIL() << mutant_name(mutant) << ": verify gave up, which is no measured distance: " << error.what();
  }
  report(mutant, finding);
  EXPECT_GE(finding.distance, kRequiredDistance) << mutant_name(mutant) << ": nearest gate at " << finding.where;
}

std::vector<Mutant> verified_mutants() {
  std::vector<Mutant> mutants;
  for (int m = 1; m < static_cast<int>(Mutant::kCount); ++m)
    if (!kWithFixture.contains(static_cast<Mutant>(m))) mutants.push_back(static_cast<Mutant>(m));
  return mutants;
}

INSTANTIATE_TEST_SUITE_P(mutants, GpuTrap, ::testing::ValuesIn(verified_mutants()),
                         [](const auto& p) { return std::string(mutant_name(p.param)); });

// A gate that refuses the product as far as a fault would prove nothing either.
TEST(GpuTraps, without_a_fault_no_gate_is_missed_that_far) {
  for (const char* name : {"rand-small", "rand-heads", "variant-fp8"}) {
    const Subject& on = subject(name);
    fmt::print("{}: {} rows missed without a fault, at most {:.2f} tolerances\n", name, on.missed.size(), on.worst_missed);
    EXPECT_LT(on.worst_missed, kRequiredDistance) << name;
  }
}

// --- Comparisons of their own: distance(), in tolerances, is at most 1 without the fault ---

template <class Distance>
void expect_caught(Mutant mutant, const char* where, Distance distance) {
  const double product = distance();
  Finding finding;
  finding.where = where;
  {
    const ActiveMutant active(mutant);
    finding.distance = distance();
  }
  report(mutant, finding);
  EXPECT_LE(product, 1.0) << "without the fault, at " << where;
  EXPECT_GE(finding.distance, kRequiredDistance) << mutant_name(mutant) << " at " << where;
}

// Segments of sums 2^20, -2^20 and b: ascending gives b, any other order loses its low bits.
TEST(GpuTraps, segment_order_shows_where_segments_cancel) {
  constexpr int kSegment = kSegmentFragments * kFragmentColumns, N = 64, K = 3 * kSegment, T = 4;
  const Stream stream;
  std::vector<bf16> weight = test::random_bf16(N * K, 1, 1.0f / std::sqrt(static_cast<float>(kSegment)));
  for (int n = 0; n < N; ++n)
    for (int k = 0; k < 2 * kSegment; ++k)
      weight[static_cast<std::size_t>(n * K + k)] = to_bf16(k == 0 ? 1.0f : k == kSegment ? -1.0f : 0.0f);
  const test::Weight w(N, K, weight, stream);
  std::vector<bf16> x = test::random_bf16(T * K, 2);
  for (int t = 0; t < T; ++t)
    for (const int k : {0, kSegment}) x[static_cast<std::size_t>(t * K + k)] = to_bf16(0x1p20f);
  const auto device_x = to_device(x, stream);
  expect_caught(Mutant::kSegmentOrder, "linear of three segments", [&] {
    auto y = to_device(std::vector<bf16>(T * N), stream);
    linear(w.linear, {.T = T, .x = device_x.data(), .ldx = K, .y = y.data(), .ldy = N}, stream);
    const auto got = to_host(y, stream);
    double worst = 0;
    for (int t = 0; t < T; ++t)
      for (int n = 0; n < N; ++n) {
        double sum = 0, magnitude = 0;
        for (int k = 2 * kSegment; k < K; ++k) {
          const double product = to_float(x[static_cast<std::size_t>(t * K + k)]) * w.at(n, k);
          sum += product, magnitude += std::fabs(product);
        }
        const double allowed = std::fabs(sum) * 0x1p-8 + magnitude * kSegment * 0x1p-24;
        worst = std::max(worst, std::fabs(to_float(got[static_cast<std::size_t>(t * N + n)]) - sum) / allowed);
      }
    return worst;
  });
}

TEST(GpuTraps, scale_of_next_block_shows_in_every_kernel_of_linear) {
  constexpr int N = 130, K = 640;
  const Stream stream;
  for (const auto& [T, block_columns] : std::vector<std::pair<int, int>>{{4, 128}, {200, 128}, {200, 64}}) {  // few, wgmma, many
    const test::Weight w(N, K, true, 5, stream, block_columns);
    const auto x = test::random_bf16(static_cast<std::size_t>(T * K), 6);
    const auto device_x = to_device(x, stream);
    const std::string where = fmt::format("linear of {} rows, scale blocks of {} columns", T, block_columns);
    expect_caught(Mutant::kScaleOfNextBlock, where.c_str(), [&] {
      auto y = to_device(std::vector<bf16>(static_cast<std::size_t>(T * N)), stream);
      linear(w.linear, {.T = T, .x = device_x.data(), .ldx = K, .y = y.data(), .ldy = N}, stream);
      return test::linear_distance(
          w, T, [&](int t) { return x.data() + t * K; }, to_host(y, stream), N);
    });
  }
}

// The window after a step is its last rows, to the bit; counted in units of bf16.
TEST(GpuTraps, window_too_far_shows_in_the_slot) {
  constexpr int kRows = 8, kHistory = 3, kWidth = 24;
  const Stream stream;
  const auto rows = test::random_bf16(kRows * kWidth, 7);
  const auto device_rows = to_device(rows, stream);
  const auto first_row = to_device(std::vector<int>{0, kRows}, stream), slot = to_device(std::vector<int>{0}, stream),
             none = to_device(std::vector<int>(kRows, -1), stream);
  expect_caught(Mutant::kWindowTooFar, "window of a convolution", [&] {
    auto memory = to_device(std::vector<bf16>(kHistory * kWidth), stream);
    StepRows r;
    r.T = kRows, r.B = 1, r.first_row = first_row.data(), r.slot = slot.data(), r.save_slot = none.data();
    r.slots = reinterpret_cast<std::byte*>(memory.data()), r.slot_bytes = memory.bytes(), r.num_slots = 1;
    move_window({.width = kWidth, .history = kHistory, .rows = device_rows.data(), .ld = kWidth, .offset = 0}, r, stream);
    const auto got = to_host(memory, stream);
    double worst = 0;
    for (int i = 0; i < kHistory * kWidth; ++i) {
      const double expected = to_float(rows[static_cast<std::size_t>((kRows - kHistory) * kWidth + i)]);
      worst = std::max(worst, std::fabs(to_float(got[static_cast<std::size_t>(i)]) - expected) / (std::fabs(expected) * 0x1p-8 + 1e-6));
    }
    return worst;
  });
}

TEST(GpuTraps, pool_truncated_shows_in_the_indexers_scores) {
  const GoldenFile golden(::tetrad::test::golden_directory("qsa-indexer.safetensors"));
  constexpr int kCase = 8;  // 515 tokens
  expect_caught(Mutant::kPoolTruncated, "qsa-indexer case 8, share of flipped scores", [&] {
    const test::ScoreErrors errors = test::score_errors(golden, kCase, test::run_indexer(golden, kCase));
    return static_cast<double>(errors.flipped) / (test::kIndexerFlippedShare * static_cast<double>(errors.total));
  });
}

// Exact gates have no tolerance: every wrong row counts as one.
TEST(GpuTraps, tie_higher_index_shows_in_rows_of_equal_scores) {
  constexpr int kRows = 64, kBlocks = 300, kTopk = 16, kRatio = 4;
  const Stream stream;
  QsaShape s{};
  s.R = kRatio, s.topk = kTopk, s.attended = kTopk * kRatio + kRatio, s.max_blocks = kBlocks;
  std::vector<float> scores(kRows * kBlocks);
  for (std::size_t i = 0; i < scores.size(); ++i) scores[i] = static_cast<float>(i * 37 % 5);
  const auto device_scores = to_device(scores, stream);
  const auto position = to_device(std::vector<int>(kRows, kBlocks * kRatio - 1), stream);
  auto faults = to_device(std::vector<int>(kRows, 0), stream);
  expect_caught(Mutant::kTieHigherIndex, "qsa_select of equal scores, rows that differ", [&] {
    auto positions = to_device(std::vector<int>(static_cast<std::size_t>(kRows * s.attended), -7), stream);
    auto counts = to_device(std::vector<int>(kRows, -7), stream);
    StepRows r;
    r.T = kRows, r.B = 1, r.position = position.data(), r.faults = faults.data();
    qsa_select(s, {0, kRows, const_cast<float*>(device_scores.data()), positions.data(), counts.data()}, kBlocks, r, stream);
    const auto got = to_host(positions, stream), got_counts = to_host(counts, stream);
    int wrong = 0;
    for (int t = 0; t < kRows; ++t) {
      std::vector<std::uint64_t> order(kBlocks);
      std::vector<int> chosen(kBlocks);
      const std::span row(scores.data() + t * kBlocks, kBlocks);
      const int count = cpu::select_blocks(row, kTopk, order.data(), chosen.data());
      bool same = got_counts[static_cast<std::size_t>(t)] == count * kRatio;
      for (int i = 0; same && i < count * kRatio; ++i)
        same = got[static_cast<std::size_t>(t * s.attended + i)] == chosen[static_cast<std::size_t>(i / kRatio)] * kRatio + i % kRatio;
      wrong += !same;
    }
    return static_cast<double>(wrong);
  });
}

TEST(GpuTraps, router_tie_higher_shows_in_rows_of_equal_logits) {
  constexpr int kRows = 64, kExperts = 512, kPicks = 10;
  const Stream stream;
  std::vector<bf16> logits(kRows * kExperts);
  for (std::size_t i = 0; i < logits.size(); ++i) logits[i] = to_bf16(static_cast<float>(i * 7919 % 23) * 0.25f);
  const auto device_logits = to_device(logits, stream);
  const MoeShape s{.E = kExperts, .EK = kPicks, .F = 0, .FS = 0, .in_ld = kExperts, .renormalise = true};
  expect_caught(Mutant::kRouterTieHigher, "moe_route of equal logits, rows that differ", [&] {
    auto ids = to_device(std::vector<int>(kRows * kPicks, -7), stream);
    auto weights = to_device(std::vector<float>(kRows * kPicks), stream);
    moe_route(s, device_logits.data(), kRows, 0, ids.data(), weights.data(), nullptr, stream);
    const auto got = to_host(ids, stream);
    int wrong = 0;
    for (int t = 0; t < kRows; ++t) {
      std::vector<float> row(kExperts), probs(kExperts), w(kPicks);
      for (int e = 0; e < kExperts; ++e) row[static_cast<std::size_t>(e)] = to_float(logits[static_cast<std::size_t>(t * kExperts + e)]);
      std::vector<int> expected(kPicks);
      cpu::route(row.data(), kExperts, kPicks, true, probs.data(), expected.data(), w.data());
      wrong += !std::equal(expected.begin(), expected.end(), got.begin() + t * kPicks);
    }
    return static_cast<double>(wrong);
  });
}

// Choices of rows of equal scores that differ from the host's. Every target of a draw is a multiple of the weights there.
double wrong_choices(float inverse_temperature, const Stream& stream) {
  constexpr int kVocab = 1024, kChoices = 32;
  const std::vector<float> row(kVocab, 1.0f);
  const auto device_row = to_device(row, stream);
  TokenChooser chooser(kVocab, kChoices, sample_plan(kVocab, stream));
  std::vector<TokenChoice> choices(kChoices);
  for (int i = 0; i < kChoices; ++i)
    choices[static_cast<std::size_t>(i)] = {.inverse_temperature = inverse_temperature, .random = static_cast<std::uint64_t>(i + 1) << 58};
  std::vector<ChosenToken> chosen(kChoices);
  chooser.choose(device_row.data(), 1, {.limit = kVocab, .choices = choices}, chosen, stream);
  RowChooser host;
  int wrong = 0;
  for (std::size_t i = 0; i < kChoices; ++i) wrong += chosen[i].id != host.choose(row, kVocab, {}, choices[i]).id;
  return wrong;
}

TEST(GpuTraps, sample_tie_higher_shows_in_a_row_of_equal_logits) {
  const Stream stream;
  expect_caught(Mutant::kSampleTieHigher, "sample of equal logits, greedy, choices that differ",
                [&] { return wrong_choices(0.0f, stream); });
}

TEST(GpuTraps, sample_draw_at_least_shows_where_the_sum_meets_the_target) {
  const Stream stream;
  expect_caught(Mutant::kSampleDrawAtLeast, "sample of equal logits, choices that differ", [&] { return wrong_choices(1.0f, stream); });
}

}  // namespace
}  // namespace tetrad::cuda
