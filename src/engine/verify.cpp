#include "engine/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <limits>
#include <map>
#include <set>

#include "base/bf16.h"
#include "engine/golden_file.h"
#include "engine/golden_json.h"
#include "engine/open_picks.h"
#include "engine/tap_store.h"

namespace tetrad {
namespace {

constexpr double kSpreadMultiple = 2.0;  // how far beyond the reference's own spread a result may lie
// A stage computed from the reference's own inputs differs by single flipped roundings only (docs/numerics.md). Measured over both random
// checkpoints, and doubled here: relative L2 of a row and share of unequal elements.
constexpr double kForcedStageL2 = 0.0013;       // measured 0.00065
constexpr double kForcedStageUnequal = 0.0016;  // measured 0.00078
// Where only a sub-block's output was recorded, the flips of its inner stages add up.
constexpr double kForcedBlockL2 = 0.0082;      // measured 0.0041
constexpr double kForcedBlockUnequal = 0.032;  // measured 0.016
// On a GPU the reference itself moves; golden.json records by how much (scripts/add_gpu_spread.py). More than this is no rounding.
constexpr double kLargestForcedL2 = 0.05, kLargestForcedUnequal = 0.2;
constexpr double kTiedScore = 2e-6;  // block scores closer than this, relative plus absolute, are a tie: accuracy of the scores
constexpr int kRouterSteps = 2;      // bf16 steps between two router logits within which the reference's pick is a coin toss
// The reference's runs differ by roundings and the picks these flip. Recorded runs further apart than this are of different models, and
// would excuse anything: |a - b| / |b| over a whole tensor. Measured 0.23 at most over all goldens; unrelated tensors lie 1.4 apart.
constexpr double kLargestSpread = 0.5;
constexpr const char* kRun = "bf16_cpu";
constexpr const char* kOtherRuns[] = {"bf16_gpu", "f32_cpu"};

struct ForcedSpread {
  double l2 = 0, unequal = 0;  // relative L2 of the worst row; share of unequal elements
};

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

double ratio(double error, double tolerance) {
  return error == 0 ? 0 : tolerance == 0 ? std::numeric_limits<double>::infinity() : error / tolerance;
}

// Distance in bf16 steps of two values of one sign, or through zero.
int bf16_steps(float a, float b) {
  const auto ordinal = [](float x) {
    const int bits = to_bf16(x).bits;
    return (bits & 0x8000) != 0 ? -(bits & 0x7fff) : bits;
  };
  return std::abs(ordinal(a) - ordinal(b));
}

// With FP8 experts the engine multiplies by float(code) * scale as it is, the reference's bf16 run by that product rounded to bf16: half a
// bf16 step per weight, 2^-9 relative at most, which no flipped rounding bounds; through three products and two activations it reaches
// 0.0108.
constexpr double kFp8ExpertL2 = 0.022;

class Replay {
 public:
  Replay(StatePool& pool, const std::filesystem::path& file)
      : pool_(pool), stepper_(pool), golden_(file), vocab_(pool.backend().config().vocab_size) {}

  VerifyReport run() {
    const int described = check_description();
    int count = 0;
    for (; golden_.has(name(count, "tokens")); ++count) {
      check_prefill_and_decode(count);
      if (!stage_names(count).empty()) check_stages(count);
    }
    if (report_.rows.empty()) fail<LoadError>("{}: holds no case (case0.tokens is missing)", path());
    // A case lost from the middle would take those after it along.
    for (const TensorInfo& info : golden_.file().tensors()) {
      bool known = false;
      for (int i = 0; i < count && !known; ++i) known = info.name.starts_with(name(i, ""));
      if (!known) fail<LoadError>("{}: tensor {} belongs to no case from 0 to {}; the file is damaged", path(), info.name, count - 1);
    }
    if (count != described) fail<LoadError>("{}: holds {} cases, golden.json beside it describes {}", path(), count, described);
    return std::move(report_);
  }

 private:
  static std::string name(int i, const std::string& rest) { return fmt::format("case{}.{}", i, rest); }
  std::string path() const { return golden_.file().file().path().string(); }

