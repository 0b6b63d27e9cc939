// sample against the host's RowChooser: the same id or the same complaint for every choice, whatever the device's way to it.
#include "cuda/kernels/sample.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <ostream>
#include <random>

#include "cuda/token_chooser.h"
#include "device_arrays.h"
#include "engine/generator.h"
#include "engine/row_chooser.h"
#include "support/loaded_model.h"

namespace tetrad {

bool operator==(const ChosenToken& a, const ChosenToken& b) {
  return a.id == b.id && a.outcome == b.outcome && __builtin_bit_cast(std::uint32_t, a.value) == __builtin_bit_cast(std::uint32_t, b.value);
}
std::ostream& operator<<(std::ostream& out, const ChosenToken& token) {
  return out << "id " << token.id << ", outcome " << static_cast<int>(token.outcome) << ", value " << token.value;
}

namespace cuda {
namespace {

using test::to_device;
using test::to_host;

constexpr float kInfinite = std::numeric_limits<float>::infinity(), kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr std::uint64_t kAllOnes = ~std::uint64_t{0};

// Rows of logits of every kind, and choices from them, with what they point to.
struct SampleCase {
  SampleCase(int vocab_size, int num_rows, int num_choices, unsigned seed) : V(vocab_size), limit(vocab_size), random(seed) {
    if (V > 40) {
      limit = V - 5;
      holes = {3, 17, V / 2};
    }
    for (int r = 0; r < num_rows; ++r) add_row(r);
    adjustments.resize(static_cast<std::size_t>(num_choices)), masks.resize(static_cast<std::size_t>(num_choices));
    for (int i = 0; i < num_choices; ++i) add_choice(i);
  }
  template <class... T>
  auto one_of(T... values) {
    const std::array options{values...};
    return options[random() % options.size()];
  }
  int any_id() { return static_cast<int>(random() % static_cast<unsigned>(V)); }

  void add_row(int r) {
    const float spread = one_of(0.01f, 1.0f, 2.5f, 6.0f, 40.0f);
    std::normal_distribution<float> normal(0, spread);
    const bool rounded = random() % 2 == 0;  // as logits of a model are, with many ties
    const std::size_t first = logits.size();
    for (int i = 0; i < V; ++i) {
      const float x = normal(random);
      logits.push_back(rounded ? to_float(to_bf16(x)) : x);
    }
    const auto at = [&](int id) -> float& { return logits[first + static_cast<std::size_t>(id)]; };
    const auto fill = [&](float value) { std::fill(logits.begin() + static_cast<std::ptrdiff_t>(first), logits.end(), value); };
    switch (r % 16) {
      case 1: fill(one_of(0.0f, -3.5f, 1.0f)); break;
      case 2:
        for (int i = 0; i < V; ++i) at(i) = random() % 3 == 0 ? -kInfinite : at(i);
        break;
      case 3: fill(-kInfinite), at(any_id()) = -7.0f; break;
      case 4: fill(-kInfinite); break;
      case 5: at(any_id()) = one_of(kNaN, -kNaN, kInfinite), at(V - 1) = kInfinite; break;
      case 6: at(any_id()) = 3e38f, at(any_id()) = -3e38f; break;
      case 7:
        for (int i = 0; i < V; ++i) at(i) *= 1e-41f;
        break;
      case 8:
        for (int i = 0; i < V; ++i) at(i) = i % 2 == 0 ? 0.0f : -0.0f;
        break;
      case 9:
        for (int i = 0; i < V; ++i) at(i) = std::round(at(i));
        break;
      case 10:
        for (int i = 0; i < V; ++i) at(i) = std::ldexp(1.0f, static_cast<int>(random() % 200) - 100) * (random() % 2 == 0 ? 1.0f : -1.0f);
        break;
      case 11: fill(-1.0f), at(any_id()) = 9.0f; break;
      default: break;
    }
  }

