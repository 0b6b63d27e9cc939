// Constraints on the tokens of an answer: masks, the sampler under them, choices, budgets, and requests that leave no token.
#include "engine/token_constraint.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <limits>
#include <numeric>
#include <random>

#include "engine/engine_core.h"
#include "engine/generator.h"
#include "support/engine_rig.h"
#include "support/sanitized.h"

namespace tetrad::token_constraint_test {
namespace {

using testing::answer_script;
using testing::hashed_script;
using testing::RecordingSink;
using testing::ScriptedBackend;

constexpr int kVocab = 64, kStop = 63, kThink = 60, kEndThink = 61;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

GenerationRequest request_of(std::vector<int> prompt, TokenConstraints constraints = {}) {
  GenerationRequest request;
  request.prompt_ids = std::move(prompt);
  request.sampling.temperature = 0;
  request.stop_ids = {kStop};
  request.constraints = std::move(constraints);
  return request;
}

GenerationResult generated(const GenerationRequest& request, const ScriptedBackend::Script& script, int max_positions = 100) {
  ScriptedBackend backend({.vocab_size = kVocab, .max_positions = max_positions}, script);
  StatePool pool(backend);
  SequenceState state(pool);
  return Generator(pool).generate(state, request);
}

std::shared_ptr<const TokenConstraint> choice(std::vector<std::vector<int>> ids) { return std::make_shared<FixedChoice>(std::move(ids)); }

std::shared_ptr<const TokenConstraint> thinking_budget(int budget, std::vector<int> phrase, bool inside = true) {
  return std::make_shared<ThinkingBudget>(ThinkingBudget::Options{kThink, kEndThink, inside, budget, std::move(phrase)});
}

template <class Body>
std::string message_of(Body body) {
  try {
    body();
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

TEST(token_mask, counts_sets_and_stays_inside_the_vocabulary) {
  for (const int vocab : {1, 31, 32, 33, 64, 1000}) {
    TokenMask mask(vocab), other(vocab);
    EXPECT_EQ(mask.count(), 0);
    mask.allow_all();
    EXPECT_EQ(mask.count(), vocab);
    mask.set(vocab - 1, false);
    EXPECT_FALSE(mask.allows(vocab - 1));
    EXPECT_EQ(mask.count(), vocab - 1);
    other.set(vocab - 1, true);
    other.set(0, true);
    EXPECT_TRUE(other.allows(0) && other.allows(vocab - 1));
    other.intersect(mask);
    EXPECT_EQ(other.count(), vocab > 1 ? 1 : 0);
    mask.forbid_all();
    EXPECT_EQ(mask.count(), 0);
  }
}

TEST(token_mask, copies_what_it_allows) {
  std::mt19937 random(1);
  for (const std::size_t size : {std::size_t{1}, std::size_t{31}, std::size_t{32}, std::size_t{33}, std::size_t{500}}) {
    TokenMask mask(static_cast<int>(size) + 7);
    mask.allow_all();
    for (std::size_t i = 64; i < size; ++i) mask.set(static_cast<int>(i), i < 128 ? false : random() % 2 == 0);
    std::vector<float> scores(size), out(size, 99.0f);
    std::iota(scores.begin(), scores.end(), 1.0f);
    copy_allowed(scores, mask.words(), out);
    for (std::size_t i = 0; i < size; ++i) EXPECT_EQ(out[i], mask.allows(static_cast<int>(i)) ? scores[i] : -kInfinity) << i;
  }
}

// Masks of every density, over every way of choosing: the same as if the forbidden logits were minus infinity.
TEST(token_constraint, a_mask_equals_logits_of_minus_infinity) {
  constexpr int kWide = 4000;
  std::mt19937 random(7);
  std::normal_distribution<float> normal(0, 2);
  std::vector<SamplingParams> sets(5);
  sets[0].temperature = 0;
  sets[2] = {.temperature = 0.8, .top_k = 20, .top_p = 0.9};
  sets[3] = {.top_p = 0.7, .min_p = 0.01};
  sets[4] = {.temperature = 0.7, .repetition_penalty = 1.2, .logit_bias = {{5, 3.0}, {3999, 5.0}}};
  const SampleableIds ids{kWide, kWide - 50, {17, 18}};
  for (const int allowed_count : {1, 2, 30, 125, 126, 2000, 3999}) {
    for (const SamplingParams& params : sets) {
      std::vector<float> logits(kWide);
      for (float& x : logits) x = normal(random);
      TokenMask mask(kWide);
      mask.set(40, true);
      while (mask.count() < allowed_count) mask.set(static_cast<int>(random() % kWide), true);
      std::vector<float> cut = logits;
      for (int id = 0; id < kWide; ++id)
        if (!mask.allows(id)) cut[static_cast<std::size_t>(id)] = -kInfinity;
      const std::vector<int> prompt{1, 2, 40};
      Sampler masked(params, ids, prompt), plain(params, ids, prompt);
      for (int position = 0; position < 40; ++position) {
        const int id = masked.sample(logits, position, &mask).id;
        EXPECT_TRUE(mask.allows(id) && id < ids.limit && id != 17 && id != 18);
        EXPECT_EQ(id, plain.sample(cut, position).id) << allowed_count << " allowed";
      }
    }
  }
}

TEST(token_constraint, logprobs_stay_those_of_the_raw_row) {
  std::vector<float> logits(kVocab, 0.0f);
  logits[3] = 5;
  logits[4] = 4;
  SamplingParams params;
  params.temperature = 0;
  params.logprobs = 2;
  TokenMask mask(kVocab);
  mask.set(4, true);
  const double total = std::log(std::exp(5.0) + std::exp(4.0) + kVocab - 2);
  for (const SampleableIds& ids : {SampleableIds::all(kVocab), SampleableIds{kVocab, kVocab, {9}}}) {
    Sampler sampler(params, ids, {});
    for (const SampledToken& token : {sampler.sample(logits, 0, &mask), sampler.force(logits, 0, 4)}) {
      EXPECT_EQ(token.id, 4);
      EXPECT_NEAR(token.logprob->logprob, 4 - total, 1e-5);
      ASSERT_EQ(token.top.size(), 2u);
      EXPECT_EQ(token.top[0].id, 3) << "the model's best, allowed or not";
    }
  }
}

TEST(token_constraint, nothing_allowed_is_an_error_of_the_request) {
  const std::vector<float> logits(kVocab, 1.0f);
  TokenMask none(kVocab), hole(kVocab);
  hole.set(9, true);
  SamplingParams biased;
  biased.logit_bias = {{1, 1.0}};
  for (const SamplingParams& params : {SamplingParams{}, biased}) {
    Sampler sampler(params, SampleableIds{kVocab, kVocab, {9}}, {});
    EXPECT_THROW(sampler.sample(logits, 3, &none), ConstraintError);
    EXPECT_THROW(sampler.sample(logits, 3, &hole), ConstraintError);
  }
  const std::vector<float> bad(kVocab, std::nanf(""));
  EXPECT_THROW(Sampler({}, SampleableIds::all(kVocab), {}).force(bad, 0, 1), NumericError);

  // Two choices with nothing in common.
  EXPECT_EQ(
      message_of([] {
        generated(request_of({1}, {choice({{5, 6}, {7}}), choice({{8}, {9}})}), hashed_script(kStop));
      }),
      "no token is allowed at position 1: the constraints of the answer (choice, choice) exclude one another, or all that they leave");
  EXPECT_EQ(message_of([] {
              generated(request_of({1}, {choice({{5, 6}}), choice({{8}})}), hashed_script(kStop));
            }),
            "the constraints of the answer (choice, choice) force different tokens: ids 5 and 8");
  EXPECT_EQ(message_of([] {
              generated(request_of({1}, {choice({{5, 6}}), choice({{8}, {9}})}), hashed_script(kStop));
            }),
            "the constraints of the answer (choice, choice) force token id 5 and forbid it");
}

TEST(token_constraint, a_request_that_leaves_no_token_fails_alone_in_a_batch) {
  ScriptedBackend backend({.vocab_size = kVocab, .num_slots = 4}, hashed_script(kStop));
  StatePool pool(backend);
  EngineCore core(pool, nullptr, {});
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  EngineRequest good;
  good.generation = request_of({4, 5}, {choice({{5, 6, 7}, {5, 9}, {10, 11}})});
  EngineRequest bad;
  bad.generation = request_of({4, 5, 6}, {choice({{5, 6, 7}, {5, 9}}), choice({{5, 8}, {5, 10}})});
  for (const EngineRequest& request : {good, bad, good}) {
    core.check(request);
    sinks.push_back(std::make_shared<RecordingSink>());
    core.add(sinks.size(), request, sinks.back(), EngineCore::Clock::now());
  }
  while (!core.idle()) core.step();
  ASSERT_TRUE(sinks[1]->failed && sinks[0]->finished && sinks[2]->finished);
  EXPECT_EQ(sinks[1]->failed->kind, EngineErrorKind::kInput);
  EXPECT_NE(sinks[1]->failed->message.find("no token is allowed at position 4"), std::string::npos) << sinks[1]->failed->message;
  EXPECT_EQ(sinks[1]->choices[0].ids, std::vector<int>{5}) << "the token that was common came before";
  EXPECT_EQ(pool.free_slots(), 4);
}

TEST(token_constraint, min_tokens_holds_back_stop_ids) {
  const auto script = [](std::span<const int>, std::span<float> logits) {
    logits[kStop] = 9;
    logits[7] = 3;
  };
  for (const int min_tokens : {0, 1, 5}) {
    GenerationRequest request = request_of({1, 2});
    request.min_tokens = min_tokens;
    const GenerationResult result = generated(request, script);
    std::vector<int> expected(static_cast<std::size_t>(min_tokens), 7);
    expected.push_back(kStop);
    EXPECT_EQ(result.ids, expected);
    EXPECT_EQ(result.finish, FinishReason::kStop);
  }
  GenerationRequest request = request_of({1, 2});
  request.min_tokens = 6;
  request.max_tokens = 5;
  EXPECT_EQ(message_of([&] { generated(request, script); }), "min_tokens must be at most max_tokens, got 6 and 5");
  request.min_tokens = -1;
  EXPECT_EQ(message_of([&] { generated(request, script); }), "min_tokens must be at least 0, got -1");
  request = request_of({1, 2}, {nullptr});
  EXPECT_EQ(message_of([&] { generated(request, script); }), "a constraint of the answer is missing");
}

TEST(fixed_choice, the_answer_is_one_of_them) {
  const std::vector<std::vector<int>> choices{{5, 6, 7}, {5, 9}, {20, 21, 22, 23}, {30}};
  std::vector<int> seen(choices.size(), 0);
  for (int seed = 0; seed < 60; ++seed) {
    GenerationRequest request = request_of({1, 2, seed % 50}, {choice(choices)});
    request.sampling.temperature = 1.0;
    request.sampling.seed = static_cast<std::uint64_t>(seed);
    if (seed % 2 == 0) request.stop_ids = {};
    const GenerationResult result = generated(request, hashed_script(kStop));
    const auto found = std::find(choices.begin(), choices.end(), result.ids);
    ASSERT_NE(found, choices.end());
    EXPECT_EQ(result.finish, FinishReason::kStop);
    ++seen[static_cast<std::size_t>(found - choices.begin())];
  }
  for (const int count : seen) EXPECT_GT(count, 0);
}

TEST(fixed_choice, one_that_begins_another_may_end_or_go_on) {
  for (const int then : {kStop, 6}) {
    const auto script = answer_script(1, {5, then}, 0);
    const GenerationResult result = generated(request_of({1}, {choice({{5}, {5, 6}})}), script);
    EXPECT_EQ(result.ids, (std::vector<int>{5, then}));
    EXPECT_EQ(result.finish, FinishReason::kStop);
  }
  // The model prefers anything else to both: the better of the two comes.
  const auto aside = [](std::span<const int>, std::span<float> logits) {
    logits[40] = 20;
    logits[kStop] = 2;
  };
  EXPECT_EQ(generated(request_of({1}, {choice({{5}, {5, 6}})}), aside).ids, (std::vector<int>{5, kStop}));
}

TEST(fixed_choice, what_is_common_is_forced) {
  FixedChoice fixed({{5, 6, 7}, {5, 6, 8, 9}});
  EXPECT_EQ(std::vector<int>(fixed.forced().begin(), fixed.forced().end()), (std::vector<int>{5, 6}));
  const auto copy = fixed.clone();
  fixed.accept(5);
  fixed.accept(6);
  EXPECT_TRUE(fixed.forced().empty());
  fixed.accept(8);
  EXPECT_EQ(std::vector<int>(fixed.forced().begin(), fixed.forced().end()), std::vector<int>{9});
  EXPECT_FALSE(fixed.may_end());
  fixed.accept(9);
  EXPECT_TRUE(fixed.may_end() && fixed.must_end() && fixed.forced().empty());
  EXPECT_EQ(copy->forced().size(), 2u) << "a copy is its own";
  EXPECT_THROW(copy->accept(9), InternalError);

  FixedChoice shorter({{5, 6, 7}, {5}});
  EXPECT_EQ(shorter.forced().size(), 1u);
  shorter.accept(5);
  EXPECT_TRUE(shorter.may_end() && !shorter.must_end() && shorter.forced().empty());
}

TEST(fixed_choice, lists_are_checked) {
  const auto message = [](std::vector<std::vector<int>> choices) { return message_of([&] { FixedChoice(choices).check(kVocab); }); };
  EXPECT_EQ(message({{1}, {2, 3}}), "");
  EXPECT_EQ(message({}), "choice: at least one is needed");
  EXPECT_EQ(message({{1}, {}}), "choice 1 is empty: at least one token is needed");
  EXPECT_EQ(message({{1}, {2, kVocab}}), "choice 1: token id 64 is outside the vocabulary [0, 64)");
  EXPECT_EQ(message({{-1}}), "choice 0: token id -1 is outside the vocabulary [0, 64)");
}

TEST(thinking_budget, the_phrase_comes_after_so_many_tokens) {
  const std::vector<int> phrase{50, 51, kEndThink, 52};
  const auto script = answer_script(2, {}, 7);  // thinks for ever
  for (const int budget : {0, 1, 6}) {
    GenerationRequest request = request_of({1, kThink}, {thinking_budget(budget, phrase)});
    request.max_tokens = budget + 7;
    std::vector<int> expected(static_cast<std::size_t>(budget), 7);
    expected.insert(expected.end(), phrase.begin(), phrase.end());
    expected.insert(expected.end(), 3, 7);
    EXPECT_EQ(generated(request, script).ids, expected) << "budget " << budget;
  }
}

TEST(thinking_budget, thinking_that_ends_in_time_is_left_alone) {
  const std::vector<int> answer{7, 7, kEndThink, 8, 8, 8, 8, 8, 8, kStop};
  EXPECT_EQ(generated(request_of({1, kThink}, {thinking_budget(3, {50, kEndThink})}), answer_script(2, answer, 0)).ids, answer);
  const std::vector<int> none{8, 8, 8, 8, 8, kStop};
  EXPECT_EQ(generated(request_of({1, 2}, {thinking_budget(3, {50, kEndThink}, false)}), answer_script(2, none, 0)).ids, none);
}

TEST(thinking_budget, counts_over_all_stretches_of_thinking) {
  // Out, in for one token, out, in again for two: then the budget of three is spent.
  const std::vector<int> answer{8, kThink, 7, kEndThink, 8, kThink, 7, 7};
  GenerationRequest request = request_of({1, 2}, {thinking_budget(3, {50, kEndThink}, false)});
  request.max_tokens = 14;
  std::vector<int> expected = answer;
  for (const int id : {50, kEndThink, kThink, 50, kEndThink, kThink}) expected.push_back(id);
  EXPECT_EQ(generated(request, answer_script(2, answer, kThink)).ids, expected) << "and the next time the phrase comes at once";
}

TEST(thinking_budget, no_stop_id_cuts_the_phrase) {
  const auto script = [](std::span<const int> history, std::span<float> logits) { logits[history.size() > 4 ? kStop : 7] = 9; };
  const GenerationResult result = generated(request_of({1, kThink}, {thinking_budget(2, {50, kEndThink})}), script);
  EXPECT_EQ(result.ids, (std::vector<int>{7, 7, 50, kEndThink, kStop}));
}

TEST(thinking_budget, options_are_checked) {
  const auto message = [](int budget, std::vector<int> phrase) {
    return message_of([&] { thinking_budget(budget, std::move(phrase))->check(kVocab); });
  };
  EXPECT_EQ(message(0, {kEndThink}), "");
  EXPECT_EQ(message(-1, {kEndThink}), "the thinking budget must be at least 0 tokens, got -1");
  EXPECT_EQ(message(1, {50}), "the end phrase of the thinking budget does not end the thinking: it has no token id 61");
  EXPECT_EQ(message(1, {kThink, kEndThink}), "the end phrase of the thinking budget begins to think: it has token id 60");
  EXPECT_EQ(message(1, {64, kEndThink}), "end phrase of the thinking budget: token id 64 is outside the vocabulary [0, 64)");
}

TEST(after_thinking, a_choice_begins_where_the_thinking_ends) {
  const auto after = [](std::vector<std::vector<int>> choices) {
    return std::make_shared<AfterThinking>(choice(std::move(choices)), kEndThink, std::vector<int>{52});
  };
  const std::vector<int> thinks{7, kStop, 7, kEndThink, 9, 9, 9};
  const auto script = answer_script(2, thinks, 9);
  // The stop id is not allowed inside: nothing is answered yet. Token 0 comes in its place.
  EXPECT_EQ(generated(request_of({1, kThink}, {after({{20, 21}, {30}})}), script).ids, (std::vector<int>{7, 0, 7, kEndThink, 52, 20, 21}));
  // With a budget beside it, whose phrase ends in the same separator.
  const TokenConstraints both{thinking_budget(1, {50, kEndThink, 52}), after({{20, 21}, {30}})};
  EXPECT_EQ(generated(request_of({1, kThink}, both), script).ids, (std::vector<int>{7, 50, kEndThink, 52, 20, 21}));
  EXPECT_EQ(message_of([&] { after({{64}})->check(kVocab); }), "choice 0: token id 64 is outside the vocabulary [0, 64)");
}

TEST(token_constraint, choices_of_a_request_have_their_own_copies) {
  ScriptedBackend backend({.vocab_size = kVocab, .num_slots = 3}, hashed_script(kStop));
  StatePool pool(backend);
  EngineCore core(pool, nullptr, {});
  EngineRequest request;
  request.generation = request_of({9, 2, 3}, {choice({{5, 6, 7}, {8, 9, 10}, {11, 12, 13}})});
  request.generation.sampling.temperature = 1.0;
  request.num_choices = 8;
  for (std::uint64_t id = 1; id <= 2; ++id) {
    const auto sink = std::make_shared<RecordingSink>(8);
    core.add(id, request, sink, EngineCore::Clock::now());
    while (!core.idle()) core.step();
    ASSERT_TRUE(sink->finished) << sink->failed->message;
    for (const auto& answer : sink->choices) EXPECT_EQ(answer.ids.size(), 3u);
    const auto& first = sink->choices[0].ids;
    EXPECT_TRUE(std::any_of(sink->choices.begin(), sink->choices.end(), [&](const auto& answer) { return answer.ids != first; }));
  }
}

// The bound is loose on purpose; the measured times are in the report. Under a sanitizer nothing is measured.
TEST(token_constraint, masks_of_the_largest_vocabulary_are_fast) {
  constexpr int kRepeats = testing::kSanitized ? 2 : 200;
  constexpr int kLarge = 248320;
  std::mt19937 random(3);
  std::vector<float> logits(kLarge);
  std::normal_distribution<float> normal(0, 2.5f);
  for (float& x : logits) x = normal(random);
  TokenMask full(kLarge), most(kLarge), half(kLarge), few(kLarge);
  full.allow_all();
  most.allow_all();
  most.set(kLarge / 2, false);
  for (int id = 0; id < kLarge; id += 2) half.set(id, true);
  for (int id = 0; id < kLarge; id += 1000) few.set(id, true);
  const std::vector<std::pair<const char*, const TokenMask*>> masks{
      {"none", nullptr}, {"full", &full}, {"all but one", &most}, {"half", &half}, {"few", &few}};
  SamplingParams greedy;
  greedy.temperature = 0;
  for (const auto& [sampling, params] : {std::pair("greedy", greedy), std::pair("top-k 20", SamplingParams{.top_k = 20, .top_p = 0.95})}) {
    for (const auto& [name, mask] : masks) {
      Sampler sampler(params, SampleableIds::all(kLarge), {});
      sampler.sample(logits, 0, mask);
      double best = 1e9;
      for (int repeat = 0; repeat < kRepeats; ++repeat) {
        const auto start = std::chrono::steady_clock::now();
        sampler.sample(logits, repeat, mask);
        best = std::min(best, std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count());
      }
      std::printf("[   time   ] %-9s %-12s %8.1f us\n", sampling, name, best);
      if (!testing::kSanitized) {
        EXPECT_LT(best, 50000) << name;
      }
    }
  }
}

}  // namespace
}  // namespace tetrad::token_constraint_test
