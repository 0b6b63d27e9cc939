#include "engine/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>

#include "base/bf16.h"
#include "engine/golden_file.h"
#include "engine/tap_store.h"

namespace tetrad {
namespace {

constexpr double kSpreadMultiple = 2.0;      // how far beyond the reference's own spread a result may lie
constexpr double kForcedStageL2 = 0.02;      // stages with the reference's streams in front: measured 0.0071 at worst (docs/numerics.md)
constexpr int kRouterSteps = 2;              // bf16 steps between two router logits within which the reference's pick is a coin toss
constexpr const char* kRun = "bf16_cpu";
constexpr const char* kOtherRuns[] = {"bf16_gpu", "f32_cpu"};

// The measures a set of logits is judged by.
struct LogitMeasures {
  double regret = 0, mean = 0, p99 = 0;
  void widen(const LogitMeasures& other) {
    regret = std::max(regret, other.regret), mean = std::max(mean, other.mean), p99 = std::max(p99, other.p99);
  }
};

LogitMeasures measure_logits(std::span<const float> got, std::span<const float> expected, std::int64_t row) {
  const Distance d = distance(got, expected, row);
  return {pick_regret(got, expected, row), d.mean_abs, d.p99_abs};
}

double ratio(double error, double tolerance) { return error == 0 ? 0 : tolerance == 0 ? std::numeric_limits<double>::infinity() : error / tolerance; }

// Distance in bf16 steps of two values of one sign, or through zero.
int bf16_steps(float a, float b) {
  const auto ordinal = [](float x) {
    const int bits = to_bf16(x).bits;
    return (bits & 0x8000) != 0 ? -(bits & 0x7fff) : bits;
  };
  return std::abs(ordinal(a) - ordinal(b));
}

class Replay {
 public:
  Replay(StatePool& pool, const std::filesystem::path& file) : pool_(pool), stepper_(pool), golden_(file), vocab_(pool.backend().config().vocab_size) {}

  VerifyReport run() {
    for (int i = 0; golden_.has(name(i, "tokens")); ++i) {
      check_prefill_and_decode(i);
      if (golden_.has(name(i, "final.mixed." + std::string(kRun)))) check_stages(i);
    }
    if (report_.rows.empty()) fail<LoadError>("{}: holds no case (case0.tokens is missing)", golden_.file().file().path().string());
    return std::move(report_);
  }

 private:
  static std::string name(int i, const std::string& rest) { return fmt::format("case{}.{}", i, rest); }

  std::vector<int> ids(int i, const char* what) const {
    const auto values = golden_.integers(name(i, what));
    return {values.begin(), values.end()};
  }

  void check_prefill_and_decode(int i) {
    SequenceState state(pool_);
    const std::vector<int> tokens = ids(i, "tokens");
    std::vector<float> logits;
    const auto chunk = static_cast<std::size_t>(pool_.backend().max_rows());
    for (std::size_t first = 0; first < tokens.size(); first += chunk) {
      const StepRequest request{&state, std::span(tokens).subspan(first, std::min(chunk, tokens.size() - first)), LogitsWanted::kAll};
      const auto piece = stepper_.run({&request, 1}).front().logits;
      logits.insert(logits.end(), piece.begin(), piece.end());
    }
    const auto rows = static_cast<std::size_t>(golden_.shape(name(i, std::string("logits.") + kRun))[0]);
    logits.erase(logits.begin(), logits.end() - static_cast<std::ptrdiff_t>(rows * static_cast<std::size_t>(vocab_)));
    judge_logits(i, "logits", logits);

    std::vector<float> decoded;
    for (const int id : ids(i, "decode_ids")) {
      const StepRequest request{&state, {&id, 1}, LogitsWanted::kLast};
      const auto row = stepper_.run({&request, 1}).front().logits;
      decoded.insert(decoded.end(), row.begin(), row.end());
    }
    judge_logits(i, "decode_logits", decoded);
  }

