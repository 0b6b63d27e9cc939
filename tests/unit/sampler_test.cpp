#include "engine/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <functional>
#include <limits>
#include <numeric>
#include <random>

#include "base/error.h"
#include "engine/philox.h"
#include "support/sampling_reference.h"
#include "support/sanitized.h"

namespace tetrad::sampler_test {
namespace {

using testing::reference_distribution;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

std::vector<float> random_logits(int vocab_size, unsigned seed, float spread) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal(0, spread);
  std::vector<float> logits(static_cast<std::size_t>(vocab_size));
  for (float& x : logits) x = normal(engine);
  return logits;
}

SamplingParams greedy() {
  SamplingParams params;
  params.temperature = 0;
  return params;
}

int sample_once(const SamplingParams& params, const std::vector<float>& logits, std::int64_t position = 0) {
  return Sampler(params, SampleableIds::all(static_cast<int>(logits.size())), {}).sample(logits, position).id;
}

// Known answers of the generator's authors (Random123, kat_vectors).
TEST(philox, known_answers) {
  using Words = std::array<std::uint32_t, 4>;
  constexpr std::uint32_t kOnes = 0xffffffff;
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32({kOnes, kOnes, kOnes, kOnes}, {kOnes, kOnes}), (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(philox, bits_depend_on_every_input) {
  const std::uint64_t base = philox_bits(1, 2, 3);
  EXPECT_NE(base, philox_bits(2, 2, 3));
  EXPECT_NE(base, philox_bits(1, 3, 3));
  EXPECT_NE(base, philox_bits(1, 2, 4));
  EXPECT_NE(base, philox_bits(1 + (std::uint64_t{1} << 32), 2, 3));
  EXPECT_NE(base, philox_bits(1, 2 + (std::uint64_t{1} << 32), 3));
}

TEST(sampler, greedy_takes_the_highest_and_of_equals_the_lowest_id) {
  std::vector<float> logits(5000, -3.0f);
  logits[4999] = 1;
  EXPECT_EQ(sample_once(greedy(), logits), 4999);
  logits[4100] = 1;
  EXPECT_EQ(sample_once(greedy(), logits), 4100);
  logits[3] = 1;
  logits[2] = 1;
  EXPECT_EQ(sample_once(greedy(), logits), 2);
  EXPECT_EQ(sample_once(greedy(), {-0.0f, 0.0f}), 0) << "the two zeros are equal";
}

TEST(sampler, greedy_equals_a_plain_scan) {
  for (const int vocab_size : {1, 2, 15, 16, 17, 1023, 1024, 1025, 4096, 9999}) {
    std::vector<float> logits = random_logits(vocab_size, static_cast<unsigned>(vocab_size), 3);
    for (float& x : logits) x = std::round(x);  // many ties
    const auto expected = std::max_element(logits.begin(), logits.end()) - logits.begin();
    EXPECT_EQ(sample_once(greedy(), logits), expected) << vocab_size;
  }
}

TEST(sampler, a_row_that_is_not_finite_is_an_error) {
  for (const float bad : {kNaN, kInfinity}) {
    for (const std::size_t where : {std::size_t{0}, std::size_t{500}, std::size_t{2999}}) {
      std::vector<float> logits(3000, 0.0f);
      logits[where] = bad;
      EXPECT_THROW(sample_once(greedy(), logits), NumericError);
      EXPECT_THROW(sample_once(SamplingParams{}, logits), NumericError);
    }
  }
  EXPECT_THROW(sample_once(greedy(), std::vector<float>(10, -kInfinity)), NumericError);
  EXPECT_THROW(sample_once(SamplingParams{}, std::vector<float>(10, -kInfinity)), NumericError);
  try {
    std::vector<float> logits(10, 0.0f);
    logits[7] = kNaN;
    sample_once(greedy(), logits, 42);
    FAIL() << "accepted a NaN";
  } catch (const NumericError& error) {
    EXPECT_NE(std::string(error.what()).find("position 42"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("token id 7"), std::string::npos) << error.what();
  }
}

TEST(sampler, minus_infinity_is_never_chosen) {
  std::vector<float> logits(100, -kInfinity);
  logits[40] = -5;
  logits[41] = -5;
  bool seen[2] = {false, false};
  for (int position = 0; position < 200; ++position) {
    const int id = sample_once(SamplingParams{}, logits, position);
    ASSERT_TRUE(id == 40 || id == 41) << id;
    seen[id - 40] = true;
  }
  EXPECT_TRUE(seen[0] && seen[1]);
}

TEST(sampler, padding_rows_and_holes_are_never_chosen) {
  std::vector<float> logits(64, 0.0f);
  for (std::size_t i = 40; i < 64; ++i) logits[i] = 50.0f;
  logits[7] = 60.0f;
  const SampleableIds ids{64, 40, {7, 8}};
  SamplingParams params;
  params.logit_bias = {{7, 100.0}, {45, 100.0}, {63, 100.0}, {3, 1.0}};
  params.logprobs = 20;
  for (const double temperature : {0.0, 0.5, 5.0, 100.0}) {
    params.temperature = temperature;
    Sampler sampler(params, ids, {});
    for (int position = 0; position < 500; ++position) {
      const SampledToken token = sampler.sample(logits, position);
      ASSERT_TRUE(token.id < 40 && token.id != 7 && token.id != 8) << token.id;
      ASSERT_EQ(token.top.size(), 20u);
      for (const TokenLogprob& top : token.top) ASSERT_TRUE(top.id < 40 && top.id != 7 && top.id != 8) << top.id;
    }
  }
}

TEST(sampler, penalties_and_bias_follow_their_formulas) {
  // Prompt has 0 and 1; the answer has 1 once and 2 twice.
  const std::vector<float> logits{4.0f, -2.0f, 3.0f, 1.0f, 0.0f};
  SamplingParams params = greedy();
  params.repetition_penalty = 2.0;
  params.presence_penalty = 0.25;
  params.frequency_penalty = 0.5;
  params.logit_bias = {{0, 1.0}, {4, -3.0}};
  const std::vector<int> prompt{0, 1, 1};
  // bias, then repetition, then frequency and presence: 0: (4+1)/2; 1: -2*2-.5-.25; 2: 3/2-1-.25; 3: 1; 4: -3
  const std::vector<double> expected{2.5, -4.75, 0.25, 1.0, -3.0};
  EXPECT_EQ(testing::adjusted_logits(logits, params, prompt, std::vector<int>{1, 2, 2}), expected);

  // The frequencies of draws at temperature 1 show the scores that the sampler has made of it.
  params.temperature = 1.0;
  Sampler sampler(params, SampleableIds::all(5), prompt);
  for (const int id : {1, 2, 2}) sampler.accept(id);
  const std::vector<double> probability = reference_distribution(logits, params, prompt, std::vector<int>{1, 2, 2});
  std::vector<int> counts(5, 0);
  constexpr int kDraws = 40000;
  for (int i = 0; i < kDraws; ++i) ++counts[static_cast<std::size_t>(sampler.sample(logits, i).id)];
  for (std::size_t id = 0; id < 5; ++id) {
    const double sigma = std::sqrt(probability[id] * (1 - probability[id]) / kDraws);
    EXPECT_NEAR(static_cast<double>(counts[id]) / kDraws, probability[id], 5 * sigma + 1e-9) << id;
  }
}

TEST(sampler, prompt_tokens_do_not_count_for_presence_and_frequency) {
  SamplingParams params = greedy();
  params.presence_penalty = 2.0;
  params.frequency_penalty = 2.0;
  const std::vector<float> logits{1.0f, 0.9f, -5.0f};
  const std::vector<int> prompt{0, 0, 0};
  Sampler sampler(params, SampleableIds::all(3), prompt);
  EXPECT_EQ(sampler.sample(logits, 3).id, 0);
  sampler.accept(0);
  EXPECT_EQ(sampler.sample(logits, 4).id, 1);
  sampler.accept(1);
  EXPECT_EQ(sampler.sample(logits, 5).id, 0);
}

TEST(sampler, the_same_seed_and_position_give_the_same_token) {
  const std::vector<float> logits = random_logits(1000, 5, 1);
  SamplingParams params;
  params.seed = 99;
  Sampler one(params, SampleableIds::all(1000), {}), two(params, SampleableIds::all(1000), {});
  for (int position = 0; position < 50; ++position) two.sample(random_logits(1000, static_cast<unsigned>(position), 2), position);
  int differ = 0;
  params.seed = 100;
  Sampler other(params, SampleableIds::all(1000), {});
  for (int position = 0; position < 100; ++position) {
    const int id = one.sample(logits, position).id;
    EXPECT_EQ(id, two.sample(logits, position).id);
    differ += id != other.sample(logits, position).id;
  }
  EXPECT_GT(differ, 90);
}

TEST(sampler, logprobs_are_of_the_raw_row) {
  std::vector<float> logits = random_logits(300, 11, 2);
  logits[17] = logits[18] = 9.0f;
  SamplingParams params = greedy();
  params.logit_bias = {{5, 100.0}};
  params.logprobs = 3;
  double total = 0;
  for (const float x : logits) total += std::exp(static_cast<double>(x));
  const auto expected = [&](int id) { return static_cast<double>(logits[static_cast<std::size_t>(id)]) - std::log(total); };
  const SampledToken token = Sampler(params, SampleableIds::all(300), {}).sample(logits, 0);
  EXPECT_EQ(token.id, 5);
  ASSERT_TRUE(token.logprob);
  EXPECT_EQ(token.logprob->id, 5);
  EXPECT_NEAR(token.logprob->logprob, expected(5), 1e-5);
  ASSERT_EQ(token.top.size(), 3u);
  EXPECT_EQ(token.top[0].id, 17);
  EXPECT_EQ(token.top[1].id, 18);
  for (const TokenLogprob& top : token.top) EXPECT_NEAR(top.logprob, expected(top.id), 1e-5);

  params.logprobs = 0;
  const SampledToken without_top = Sampler(params, SampleableIds::all(300), {}).sample(logits, 0);
  EXPECT_TRUE(without_top.logprob && without_top.top.empty());
  params.logprobs.reset();
  EXPECT_FALSE(Sampler(params, SampleableIds::all(300), {}).sample(logits, 0).logprob);
}

TEST(sampler, extreme_temperatures_stay_sound) {
  const std::vector<float> logits{1.0f, 3.0f, 3.0f, -1e30f, 2.0f};
  for (const double temperature : {1e-300, 1e-40, 1e-9, 1e-3}) {
    SamplingParams params;
    params.temperature = temperature;
    for (int position = 0; position < 50; ++position) {
      const int id = sample_once(params, logits, position);
      EXPECT_TRUE(id == 1 || id == 2) << temperature << ": " << id;
    }
  }
}

// Pearson's statistic against the exact distribution, at a false-alarm rate of about 1e-6 for each set (fixed seeds: it never flickers).
TEST(sampler, draws_follow_the_distribution) {
  std::vector<SamplingParams> sets(7);
  sets[1].temperature = 0.6;
  sets[2].top_k = 7;
  sets[3].top_p = 0.8;
  sets[4].min_p = 0.1;
  sets[5] = {.temperature = 1.5, .top_k = 20, .top_p = 0.9, .min_p = 0.02};
  sets[6] = {.temperature = 0.9,
             .top_k = 12,
             .top_p = 0.95,
             .repetition_penalty = 1.3,
             .presence_penalty = 0.4,
             .frequency_penalty = 0.2,
             .logit_bias = {{3, 1.5}, {8, -2.0}}};
  const std::vector<float> logits = random_logits(40, 21, 1.5f);
  const std::vector<int> prompt{1, 2, 3}, answer{4, 4, 5};
  constexpr int kDraws = testing::kSanitized ? 5000 : 50000;
  for (std::size_t s = 0; s < sets.size(); ++s) {
    sets[s].seed = 1000 + s;
    Sampler sampler(sets[s], SampleableIds::all(40), prompt);
    for (const int id : answer) sampler.accept(id);
    std::vector<int> counts(40, 0);
    for (int i = 0; i < kDraws; ++i) ++counts[static_cast<std::size_t>(sampler.sample(logits, i).id)];
    const std::vector<double> probability = reference_distribution(logits, sets[s], prompt, answer);
    double statistic = 0;
    int cells = 0, pooled_count = 0;
    double pooled = 0;
    const auto add = [&](double expected, int count) {
      statistic += (count - expected) * (count - expected) / expected;
      ++cells;
    };
    for (std::size_t id = 0; id < 40; ++id) {
      const double expected = probability[id] * kDraws;
      if (expected == 0)
        EXPECT_EQ(counts[id], 0) << "set " << s << ": id " << id << " is outside the filters";
      else if (expected >= 5)
        add(expected, counts[id]);
      else {
        pooled += expected;
        pooled_count += counts[id];
      }
    }
    if (pooled >= 1) add(pooled, pooled_count);
    const double degrees = std::max(cells - 1, 1);
    EXPECT_LT(statistic, degrees + 5 * std::sqrt(2 * degrees) + 15) << "set " << s << ", " << cells << " cells";
    RecordProperty("chi_square_set_" + std::to_string(s), std::to_string(statistic / degrees));
  }
}

// The arithmetic of model/token_choice.h, written out once more with whole sorts and 128-bit integers.
int chosen_by_the_book(std::span<const float> row, const TokenChoice& choice) {
  __extension__ using Wide = unsigned __int128;
  std::vector<int> rank;
  for (int id = 0; id < static_cast<int>(row.size()); ++id)
    if (row[static_cast<std::size_t>(id)] > -kInfinity) rank.push_back(id);
  const auto score = [&](int id) { return row[static_cast<std::size_t>(id)]; };
  std::stable_sort(rank.begin(), rank.end(), [&](int a, int b) { return score(a) > score(b); });
  if (choice.inverse_temperature == 0) return rank.front();
  const float best = score(rank.front());
  const auto exponent = [&](int id) { return (score(id) - best) * choice.inverse_temperature; };
  const auto weight = [&](int id) { return fixed_weight(exp_nonpositive(exponent(id))); };
  const auto mass = [&] {
    Wide sum = 0;
    for (const int id : rank) sum += weight(id);
    return sum;
  };
  if (choice.top_k > 0 && choice.top_k < static_cast<int>(rank.size())) rank.resize(static_cast<std::size_t>(choice.top_k));
  if (choice.top_p > 0) {
    const Wide product = mass() * choice.top_p, target = (product >> 64) + (static_cast<std::uint64_t>(product) != 0 ? 1 : 0);
    std::size_t kept = 0;
    for (Wide sum = 0; sum < target; ++kept) sum += weight(rank[kept]);
    rank.resize(kept);
  }
  while (exponent(rank.back()) < choice.least_exponent) rank.pop_back();
  Wide left = (mass() * choice.random) >> 64;
  std::sort(rank.begin(), rank.end());
  for (const int id : rank) {
    if (weight(id) > left) return id;
    left -= weight(id);
  }
  return -1;
}

TEST(row_chooser, equals_the_definition) {
  std::mt19937_64 engine(5);
  const auto one_of = [&](auto... values) {
    const std::array options{values...};
    return options[engine() % options.size()];
  };
  RowChooser chooser;
  for (int trial = 0; trial < 3000; ++trial) {
    const int vocab_size = one_of(1, 2, 15, 16, 31, 97, 512, 1500);
    std::vector<float> row = random_logits(vocab_size, static_cast<unsigned>(trial), one_of(0.01f, 1.0f, 5.0f, 40.0f));
    const float step = one_of(0.0f, 0.125f, 1.0f);  // ties
    for (float& x : row) {
      if (step > 0) x = std::round(x / step) * step;
      if (trial % 5 == 0 && engine() % 4 == 0) x = -kInfinity;
    }
    row[engine() % row.size()] = 0.5f;
    TokenChoice choice{.inverse_temperature = one_of(0.0f, 0.01f, 0.5f, 1.0f, 3.0f, 1e6f, kLargestScore),
                       .top_k = one_of(0, 0, 1, 2, 20, vocab_size, vocab_size + 1),
                       .top_p = one_of(0ull, 0ull, 1ull, 1ull << 40, 1ull << 63, ~0ull, ~0ull - 4095),
                       .least_exponent = one_of(-kInfinity, -kInfinity, 0.0f, -0.7f, -3.0f, -40.0f),
                       .random = one_of(0ull, ~0ull, 1ull << 63, static_cast<unsigned long long>(engine()))};
    EXPECT_EQ(chooser.choose(row, vocab_size, {}, choice).id, chosen_by_the_book(row, choice)) << "trial " << trial;
  }
}

// A backend that chooses on its own may meet the adjustments and the mask in any order of ids, but of one id in this order.
TEST(row_chooser, holes_masks_and_adjustments) {
  const std::vector<float> row{1, 2, 3, 4, 5, 6, 7, 8};
  RowChooser chooser;
  const std::vector<TokenAdjustment> adjustments{
      {.id = 7, .flags = TokenAdjustment::kBiased, .bias = 100},
      {.id = 6, .flags = TokenAdjustment::kBiased, .bias = 100},
      {.id = 5, .flags = TokenAdjustment::kBiased | TokenAdjustment::kUsed, .bias = 2},
      {.id = 4, .flags = TokenAdjustment::kUsed | TokenAdjustment::kInAnswer, .frequency = 0.25f}};
  const std::vector<int> holes{6};
  const std::vector<std::uint32_t> all_but_5{0xdf}, only_4{0x10}, none{0}, only_6{0x40};
  TokenChoice choice{.repetition = 0.5f, .presence = 1, .adjustments = adjustments};
  EXPECT_EQ(chooser.choose(row, 7, holes, choice).id, 5) << "(6 + 2) / 0.5";
  choice.mask = all_but_5;
  EXPECT_EQ(chooser.choose(row, 7, holes, choice).id, 4) << "5 / 0.5 - 0.25 - 1";
  choice.mask = none;
  EXPECT_EQ(chooser.choose(row, 7, holes, choice).outcome, ChoiceOutcome::kNotAllowed);
  choice.mask = only_6;
  EXPECT_EQ(chooser.choose(row, 7, holes, choice).outcome, ChoiceOutcome::kNotAllowed);
  choice.adjustments = {};
  choice.mask = only_4;
  EXPECT_EQ(chooser.choose(row, 7, holes, choice).id, 4);
  choice.forced = 6;
  EXPECT_EQ(chooser.choose(row, 7, holes, choice).id, 6);
  EXPECT_EQ(chooser.choose(std::vector<float>{0, kNaN}, 2, {}, choice).outcome, ChoiceOutcome::kUnsound);
}

TEST(sampler, top_p_in_units_keeps_every_bit_of_it) {
  EXPECT_EQ(top_p_units(1.0), 0u);
  EXPECT_EQ(top_p_units(0.5), std::uint64_t{1} << 63);
  EXPECT_EQ(top_p_units(std::nextafter(1.0, 0.0)), ~std::uint64_t{0} - 2047);
  EXPECT_EQ(top_p_units(1e-300), 1u);
  EXPECT_EQ(top_p_target(3, std::uint64_t{1} << 63), 2u) << "rounded up";
  EXPECT_EQ(top_p_target(4, std::uint64_t{1} << 63), 2u) << "reached exactly";
  EXPECT_EQ(top_p_target(std::uint64_t{1} << 58, 1), 1u);
}

TEST(sampling_params, every_field_is_checked_by_name) {
  const auto message = [](const std::function<void(SamplingParams&)>& spoil) -> std::string {
    SamplingParams params;
    spoil(params);
    try {
      validate(params, 100);
    } catch (const InputError& error) {
      return error.what();
    }
    return "";
  };
  const double nan = std::nan("");
  EXPECT_EQ(message([](SamplingParams&) {}), "");
  EXPECT_EQ(message([](SamplingParams& p) { p.temperature = -1; }), "temperature must be between 0 (greedy) and 100, got -1");
  EXPECT_EQ(message([&](SamplingParams& p) { p.temperature = nan; }), "temperature must be between 0 (greedy) and 100, got nan");
  EXPECT_EQ(message([](SamplingParams& p) { p.top_k = -2; }), "top_k must be at least 1, or 0 or -1 for no limit, got -2");
  EXPECT_EQ(message([](SamplingParams& p) { p.top_k = -1; }), "");
  EXPECT_EQ(message([](SamplingParams& p) { p.top_p = 0; }), "top_p must be greater than 0 and at most 1, got 0");
  EXPECT_EQ(message([](SamplingParams& p) { p.top_p = 1.5; }), "top_p must be greater than 0 and at most 1, got 1.5");
  EXPECT_EQ(message([&](SamplingParams& p) { p.top_p = nan; }), "top_p must be greater than 0 and at most 1, got nan");
  EXPECT_EQ(message([](SamplingParams& p) { p.min_p = 1.1; }), "min_p must be between 0 and 1, got 1.1");
  EXPECT_EQ(message([](SamplingParams& p) { p.repetition_penalty = 0; }),
            "repetition_penalty must be greater than 0 and at most 10, got 0");
  EXPECT_EQ(message([](SamplingParams& p) { p.presence_penalty = 3; }), "presence_penalty must be between -2 and 2, got 3");
  EXPECT_EQ(message([](SamplingParams& p) { p.frequency_penalty = -3; }), "frequency_penalty must be between -2 and 2, got -3");
  EXPECT_EQ(message([](SamplingParams& p) { p.logprobs = 21; }), "logprobs must be between 0 and 20, got 21");
  EXPECT_EQ(message([](SamplingParams& p) { p.logit_bias = {{100, 1.0}}; }), "logit_bias: token id 100 is outside the vocabulary [0, 100)");
  EXPECT_EQ(message([](SamplingParams& p) { p.logit_bias = {{-1, 1.0}}; }), "logit_bias: token id -1 is outside the vocabulary [0, 100)");
  EXPECT_EQ(message([](SamplingParams& p) {
              p.logit_bias = {{5, 1000.0}};
            }),
            "logit_bias of token id 5 must be between -100 and 100, got 1000");
  EXPECT_EQ(message([](SamplingParams& p) { p.logit_bias = {{5, 1.0}, {5, 2.0}}; }), "logit_bias: token id 5 is given twice");
}

// The largest published vocabulary. The bound is loose on purpose (sanitizers, loaded machines); the measured time is in the report.
TEST(sampler, one_draw_of_the_largest_vocabulary_is_fast) {
  constexpr int kVocab = 248320;
  const std::vector<float> logits = random_logits(kVocab, 3, 2.5f);
  std::vector<std::pair<const char*, SamplingParams>> sets{{"greedy", greedy()}, {"plain", {}}, {"top_k_top_p", {}},
                                                           {"top_p", {}},        {"min_p", {}}, {"logprobs", greedy()}};
  sets[2].second = {.top_k = 20, .top_p = 0.95};
  sets[3].second = {.top_p = 0.95};
  sets[4].second = {.min_p = 0.05};
  sets[5].second.logprobs = 20;
  for (const auto& [name, params] : sets) {
    Sampler sampler(params, SampleableIds{kVocab, kVocab - 243, {}}, {});
    sampler.sample(logits, 0);
    double best = 1e9;
    for (int repeat = 0; repeat < 20; ++repeat) {
      const auto start = std::chrono::steady_clock::now();
      sampler.sample(logits, repeat);
      best = std::min(best, std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count());
    }
    std::printf("[   time   ] %-12s %8.1f us\n", name, best);
    EXPECT_LT(best, 50000) << name;
  }
}

}  // namespace
}  // namespace tetrad::sampler_test