  std::vector<int> ids(int i, const char* what) const {
    const auto values = golden_.integers(name(i, what));
    const auto unknown = std::find_if(values.begin(), values.end(), [&](std::int64_t id) { return id < 0 || id >= vocab_; });
    if (unknown != values.end())
      fail<LoadError>("{}: {}: id {} is outside the vocabulary [0, {})", path(), name(i, what), *unknown, vocab_);
    if (values.empty()) fail<LoadError>("{}: {}: holds no id", path(), name(i, what));
    return {values.begin(), values.end()};
  }

  // What was recorded stands in golden.json beside the tensors: a case or its stages that were lost would not be missed otherwise. Returns
  // the number of cases.
  int check_description() {
    const std::filesystem::path file = std::filesystem::path(path()).replace_filename("golden.json");
    const nlohmann::ordered_json json = read_golden_json(file);
    const GoldenValue golden(json, file.string());
    read_gpu_spread(golden);
    const std::vector<GoldenValue> cases = golden.field("cases").entries();
    std::vector<std::size_t> lengths;
    for (int i = 0; i < static_cast<int>(cases.size()); ++i) {
      const GoldenValue& described = cases[static_cast<std::size_t>(i)];
      if (!golden_.has(name(i, "tokens")))
        fail<LoadError>("{}: {} is missing, {} describes it; the file is damaged", path(), name(i, "tokens"), described.where());
      const std::size_t tokens = ids(i, "tokens").size();
      lengths.push_back(tokens);
      if (described.field("tokens").json() != tokens)
        described.field("tokens").refuse(fmt::format("{} has {} tokens here", name(i, "tokens"), tokens));
      if (described.field("taps").json() != !stage_names(i).empty())
        described.field("taps").refuse(fmt::format("case {} holds {} stages", i, stage_names(i).size()));
    }
    open_picks_ = read_open_picks(golden, pool_.backend().config(), lengths);
    return static_cast<int>(cases.size());
  }

  // How far the reference moves on a GPU, where that was recorded: its stages from the same inputs ("case5.layer1.gdn.core"), and its
  // logits over the ways to compute them ("case5.logits").
  void read_gpu_spread(const GoldenValue& golden) {
    if (!golden.json().is_object() || !golden.json().contains("gpu_spread")) return;
    const GoldenValue stages = golden.field("gpu_spread").field("stages"), logits = golden.field("gpu_spread").field("logits");
    for (const GoldenValue* part : {&stages, &logits})
      if (!part->json().is_object()) part->refuse("expected an object");
    const auto share = [](const GoldenValue& value, double largest) {
      if (!value.json().is_number()) value.refuse("expected a number");
      const double x = value.json().get<double>();
      if (!(x >= 0 && x <= largest)) value.refuse(fmt::format("{} is outside 0 to {}, more than roundings explain", x, largest));
      return x;
    };
    for (const auto& [stage, spread] : stages.json().items()) {
      const GoldenValue value = stages.field(stage);
      // Which rounding falls to the other side is chance: a stage has the largest spread that it showed in any layer and case.
      const std::string full = stage.substr(stage.find('.') + 1);  // behind the case
      ForcedSpread& pooled = forced_spread_[full.starts_with("layer") ? full.substr(full.find('.') + 1) : full];
      pooled.l2 = std::max(pooled.l2, share(value.field("l2"), kLargestForcedL2));
      pooled.unequal = std::max(pooled.unequal, share(value.field("unequal"), kLargestForcedUnequal));
    }
    for (const auto& [stage, spread] : logits.json().items()) {
      if (!golden_.has(stage + "." + kRun)) continue;  // what is missing is named where it is wanted
      const GoldenValue value = logits.field(stage);
      const std::vector<float> expected = golden_.floats(stage + "." + kRun);
      double size = 0;
      for (const float logit : expected) size = std::max(size, std::fabs(static_cast<double>(logit)));
      const double largest = kLargestSpread * size;
      gpu_logit_spread_[stage] = {share(value.field("regret"), largest), share(value.field("mean"), largest),
                                  share(value.field("p99"), largest)};
    }
  }

  // The distance between two runs of the reference, refused where no rounding explains it.
  Distance spread_of_runs(const std::string& tensor, const char* other, std::span<const float> expected, std::int64_t row) const {
    const Distance d = distance(golden_.floats(tensor + "." + other, expected.size()), expected, row);
    if (!(d.l2 <= kLargestSpread))
      fail<LoadError>("{}: {}: the reference's runs {} and {} lie {:.2g} of its size apart, at most {} are roundings: the file is damaged",
                      path(), tensor, other, kRun, d.l2, kLargestSpread);
    return d;
  }