  void judge_logits(int i, const std::string& stage, std::span<const float> got) {
    const std::vector<float> expected = golden_.floats(name(i, stage + "." + kRun));
    LogitMeasures spread;
    for (const char* other : kOtherRuns)
      spread.widen(measure_logits(golden_.floats(name(i, stage + "." + other)), expected, vocab_));
    const LogitMeasures error = measure_logits(got, expected, vocab_);
    VerifyRow row;
    row.golden_case = i;
    row.stage = stage;
    row.error = distance(got, expected, vocab_);
    row.regret = error.regret;
    row.row_size = vocab_;
    row.reference_spread = spread.mean;
    row.tolerance = 1.0;
    row.error_measure = std::max({ratio(error.regret, kSpreadMultiple * spread.regret), ratio(error.mean, kSpreadMultiple * spread.mean),
                                  ratio(error.p99, kSpreadMultiple * spread.p99)});
    // A pick that the reference's own runs all agree on has no spread to allow for: it may only differ within the judged mean.
    if (spread.regret == 0 && error.regret <= kSpreadMultiple * spread.mean)
      row.error_measure = std::max(ratio(error.mean, kSpreadMultiple * spread.mean), ratio(error.p99, kSpreadMultiple * spread.p99));
    row.pass = row.error_measure <= row.tolerance;
    const bool runs_agree = distance(golden_.floats(name(i, stage + ".bf16_gpu")), expected, vocab_).unequal == 0;
    if (row.error.unequal == 0) row.note = "bits equal";
    else if (runs_agree) row.note = "reference CPU = GPU here";
    report_.rows.push_back(std::move(row));
  }

  // Every recorded stage of the case, as (full stage name, layer or -1, stage within the layer).
  struct StageName {
    std::string full;
    int layer;
    std::string local;
  };
  std::vector<StageName> stage_names(int i) const {
    std::vector<StageName> names;
    const std::string prefix = name(i, ""), suffix = std::string(".") + kRun;
    for (const TensorInfo& info : golden_.file().tensors()) {
      if (!info.name.starts_with(prefix) || !info.name.ends_with(suffix)) continue;
      const std::string stage = info.name.substr(prefix.size(), info.name.size() - prefix.size() - suffix.size());
      if (stage == "final.mixed") names.push_back({stage, -1, stage});
      if (stage.starts_with("layer")) names.push_back({stage, std::atoi(stage.c_str() + 5), stage.substr(stage.find('.') + 1)});
    }
    return names;
  }

  void check_stages(int i) {
    const std::vector<StageName> stages = stage_names(i);
    const TapStore free_run = run_taps(i, {});
    std::map<TapStore::Key, std::vector<float>> forced;
    for (const StageName& stage : stages)
      if (stage.local != "moe.experts" && stage.local != "qsa.selected")
        forced[{stage.layer, stage.local}] = golden_.floats(name(i, stage.full + "." + kRun));
    const TapStore forced_run = run_taps(i, std::move(forced));
    for (const StageName& stage : stages) {
      judge_stage(i, stage.full, stage.layer, stage.local, free_run, false);
      judge_stage(i, stage.full, stage.layer, stage.local, forced_run, true);
    }
  }

  TapStore run_taps(int i, std::map<TapStore::Key, std::vector<float>> forced) {
    SequenceState state(pool_);
    const std::vector<int> tokens = ids(i, "tokens");
    TETRAD_CHECK(static_cast<int>(tokens.size()) <= pool_.backend().max_rows(), "the stages of {} tokens need as many rows in a step", tokens.size());
    TapStore taps;
    taps.forced = std::move(forced);
    const StepRequest request{&state, tokens, LogitsWanted::kNone};
    stepper_.run({&request, 1}, &taps);
    return taps;
  }

  void judge_stage(int i, const std::string& stage, int layer, const std::string& local, const TapStore& taps, bool forced) {
    VerifyRow row;
    row.golden_case = i;
    row.stage = stage + (forced ? " (forced)" : "");
    if (local == "moe.experts") judge_experts(i, stage, layer, taps, row);
    else if (local == "qsa.selected") judge_selected(i, stage, layer, taps, row);
    else judge_values(i, stage, layer, local, taps, forced, row);
    report_.rows.push_back(std::move(row));
  }

  void judge_values(int i, const std::string& stage, int layer, const std::string& local, const TapStore& taps, bool forced, VerifyRow& row) {
    const auto tap = taps.tensors.find({layer, local});
    if (tap == taps.tensors.end()) {
      row.note = "stage not recorded";
      return;
    }
    const std::vector<float> expected = golden_.floats(name(i, stage + "." + kRun));
    row.row_size = tap->second.shape.back();
    row.error = distance(tap->second.values, expected, row.row_size);
    row.error_measure = row.error.worst_row_l2;
    row.reference_spread = stage_spread(i, layer);
    row.tolerance = forced ? kForcedStageL2 : kSpreadMultiple * row.reference_spread;
    if (local == "ple.embedding") row.tolerance = 0;  // a row of the table, or the wrong one
    row.pass = row.error_measure <= row.tolerance;
    if (row.error.unequal == 0) row.note = "bits equal";
  }