  void add_choice(int i) {
    TokenChoice choice;
    choice.row = static_cast<int>(random() % (logits.size() / static_cast<std::size_t>(V)));
    if (random() % 16 == 0) choice.forced = any_id();
    choice.inverse_temperature = one_of(0.0f, 1.0f, 1.0f, 1.0f, 0.01f, 1.0f / 0.7f, 3.0f, 1e4f, kLargestScore);
    choice.top_k = one_of(0, 0, 1, 2, 20, 50, 256, 257, 1000, std::max(V - 1, 0), V, V + 7);
    choice.top_p = one_of(std::uint64_t{0}, std::uint64_t{0}, std::uint64_t{1}, kAllOnes, kAllOnes - 2047, kAllOnes / 20 * 19, kAllOnes / 2,
                          std::uint64_t{1} << 60);
    choice.least_exponent = one_of(-kInfinite, -kInfinite, 0.0f, -0.05f, -3.0f, -30.0f, -1e-42f);
    choice.random = one_of(std::uint64_t{0}, kAllOnes, std::uint64_t{1} << 63, std::uint64_t{3} << 60, static_cast<std::uint64_t>(random()),
                           static_cast<std::uint64_t>(random()), static_cast<std::uint64_t>(random()));
    choice.repetition = one_of(1.0f, 1.3f, 0.5f, 0.001f);
    choice.presence = one_of(0.0f, 0.5f, -2.0f);
    std::vector<TokenAdjustment>& adjusted = adjustments[static_cast<std::size_t>(i)];
    if (random() % 3 == 0) {
      std::vector<int> ids;
      for (int n = one_of(1, 3, 200); n > 0; --n) ids.push_back(any_id());
      std::sort(ids.begin(), ids.end());
      ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
      std::shuffle(ids.begin(), ids.end(), random);
      for (const int id : ids)
        adjusted.push_back({.id = id,
                            .flags = static_cast<unsigned>(random() % 8),
                            .bias = one_of(0.5f, -100.0f, 100.0f, 0.0f),
                            .frequency = one_of(0.0f, 0.25f, -1.5f)});
    }
    std::vector<std::uint32_t>& mask = masks[static_cast<std::size_t>(i)];
    if (random() % 3 == 0) {
      mask.assign((static_cast<std::size_t>(V) + 31) / 32, 0u);
      const auto allow = [&](int id) { mask[static_cast<std::size_t>(id) / 32] |= 1u << (id % 32); };
      switch (random() % 4) {
        case 0: allow(any_id()); break;
        case 1: break;
        case 2:
          for (int n = 0; n < 40; ++n) allow(any_id());
          break;
        default:
          for (int id = 0; id < V; ++id)
            if (random() % 4 != 0) allow(id);
      }
    }
    choices.push_back(choice);
  }

  ChoiceBatch batch() {
    for (std::size_t i = 0; i < choices.size(); ++i) choices[i].adjustments = adjustments[i], choices[i].mask = masks[i];
    return {.limit = limit, .holes = holes, .choices = choices};
  }
  int num_rows() const { return static_cast<int>(logits.size() / static_cast<std::size_t>(V)); }
  std::vector<ChosenToken> on_the_host() {
    RowChooser chooser;
    std::vector<ChosenToken> chosen;
    for (const TokenChoice& choice : batch().choices)
      chosen.push_back(chooser.choose(
          std::span(logits).subspan(static_cast<std::size_t>(choice.row) * static_cast<std::size_t>(V), static_cast<std::size_t>(V)), limit,
          holes, choice));
    return chosen;
  }
  std::vector<ChosenToken> on_the_device(const SamplePlan& plan, int max_choices, const Stream& stream) {
    TokenChooser chooser(V, max_choices, plan);
    const auto device_logits = to_device(logits, stream);
    std::vector<ChosenToken> chosen(choices.size(), ChosenToken{.id = -99});
    chooser.choose(device_logits.data(), num_rows(), batch(), chosen, stream);
    return chosen;
  }