  void check_prefill_and_decode(int i) {
    SequenceState state(pool_);
    const std::vector<int> tokens = ids(i, "tokens");
    std::vector<float> logits;
    OpenPicks& open = open_picks_[i];
    const auto chunk = static_cast<std::size_t>(pool_.backend().max_rows());
    for (std::size_t first = 0; first < tokens.size(); first += chunk) {
      const StepRequest request{&state, std::span(tokens).subspan(first, std::min(chunk, tokens.size() - first)), LogitsWanted::kAll};
      open.begin_step(static_cast<int>(first));
      const auto piece = stepper_.run({&request, 1}, open.empty() ? nullptr : &open).front().logits;
      logits.insert(logits.end(), piece.begin(), piece.end());
    }
    // Of a long prompt the last rows were recorded.
    const std::string recorded = name(i, std::string("logits.") + kRun);
    const auto width = static_cast<std::size_t>(vocab_);
    const std::size_t rows = golden_.floats(recorded).size() / width;
    if (rows == 0 || rows > tokens.size())
      fail<LoadError>("{}: {}: {} rows of {} logits for {} tokens", path(), recorded, rows, vocab_, tokens.size());
    logits.erase(logits.begin(), logits.end() - static_cast<std::ptrdiff_t>(rows * width));
    judge_logits(i, "logits", logits);
    judge_open_picks(open, report_.rows.back());

    std::vector<float> decoded;
    for (const int id : ids(i, "decode_ids")) {
      const StepRequest request{&state, {&id, 1}, LogitsWanted::kLast};
      const auto row = stepper_.run({&request, 1}).front().logits;
      decoded.insert(decoded.end(), row.begin(), row.end());
    }
    judge_logits(i, "decode_logits", decoded);
  }

  void judge_logits(int i, const std::string& stage, std::span<const float> got) {
    const std::vector<float> expected = golden_.floats(name(i, stage + "." + kRun), got.size());
    LogitMeasures spread;
    for (const char* other : kOtherRuns) {
      if (!golden_.has(name(i, stage + "." + other))) continue;
      spread_of_runs(name(i, stage), other, expected, vocab_);
      spread.widen(measure_logits(golden_.floats(name(i, stage + "." + other), expected.size()), expected, vocab_));
    }
    const auto on_gpu = gpu_logit_spread_.find(name(i, stage));
    if (on_gpu != gpu_logit_spread_.end() && pool_.backend().name().starts_with("cuda")) spread.widen(on_gpu->second);
    const LogitMeasures error = measure_logits(got, expected, vocab_);
    VerifyRow row;
    row.golden_case = i;
    row.stage = stage;
    row.error = distance(got, expected, vocab_);
    row.regret = error.regret;
    row.row_size = vocab_;
    row.reference_spread = spread.mean;
    row.tolerance = 1.0;
    // Where the reference's own runs agree on every pick, a pick may still cost no more than their logits differ on average.
    const double regret_allowed = kSpreadMultiple * std::max(spread.regret, spread.mean);
    row.error_measure = std::max({ratio(error.regret, regret_allowed), ratio(error.mean, kSpreadMultiple * spread.mean),
                                  ratio(error.p99, kSpreadMultiple * spread.p99)});
    row.pass = row.error_measure <= row.tolerance;
    const std::string gpu = name(i, stage + ".bf16_gpu");
    const bool runs_agree = golden_.has(gpu) && distance(golden_.floats(gpu), expected, vocab_).unequal == 0;
    if (row.error.unequal == 0)
      row.note = "bits equal";
    else if (runs_agree)
      row.note = "reference CPU = GPU here";
    report_.rows.push_back(std::move(row));
  }