  // The largest relative spread of the reference over the stages of a layer that all its runs recorded; sub-stages are judged by it too.
  double stage_spread(int i, int layer) const {
    double spread = 0;
    const std::string prefix = name(i, layer < 0 ? "final." : fmt::format("layer{}.", layer)), suffix = ".bf16_gpu";
    for (const TensorInfo& info : golden_.file().tensors()) {
      if (!info.name.starts_with(prefix) || !info.name.ends_with(suffix) || info.dtype == DType::kI32) continue;
      const std::string base = info.name.substr(0, info.name.size() - suffix.size());
      const std::vector<float> expected = golden_.floats(base + "." + kRun);
      for (const char* other : kOtherRuns)
        spread = std::max(spread, distance(golden_.floats(base + "." + other), expected, info.shape.back()).worst_row_l2);
    }
    return spread;
  }

  // Routed experts as sets; a difference is excused only where the reference's own logits leave the choice open.
  void judge_experts(int i, const std::string& stage, int layer, const TapStore& taps, VerifyRow& row) {
    const auto expected = golden_.integers(name(i, stage + "." + kRun));
    const auto& got = taps.ids.at({layer, "moe.experts"});
    const auto EK = static_cast<std::size_t>(pool_.backend().config().experts_per_token), E = static_cast<std::size_t>(pool_.backend().config().num_experts);
    const auto logits = golden_.floats(name(i, fmt::format("layer{}.moe.router_logits.{}", layer, kRun)));
    int different = 0, excused = 0;
    for (std::size_t t = 0; t * EK < expected.size(); ++t) {
      std::vector<std::int64_t> a(got.begin() + static_cast<std::ptrdiff_t>(t * EK), got.begin() + static_cast<std::ptrdiff_t>((t + 1) * EK));
      std::vector<std::int64_t> b(expected.begin() + static_cast<std::ptrdiff_t>(t * EK), expected.begin() + static_cast<std::ptrdiff_t>((t + 1) * EK));
      std::sort(a.begin(), a.end()), std::sort(b.begin(), b.end());
      if (a == b) continue;
      ++different;
      std::vector<std::int64_t> mine, theirs;
      std::set_difference(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(mine));
      std::set_difference(b.begin(), b.end(), a.begin(), a.end(), std::back_inserter(theirs));
      excused += std::all_of(mine.begin(), mine.end(), [&](std::int64_t m) {
        return std::all_of(theirs.begin(), theirs.end(), [&](std::int64_t o) {
          return bf16_steps(logits[t * E + static_cast<std::size_t>(m)], logits[t * E + static_cast<std::size_t>(o)]) <= kRouterSteps;
        });
      });
    }
    row.error_measure = different - excused;
    row.pass = different == excused;
    row.note = different == 0 ? "ids equal" : fmt::format("{} rows differ, {} within {} bf16 steps", different, excused, kRouterSteps);
  }

  void judge_selected(int i, const std::string& stage, int layer, const TapStore& taps, VerifyRow& row) {
    const auto expected = golden_.integers(name(i, stage + "." + kRun));
    const auto T = static_cast<std::size_t>(golden_.shape(name(i, stage + "." + kRun)).back());
    int different = 0;
    for (const auto& [t, positions] : taps.selected.at(layer)) {
      std::vector<std::int64_t> mask(T, 0);
      for (const int p : positions) mask[static_cast<std::size_t>(p)] = 1;
      different += !std::equal(mask.begin(), mask.end(), expected.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(t) * T));
    }
    row.error_measure = different;
    row.pass = different == 0;
    row.note = different == 0 ? "sets equal" : fmt::format("{} rows differ", different);
  }

  StatePool& pool_;
  Stepper stepper_;
  GoldenFile golden_;
  int vocab_;
  VerifyReport report_;
};

}  // namespace

bool VerifyReport::passed() const {
  return !rows.empty() && std::all_of(rows.begin(), rows.end(), [](const VerifyRow& row) { return row.pass; });
}

std::string VerifyReport::table() const {
  std::string text = fmt::format("{:>4} {:<34} {:>10} {:>14} {:>10} {:>10} {:>10} {:>10}  {}\n", "case", "stage", "max abs", "at", "measure", "tolerance",
                                 "ref spread", "unequal", "");
  for (const VerifyRow& row : rows)
    text += fmt::format("{:>4} {:<34} {:>10.3g} {:>14} {:>10.3g} {:>10.3g} {:>10.3g} {:>10}  {} {}\n", row.golden_case, row.stage, row.error.max_abs,
                        coordinate_text(row.error.worst, row.row_size), row.error_measure, row.tolerance, row.reference_spread, row.error.unequal,
                        row.pass ? "pass" : "FAIL", row.note);
  return text;
}

VerifyReport verify_goldens(StatePool& pool, const std::filesystem::path& golden_file) { return Replay(pool, golden_file).run(); }

}  // namespace tetrad