  int V, limit;
  std::mt19937_64 random;
  std::vector<int> holes;
  std::vector<float> logits;
  std::vector<TokenChoice> choices;
  std::vector<std::vector<TokenAdjustment>> adjustments;
  std::vector<std::vector<std::uint32_t>> masks;
};

// The plan of this device, one block with its scores in memory as older devices have it, or in shared memory where they are few, and where
// there are clusters one of these with its scores in memory.
std::vector<SamplePlan> plans(int V, const Stream& stream) {
  std::vector<SamplePlan> all{sample_plan(V, stream), sample_plan(V, 1, false)};
  if (V <= 8192) all.push_back(sample_plan(V, 1, true));
  if (stream.overlaps()) all.push_back(sample_plan(V, 8, false));
  return all;
}

void expect_same(const SampleCase& c, const std::vector<ChosenToken>& got, const std::vector<ChosenToken>& expected, const char* what) {
  int shown = 0;
  for (std::size_t i = 0; i < got.size() && shown < 5; ++i) {
    if (got[i] == expected[i]) continue;
    const TokenChoice& t = c.choices[i];
    ADD_FAILURE() << what << ", V " << c.V << ", choice " << i << " of row " << t.row << ": got " << got[i] << ", expected " << expected[i]
                  << "; 1/T " << t.inverse_temperature << ", top-k " << t.top_k << ", top-p " << t.top_p << ", least exponent "
                  << t.least_exponent << ", random " << t.random << ", " << t.adjustments.size() << " adjustments, mask "
                  << !t.mask.empty();
    ++shown;
  }
}

class SampleTest : public ::testing::TestWithParam<int> {};

TEST_P(SampleTest, chooses_what_the_host_chooses) {
  const Stream stream;
  const int V = GetParam(), rows = V > 10000 ? 16 : 64, count = V > 10000 ? 400 : 4000;
  SampleCase c(V, rows, count, static_cast<unsigned>(V));
  const auto expected = c.on_the_host();
  for (const SamplePlan& plan : plans(V, stream)) expect_same(c, c.on_the_device(plan, 64, stream), expected, "64 at a time");
}

TEST_P(SampleTest, neighbours_and_pieces_make_no_difference) {
  const Stream stream;
  SampleCase c(GetParam(), 16, 70, 7);
  const SamplePlan plan = sample_plan(c.V, stream);
  const auto together = c.on_the_device(plan, 70, stream);
  expect_same(c, c.on_the_device(plan, 70, stream), together, "a second run");
  expect_same(c, c.on_the_device(plan, 1, stream), together, "one at a time");
  expect_same(c, c.on_the_device(plan, 9, stream), together, "nine at a time");
}

// All ids of each choice: pieces end where the adjustments have no room.
TEST_P(SampleTest, every_id_may_be_adjusted) {
  const Stream stream;
  SampleCase c(GetParam(), 4, 6, 9);
  for (auto& adjusted : c.adjustments) {
    adjusted.clear();
    for (int id = c.V - 1; id >= 0; --id)
      adjusted.push_back({.id = id, .flags = static_cast<unsigned>(id % 8), .bias = 0.75f, .frequency = 0.5f});
  }
  expect_same(c, c.on_the_device(sample_plan(c.V, stream), 64, stream), c.on_the_host(), "all adjusted");
}

INSTANTIATE_TEST_SUITE_P(vocabularies, SampleTest, ::testing::Values(1, 31, 97, 512, 4097, 8193, 151936, 248320));

TEST(sample, largest_vocabulary_of_equal_scores) {
  const Stream stream;
  SampleCase c(kSampleMostIds, 1, 40, 3);
  c.logits.assign(c.logits.size(), 2.0f);
  const auto expected = c.on_the_host();
  for (const SamplePlan& plan : plans(c.V, stream)) expect_same(c, c.on_the_device(plan, 64, stream), expected, "equal scores");
}

// One more or one fewer than a block finishes with (1024), and than it learns of (256), all of them the best or below one that is.
TEST(sample, about_as_many_candidates_as_have_room) {
  const Stream stream;
  constexpr int kVocab = 40003;
  SampleCase c(kVocab, 1, 1, 5);
  c.logits.clear(), c.choices.clear(), c.holes.clear();
  for (const int many : {255, 256, 257, 1023, 1024, 1025, 3000}) {
    for (const float best : {4.0f, 4.5f}) {
      std::vector<float> row(kVocab, -1.0f);
      for (int i = 0; i < many; ++i) row[static_cast<std::size_t>(i * 13)] = 4.0f;
      row[39000] = best;
      c.logits.insert(c.logits.end(), row.begin(), row.end());
      for (const int top_k : {0, 1, 20, 255, 256, 257, 1022, 1024, 1025, 3000})
        for (const std::uint64_t top_p : {std::uint64_t{0}, kAllOnes / 100 * 99, kAllOnes / 10 * 9, kAllOnes / 1000})
          c.choices.push_back({.row = c.num_rows() - 1, .inverse_temperature = 1.0f, .top_k = top_k, .top_p = top_p, .random = c.random()});
    }
  }
  c.adjustments.assign(c.choices.size(), {}), c.masks.assign(c.choices.size(), {});
  const auto expected = c.on_the_host();
  for (const SamplePlan& plan : plans(kVocab, stream)) expect_same(c, c.on_the_device(plan, 64, stream), expected, "many equal ones");
}

// Equal scores on both sides of where a block's part ends, and a warp's.
TEST(sample, ties_across_borders_go_to_the_lower_ids) {
  const Stream stream;
  constexpr int kVocab = 40000, kBlockIds = 8192, kWarpIds = 256;
  ASSERT_EQ(sample_plan(kVocab, 8, false).items * 1024, kBlockIds);
  SampleCase c(kVocab, 1, 1, 6);
  c.logits.assign(kVocab, -1.0f), c.choices.clear(), c.holes.clear();
  for (const int border : {kBlockIds, 2 * kBlockIds, 4 * kBlockIds, kWarpIds, kBlockIds + kWarpIds})
    for (int id = border - 2; id < border + 2; ++id) c.logits[static_cast<std::size_t>(id)] = 5.0f;
  for (int top_k = 0; top_k < 23; ++top_k)
    for (const std::uint64_t top_p : {std::uint64_t{0}, kAllOnes / 10 * 9, kAllOnes / 4})
      for (const std::uint64_t random : {std::uint64_t{0}, kAllOnes, kAllOnes / 3})
        c.choices.push_back({.inverse_temperature = 2.0f, .top_k = top_k, .top_p = top_p, .random = random});
  c.adjustments.assign(c.choices.size(), {}), c.masks.assign(c.choices.size(), {});
  const auto expected = c.on_the_host();
  for (const SamplePlan& plan : plans(kVocab, stream)) expect_same(c, c.on_the_device(plan, 64, stream), expected, "ties");
}

// Flat rows, top-p alone: nearly all ids stay. One row to more than a launch takes.
TEST(sample, flat_rows_of_any_number) {
  const Stream stream;
  constexpr int kVocab = 100002;
  SampleCase c(kVocab, 1, 1, 8);
  c.logits.clear();
  std::normal_distribution<float> normal(0, 0.02f);
  for (int i = 0; i < 3 * kVocab; ++i) c.logits.push_back(i < 2 * kVocab ? normal(c.random) : 0.25f);
  for (const int count : {1, 2, 31, 67}) {
    c.choices.clear();
    for (int i = 0; i < count; ++i)
      c.choices.push_back({.row = i % 3, .inverse_temperature = 1.0f, .top_p = kAllOnes / 100 * 99, .random = c.random()});
    c.adjustments.assign(c.choices.size(), {}), c.masks.assign(c.choices.size(), {});
    const auto expected = c.on_the_host();
    for (const SamplePlan& plan : plans(kVocab, stream)) expect_same(c, c.on_the_device(plan, 64, stream), expected, "flat");
  }
}

TEST(sample, writes_its_answers_and_nothing_else) {
  const Stream stream;
  constexpr int kVocab = 1000, kChoices = 5;
  SampleCase c(kVocab, 3, kChoices, 4);
  const auto device_logits = to_device(c.logits, stream);
  std::vector<DeviceChoice> choices(kChoices);
  for (int i = 0; i < kChoices; ++i) choices[i] = {.random = kAllOnes / 3, .inverse_temperature = 1.0f, .row = i % 3, .top_k = i};
  choices[4].first_adjustment = 0, choices[4].num_adjustments = 2, choices[4].mask = 0;
  const std::vector<TokenAdjustment> adjustments{{.id = 5, .flags = 1, .bias = 1}, {.id = 999, .flags = 7, .bias = 2}};
  const std::vector<std::uint32_t> masks(32, 0x55555555u);
  const std::vector<int> holes{4, 8};
  const auto device_choices = to_device(choices, stream);
  const auto device_adjustments = to_device(adjustments, stream);
  const auto device_masks = to_device(masks, stream);
  const auto device_holes = to_device(holes, stream);
  const ChosenToken sentinel{.id = -77, .value = 1.5f};
  auto chosen = to_device(std::vector<ChosenToken>(kChoices + 2, sentinel), stream);
  sample({.num_choices = kChoices,
          .num_rows = 3,
          .V = kVocab,
          .limit = kVocab,
          .num_holes = 2,
          .num_adjustments = 2,
          .num_masks = 1,
          .logits = device_logits.data(),
          .choices = device_choices.data(),
          .holes = device_holes.data(),
          .adjustments = device_adjustments.data(),
          .masks = device_masks.data(),
          .chosen = chosen.data() + 1},
         sample_plan(kVocab, stream), stream);
  const auto got = to_host(chosen, stream);
  EXPECT_EQ(got.front(), sentinel);
  EXPECT_EQ(got.back(), sentinel);
  for (int i = 0; i < kChoices; ++i) EXPECT_NE(got[static_cast<std::size_t>(i) + 1], sentinel);
  const auto logits_after = to_host(device_logits, stream);
  EXPECT_EQ(std::memcmp(logits_after.data(), c.logits.data(), c.logits.size() * sizeof(float)), 0);
  EXPECT_EQ(to_host(device_masks, stream), masks);
  EXPECT_EQ(to_host(device_holes, stream), holes);
}

// The backend: a step that leaves its logits, in a recorded graph and beside one that does not.
TEST(sample, a_step_that_keeps_its_logits_gives_the_tokens_of_one_that_does_not) {
  ::tetrad::test::LoadedModel model(::tetrad::test::golden_directory("rand-small"));
  const int V = model.config.vocab_size;
  ASSERT_GT(model.backend->kept_logit_rows(), 0);
  const auto prompt = ::tetrad::test::random_ids(30, V, 5), ids = ::tetrad::test::random_ids(12, V, 6);
  SequenceState kept(*model.pool), copied(*model.pool);
  Stepper stepper(*model.pool);
  SamplingParams params{.top_k = 30, .top_p = 0.9, .repetition_penalty = 1.2};
  Sampler sampler(params, SampleableIds::all(V), prompt);
  const auto token_of = [&](SequenceState& state, std::span<const int> tokens, bool choose) {
    const StepOutcome outcome = stepper.run(std::vector<StepRequest>{{.state = &state, .token_ids = tokens, .choose = choose}}).front();
    if (!choose) return sampler.sample(outcome.logits, state.length()).id;
    EXPECT_TRUE(outcome.logits.empty());
    TokenChoice choice = sampler.choice(state.length());
    choice.row = outcome.kept_row;
    return sampler.chosen(stepper.choose(SampleableIds::all(V), {&choice, 1}).front(), state.length()).id;
  };
  EXPECT_EQ(token_of(kept, prompt, true), token_of(copied, prompt, false));
  for (const int& id : ids) {
    EXPECT_EQ(token_of(kept, {&id, 1}, true), token_of(copied, {&id, 1}, false));
    sampler.accept(id);
  }
  EXPECT_EQ(kept.checksums(), copied.checksums());
}

TEST(sample, rows_left_on_the_device_can_be_read) {
  ::tetrad::test::LoadedModel model(::tetrad::test::golden_directory("rand-small"));
  const int V = model.config.vocab_size;
  const auto prompt = ::tetrad::test::random_ids(9, V, 5);
  SequenceState a(*model.pool), b(*model.pool), alone(*model.pool);
  Stepper stepper(*model.pool);
  const StepOutcome expected =
      stepper.run(std::vector<StepRequest>{{.state = &alone, .token_ids = prompt, .logits = LogitsWanted::kAll}}).front();
  const std::vector<float> all(expected.logits.begin(), expected.logits.end());
  const auto outcomes = stepper.run(std::vector<StepRequest>{{.state = &a, .token_ids = prompt, .choose = true},
                                                             {.state = &b, .token_ids = prompt, .logits = LogitsWanted::kAll}});
  EXPECT_EQ(outcomes[0].kept_row, 0);
  EXPECT_EQ(std::vector<float>(outcomes[1].logits.begin(), outcomes[1].logits.end()), all);
  std::vector<float> outside(2 * static_cast<std::size_t>(V));
  EXPECT_THROW(model.backend->read_logits(9, outside), InternalError);
}

}  // namespace
}  // namespace cuda
}  // namespace tetrad