  // Rows where the reference leaves its choice of blocks open went on with its own: the logits are those of a like choice.
  static void judge_open_picks(const OpenPicks& open, VerifyRow& row) {
    if (open.differing() == 0) return;
    row.pass = row.pass && open.wrong() == 0;
    if (!row.note.empty()) row.note += ", ";
    row.note += open.wrong() > 0 ? fmt::format("{} rows chose other blocks for no reason", open.wrong())
                                 : fmt::format("{} of {} open choices fell the other way", open.differing(), open.size());
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
    TapStore free_run, forced_run;
    run_taps(i, free_run);
    for (const StageName& stage : stages) {
      const auto tap = free_run.tensors.find({stage.layer, stage.local});
      if (stage.local == "qsa.selected")
        forced_run.forced_selections[stage.layer] = reference_selections(i, stage.full);
      else if (tap != free_run.tensors.end())
        forced_run.forced[{stage.layer, stage.local}] = golden_.floats(name(i, stage.full + "." + kRun), tap->second.values.size());
    }
    run_taps(i, forced_run);
    for (const StageName& stage : stages) {
      if (stage.local == "moe.experts")
        judge_experts(i, stage, forced_run);
      else if (stage.local == "qsa.selected")
        judge_selected(i, stage, forced_run);
      else
        judge_free(i, stage, free_run), judge_forced(i, stage, forced_run);
    }
  }

  void run_taps(int i, TapStore& taps) {
    SequenceState state(pool_);
    const std::vector<int> tokens = ids(i, "tokens");
    TETRAD_CHECK(static_cast<int>(tokens.size()) <= pool_.backend().max_rows(), "the stages of {} tokens need as many rows in a step",
                 tokens.size());
    const StepRequest request{&state, tokens, LogitsWanted::kNone};
    stepper_.run({&request, 1}, &taps);
  }

  // Measures a recorded stage; rows in `open` (where the reference leaves a choice that the stage depends on) are left out.
  bool measure_stage(int i, const StageName& stage, const TapStore& taps, const std::set<int>& open, VerifyRow& row) const {
    row.golden_case = i;
    const auto tap = taps.tensors.find({stage.layer, stage.local});
    if (tap == taps.tensors.end()) {
      row.note = "stage not recorded";
      return false;
    }
    std::vector<float> got = tap->second.values;
    const std::vector<float> expected = golden_.floats(name(i, stage.full + "." + kRun), got.size());
    row.row_size = tap->second.shape.back();
    const std::size_t per_token = got.size() / ids(i, "tokens").size();
    for (const int t : open)
      std::copy_n(expected.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(t) * per_token), per_token,
                  got.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(t) * per_token));
    row.error = distance(got, expected, row.row_size);
    row.reference_spread = stage_spread(i, stage.layer);
    if (row.error.unequal == 0) row.note = "bits equal";
    if (!open.empty()) row.note += fmt::format(" ({} rows open)", open.size());
    return true;
  }

  void judge_free(int i, const StageName& stage, const TapStore& taps) {
    VerifyRow row;
    row.stage = stage.full;
    if (measure_stage(i, stage, taps, {}, row)) {
      row.error_measure = row.error.worst_row_l2;
      row.tolerance = stage.local == "ple.embedding" ? 0 : kSpreadMultiple * row.reference_spread;  // a row of the table, or the wrong one
      row.pass = row.error_measure <= row.tolerance;
    }
    report_.rows.push_back(std::move(row));
  }

  void judge_forced(int i, const StageName& stage, const TapStore& taps) {
    VerifyRow row;
    row.stage = stage.full + " (forced)";
    std::set<int> open;
    if (stage.local == "attn.out" && !golden_.has(name(i, fmt::format("layer{}.qsa.selected.{}", stage.layer, kRun))))
      open = tied_rows(taps, stage.layer);
    if (stage.local == "moe.out" || stage.local == "moe.routed_out" || stage.local == "moe.weights")
      open = compare_experts(i, stage.layer, taps).excused;
    if (measure_stage(i, stage, taps, open, row)) {
      const double share = static_cast<double>(row.error.unequal) / static_cast<double>(row.error.count);
      const bool alone = golden_.has(name(i, fmt::format("layer{}.attn.mixed.{}", stage.layer, kRun)));
      const bool fp8 = pool_.backend().config().quantization && (stage.local == "moe.out" || stage.local == "moe.routed_out");
      ForcedSpread allowed{alone ? kForcedStageL2 : kForcedBlockL2, alone ? kForcedStageUnequal : kForcedBlockUnequal};
      const auto recorded = forced_spread_.find(stage.local);
      if (recorded != forced_spread_.end() && pool_.backend().name().starts_with("cuda")) {
        allowed.l2 = std::max(allowed.l2, kSpreadMultiple * recorded->second.l2);
        allowed.unequal = std::max(allowed.unequal, kSpreadMultiple * recorded->second.unequal);
      }
      row.error_measure = fp8 ? ratio(row.error.worst_row_l2, kFp8ExpertL2)
                              : std::max(ratio(row.error.worst_row_l2, allowed.l2), ratio(share, allowed.unequal));
      row.tolerance = stage.local == "ple.embedding" ? 0 : 1;
      row.pass = row.error_measure <= row.tolerance;
    }
    report_.rows.push_back(std::move(row));
  }

  // The largest relative spread of the reference over the stages of a layer that all its runs recorded; sub-stages are judged by it too.
  double stage_spread(int i, int layer) const {
    double spread = 0;
    const std::string prefix = name(i, layer < 0 ? "final." : fmt::format("layer{}.", layer)), suffix = ".f32_cpu";
    for (const TensorInfo& info : golden_.file().tensors()) {
      if (!info.name.starts_with(prefix) || !info.name.ends_with(suffix) || info.dtype == DType::kI32) continue;
      const std::string base = info.name.substr(0, info.name.size() - suffix.size());
      const std::vector<float> expected = golden_.floats(base + "." + kRun);
      for (const char* other : kOtherRuns)
        if (golden_.has(base + "." + other))
          spread = std::max(spread, spread_of_runs(base, other, expected, info.shape.back()).worst_row_l2);
    }
    return spread;
  }

  struct ExpertComparison {
    std::set<int> excused;  // rows whose picks differ where the reference's own logits leave the choice open
    int wrong = 0;          // rows that differ otherwise
  };

  ExpertComparison compare_experts(int i, int layer, const TapStore& taps) const {
    ExpertComparison result;
    const std::string experts = name(i, fmt::format("layer{}.moe.experts.{}", layer, kRun));
    if (!golden_.has(experts)) return result;
    const auto tap = taps.ids.find({layer, "moe.experts"});
    if (tap == taps.ids.end()) fail<LoadError>("{}: {}: the model has no such stage", path(), experts);
    const std::vector<std::int64_t>& got = tap->second;
    const auto expected = golden_.integers(experts, got.size());
    const Config& c = pool_.backend().config();
    const auto EK = static_cast<std::size_t>(c.experts_per_token), E = static_cast<std::size_t>(c.num_experts);
    const auto logits = golden_.floats(name(i, fmt::format("layer{}.moe.router_logits.{}", layer, kRun)), expected.size() / EK * E);
    for (std::size_t t = 0; t * EK < expected.size(); ++t) {
      const std::set<std::int64_t> a(got.begin() + static_cast<std::ptrdiff_t>(t * EK),
                                     got.begin() + static_cast<std::ptrdiff_t>((t + 1) * EK));
      const std::set<std::int64_t> b(expected.begin() + static_cast<std::ptrdiff_t>(t * EK),
                                     expected.begin() + static_cast<std::ptrdiff_t>((t + 1) * EK));
      if (a == b) continue;
      bool open = true;
      for (const std::int64_t mine : a)
        for (const std::int64_t theirs : b)
          if (!b.contains(mine) && !a.contains(theirs))
            open &= bf16_steps(logits[t * E + static_cast<std::size_t>(mine)], logits[t * E + static_cast<std::size_t>(theirs)]) <=
                    kRouterSteps;
      if (open)
        result.excused.insert(static_cast<int>(t));
      else
        ++result.wrong;
    }
    return result;
  }

  void judge_experts(int i, const StageName& stage, const TapStore& taps) {
    const ExpertComparison comparison = compare_experts(i, stage.layer, taps);
    VerifyRow row;
    row.golden_case = i;
    row.stage = stage.full + " (forced)";
    row.error_measure = comparison.wrong;
    row.pass = comparison.wrong == 0;
    row.note = comparison.wrong > 0 ? fmt::format("{} rows differ", comparison.wrong)
               : comparison.excused.empty()
                   ? "ids equal"
                   : fmt::format("ids equal but {} rows within {} bf16 steps", comparison.excused.size(), kRouterSteps);
    report_.rows.push_back(std::move(row));
  }

  std::map<int, std::vector<int>> reference_selections(int i, const std::string& stage) const {
    const auto T = static_cast<int>(ids(i, "tokens").size());
    const auto mask = golden_.integers(name(i, stage + "." + kRun), static_cast<std::size_t>(T) * static_cast<std::size_t>(T));
    std::map<int, std::vector<int>> rows;
    for (int t = 0; t < T; ++t)
      for (int p = 0; p < T; ++p)
        if (mask[static_cast<std::size_t>(t) * static_cast<std::size_t>(T) + static_cast<std::size_t>(p)] != 0) rows[t].push_back(p);
    return rows;
  }

  static bool tied(float a, float b) { return std::fabs(a - b) <= kTiedScore * (1.0 + std::fabs(a)); }

  // Rows where the last block chosen and the first not chosen tie.
  std::set<int> tied_rows(const TapStore& taps, int layer) const {
    std::set<int> rows;
    const auto of_layer = taps.selected.find(layer);
    if (of_layer == taps.selected.end()) return rows;
    const auto topk = static_cast<std::size_t>(pool_.backend().config().block_topk());
    for (const auto& [t, selection] : of_layer->second) {
      std::vector<float> scores = selection.block_scores;
      if (scores.size() <= topk) continue;
      std::sort(scores.begin(), scores.end(), std::greater<>());
      if (tied(scores[topk - 1], scores[topk])) rows.insert(t);
    }
    return rows;
  }

  void judge_selected(int i, const StageName& stage, const TapStore& taps) {
    const auto reference = reference_selections(i, stage.full);
    const int R = pool_.backend().config().compress_ratio;
    int wrong = 0, ties = 0;
    const auto of_layer = taps.selected.find(stage.layer);
    if (of_layer == taps.selected.end()) fail<LoadError>("{}: {}: the model has no such stage", path(), stage.full);
    for (const auto& [t, selection] : of_layer->second) {
      const auto chosen = reference.find(t);
      const std::set<int> mine(selection.positions.begin(), selection.positions.end());
      const std::set<int> theirs =
          chosen == reference.end() ? std::set<int>() : std::set<int>(chosen->second.begin(), chosen->second.end());
      if (mine == theirs) continue;
      bool open = mine.size() == theirs.size();
      for (const int a : mine)
        for (const int b : theirs)
          if (!theirs.contains(a) && !mine.contains(b)) {
            const auto block_a = static_cast<std::size_t>(a / R), block_b = static_cast<std::size_t>(b / R);
            open &= block_a < selection.block_scores.size() && block_b < selection.block_scores.size() &&
                    tied(selection.block_scores[block_a], selection.block_scores[block_b]);
          }
      (open ? ties : wrong) += 1;
    }
    VerifyRow row;
    row.golden_case = i;
    row.stage = stage.full + " (forced)";
    row.error_measure = wrong;
    row.pass = wrong == 0;
    row.note = wrong > 0   ? fmt::format("{} rows differ", wrong)
               : ties == 0 ? "sets equal"
                           : fmt::format("sets equal but {} rows of tied scores", ties);
    report_.rows.push_back(std::move(row));
  }

  StatePool& pool_;
  Stepper stepper_;
  GoldenFile golden_;
  int vocab_;
  std::map<std::string, ForcedSpread> forced_spread_;
  std::map<std::string, LogitMeasures> gpu_logit_spread_;
  std::map<int, OpenPicks> open_picks_;  // by case
  VerifyReport report_;
};

}  // namespace

bool VerifyReport::compared_stages() const {
  return std::any_of(rows.begin(), rows.end(), [](const VerifyRow& row) { return row.stage != "logits" && row.stage != "decode_logits"; });
}

bool VerifyReport::passed() const {
  return compared_stages() && std::all_of(rows.begin(), rows.end(), [](const VerifyRow& row) { return row.pass; });
}

std::string VerifyReport::table() const {
  std::string text = fmt::format("{:>4} {:<34} {:>10} {:>14} {:>10} {:>10} {:>10} {:>10}  {}\n", "case", "stage", "max abs", "at",
                                 "measure", "tolerance", "ref spread", "unequal", "");
  for (const VerifyRow& row : rows)
    text += fmt::format("{:>4} {:<34} {:>10.3g} {:>14} {:>10.3g} {:>10.3g} {:>10.3g} {:>10}  {} {}\n", row.golden_case, row.stage,
                        row.error.max_abs, coordinate_text(row.error.worst, row.row_size), row.error_measure, row.tolerance,
                        row.reference_spread, row.error.unequal, row.pass ? "pass" : "FAIL", row.note);
  if (!compared_stages()) text += "FAIL: no stage was compared, the golden file records none\n";
  return text;
}

VerifyReport verify_goldens(StatePool& pool, const std::filesystem::path& golden_file) { return Replay(pool, golden_file).run(); }

}  // namespace tetrad
