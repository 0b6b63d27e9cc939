// Random schedules of the engine: whatever shares the batch, is cancelled, preempted or reused, a request's tokens are those of the
// generator alone, it has one end, and everything is given back.
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <random>

#include "engine/engine_core.h"
#include "engine/generator.h"
#include "support/engine_rig.h"
#include "support/loaded_model.h"

namespace tetrad::engine_test {
namespace {

using testing::RecordingSink;
using testing::ScriptedBackend;

struct Submitted {
  EngineRequest request;
  std::shared_ptr<RecordingSink> sink;
  bool cancelled = false;

  bool may_fail() const { return sink->refuse_at >= 0 || sink->throw_at >= 0; }
};

// Prompts come in families with common beginnings, so that the cache has something to do.
EngineRequest random_request(std::mt19937& random, int vocab_size, int longest, int shared, int stop) {
  std::mt19937 family(random() % 3);
  EngineRequest request;
  const int length = 1 + static_cast<int>(random() % static_cast<unsigned>(longest));
  const int common = std::max(shared, static_cast<int>(random() % static_cast<unsigned>(length + 1)));
  for (int i = 0; i < length; ++i) {
    std::mt19937& source = i < common ? family : random;
    request.generation.prompt_ids.push_back(static_cast<int>(source() % static_cast<unsigned>(vocab_size - 3)));
  }
  request.generation.sampling.temperature = random() % 2 == 0 ? 0.0 : 0.9;
  request.generation.sampling.seed = random() % 5;
  if (random() % 4 == 0) request.generation.sampling.frequency_penalty = 0.5;
  request.generation.stop_ids = {stop};
  request.generation.max_tokens = 1 + static_cast<int>(random() % 40);
  request.num_choices = random() % 5 == 0 ? 1 + static_cast<int>(random() % 4) : 1;
  request.cache_salt = random() % 4 == 0 ? "other" : "";
  request.reuse_prefix = random() % 6 != 0;
  request.generation.prompt_logprobs = random() % 4 == 0 ? static_cast<int>(random() % 4) : -1;
  request.generation.prompt_only = random() % 8 == 0;
  if (request.generation.prompt_only) {
    request.generation.max_tokens = 0;
    return request;
  }
  const int v = vocab_size;
  if (random() % 4 == 0)
    request.generation.min_tokens = 1 + static_cast<int>(random() % static_cast<unsigned>(request.generation.max_tokens));
  if (random() % 8 == 0)
    request.generation.constraints.push_back(std::make_shared<FixedChoice>(std::vector<std::vector<int>>{{1, 2, 3}, {1, 2, 4, 5}, {6}}));
  else if (random() % 4 == 0)
    request.generation.constraints.push_back(std::make_shared<ThinkingBudget>(
        ThinkingBudget::Options{v / 2, v / 3, random() % 2 == 0, static_cast<int>(random() % 6), {4, v / 3, 5}}));
  return request;
}

GenerationResult alone(Backend& backend, const EngineRequest& request, int choice) {
  StatePool pool(backend);
  SequenceState state(pool);
  GenerationRequest generation = request.generation;
  generation.sampling.seed = choice_seed(generation.sampling.seed, choice);
  return Generator(pool).generate(state, generation);
}

bool same_bits(float a, float b) { return std::memcmp(&a, &b, sizeof(float)) == 0; }

void expect_same_logprobs(const std::vector<SampledToken>& got, const std::vector<SampledToken>& expected) {
  ASSERT_LE(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(got[i].logprob.has_value(), expected[i].logprob.has_value());
    if (!got[i].logprob) continue;
    EXPECT_EQ(got[i].id, expected[i].id) << "token " << i;
    EXPECT_TRUE(same_bits(got[i].logprob->logprob, expected[i].logprob->logprob)) << "token " << i;
    ASSERT_EQ(got[i].top.size(), expected[i].top.size());
    for (std::size_t t = 0; t < got[i].top.size(); ++t)
      EXPECT_TRUE(got[i].top[t].id == expected[i].top[t].id && same_bits(got[i].top[t].logprob, expected[i].top[t].logprob));
  }
}

// Whatever the chunks were and whatever shared them: `expected` was computed alone.
void check_prompt_scores(const Submitted& submitted, const GenerationResult& expected) {
  const RecordingSink& sink = *submitted.sink;
  const GenerationRequest& generation = submitted.request.generation;
  if (sink.finished && !submitted.cancelled) {
    EXPECT_EQ(sink.prompt_scores.size(), generation.prompt_logprobs < 0 ? 0 : generation.prompt_ids.size() - 1);
  }
  expect_same_logprobs(sink.prompt_scores, expected.prompt_scores);
}

void check(Backend& solo, const Submitted& submitted) {
  const RecordingSink& sink = *submitted.sink;
  ASSERT_EQ(sink.terminals, 1);
  ASSERT_TRUE(sink.finished || submitted.may_fail()) << sink.failed->message;
  for (int c = 0; c < submitted.request.num_choices; ++c) {
    const RecordingSink::Answer& answer = sink.choices[static_cast<std::size_t>(c)];
    const GenerationResult expected = alone(solo, submitted.request, c);
    if (!answer.finish || answer.finish == FinishReason::kCancelled) {
      ASSERT_TRUE(submitted.cancelled || sink.failed);
      ASSERT_LE(answer.ids.size(), expected.ids.size());
      EXPECT_TRUE(std::equal(answer.ids.begin(), answer.ids.end(), expected.ids.begin())) << "before the end";
    } else {
      EXPECT_EQ(answer.ids, expected.ids) << "choice " << c;
      EXPECT_EQ(answer.finish, expected.finish);
    }
    if (c == 0) check_prompt_scores(submitted, expected);
    if (submitted.request.generation.sampling.logprobs) expect_same_logprobs(answer.tokens, expected.tokens);
  }
}

TEST(engine, random_schedules_over_a_scripted_backend) {
  constexpr int kVocab = 64, kStop = 63;
  std::uint64_t preemptions = 0, reused = 0, cancels = 0, demotions = 0, failures = 0;
  for (unsigned seed = 0; seed < 150; ++seed) {
    std::mt19937 random(seed);
    const ScriptedBackend::Sizes sizes{.vocab_size = kVocab,
                                       .max_positions = 160,
                                       .num_slots = 2 + static_cast<int>(random() % 8),
                                       .num_pages = 12 + static_cast<int>(random() % 20),
                                       .max_rows = 1 + static_cast<int>(random() % 40)};
    EngineOptions options;
    options.snapshot_slots = static_cast<int>(random() % static_cast<unsigned>(sizes.num_slots));
    options.host_cache_bytes = (random() % 3) * 8000;
    options.max_prefill_rows = static_cast<int>(random() % 3) * 7;
    options.max_scored_rows = 1 + static_cast<int>(random() % 20);
    options.snapshots = {.interval_tokens = 8 << (random() % 3), .max_points = static_cast<int>(random() % 4)};
    ScriptedBackend backend(sizes, testing::hashed_script(kStop)), solo(sizes, testing::hashed_script(kStop));
    StatePool pool(backend);
    std::map<std::uint64_t, Submitted> all;
    {
      EngineCore core(pool, nullptr, options);
      const std::uint64_t total = 25;
      for (std::uint64_t next = 1; next <= total || !core.idle();) {
        ASSERT_LT(backend.steps, 20000) << "seed " << seed << ": no end";
        while (next <= total && random() % 3 == 0) {
          Submitted submitted{random_request(random, kVocab, 80, 0, kStop), nullptr};
          submitted.request.generation.max_length = core.context_tokens();  // the pages may hold less than the model
          submitted.sink = std::make_shared<RecordingSink>(submitted.request.num_choices);
          if (random() % 10 == 0) submitted.sink->refuse_at = static_cast<int>(random() % 60);
          if (random() % 10 == 0) submitted.sink->throw_at = static_cast<int>(random() % 60);
          ASSERT_NO_THROW(core.check(submitted.request));
          core.add(next, submitted.request, submitted.sink, EngineCore::Clock::now());
          all[next++] = submitted;
        }
        if (random() % 25 == 0 && next > 1) {
          const std::uint64_t id = 1 + random() % (next - 1);
          all[id].cancelled = true;
          cancels += all[id].sink->ended() ? 0 : 1;
          core.cancel(id);
          ASSERT_TRUE(all[id].sink->ended());
        }
        core.step();
      }
      const EngineStats stats = core.stats();
      std::uint64_t failed = 0;
      for (const std::uint64_t count : stats.failed) failed += count;
      EXPECT_EQ(stats.finished + failed, total);
      failures += failed;
      EXPECT_EQ(stats.requests_running + stats.requests_waiting + stats.sequences_running + stats.sequences_waiting, 0);
      EXPECT_EQ(stats.slots_taken, stats.prefix_cache.device_entries);
      EXPECT_EQ(stats.pages_taken, stats.prefix_cache.device_pages);
      EXPECT_LE(stats.prefix_cache.host_bytes, options.host_cache_bytes);
      preemptions += stats.preemptions;
      reused += stats.cached_tokens;
      demotions += stats.prefix_cache.demotions;
    }
    EXPECT_EQ(pool.free_slots(), sizes.num_slots);
    EXPECT_EQ(pool.free_pages(), sizes.num_pages);
    for (const auto& [id, submitted] : all) {
      SCOPED_TRACE("seed " + std::to_string(seed) + ", request " + std::to_string(id));
      check(solo, submitted);
      if (HasFatalFailure() || HasNonfatalFailure()) return;
    }
  }
  EXPECT_GT(preemptions, 100u);
  EXPECT_GT(reused, 1000u);
  EXPECT_GT(cancels, 30u);
  EXPECT_GT(demotions, 100u);
  EXPECT_GT(failures, 100u);
}

// The same with the arithmetic of a model, to the bit of the log probabilities.
TEST(engine, random_schedules_over_the_reference_backend) {
  // Pages of 64 tokens: 6 of them hold two or three of these sequences, not the four or more that have a slot.
  const BackendOptions small{.num_slots = 7, .max_tokens = 1, .max_rows = 96, .num_threads = 2};
  test::LoadedModel model(test::golden_directory("rand-small"), small);
  test::LoadedModel solo(test::golden_directory("rand-small"), {.num_slots = 1, .max_tokens = 512, .max_rows = 96, .num_threads = 2});
  constexpr std::uint64_t kTotal = 14;
  std::uint64_t preemptions = 0, reused = 0;
  for (unsigned seed = 0; seed < 4; ++seed) {
    std::mt19937 random(100 + seed);
    EngineOptions options;
    options.snapshot_slots = seed % 2 == 0 ? 0 : 3;
    options.host_cache_bytes = seed == 3 ? 1 << 26 : 0;
    options.snapshots.interval_tokens = 64;
    std::map<std::uint64_t, Submitted> all;
    {
      EngineCore core(*model.pool, nullptr, options);
      for (std::uint64_t next = 1; next <= kTotal || !core.idle();) {
        if (next <= kTotal && random() % 8 == 0) {
          Submitted submitted{random_request(random, model.config.vocab_size, 120, 70, 1), nullptr};
          submitted.request.generation.stop_ids = {};
          if (!submitted.request.generation.prompt_only) submitted.request.generation.max_tokens += 20;
          submitted.request.generation.sampling.logprobs = 0;
          submitted.sink = std::make_shared<RecordingSink>(submitted.request.num_choices);
          core.add(next, submitted.request, submitted.sink, EngineCore::Clock::now());
          all[next++] = submitted;
        }
        core.step();
      }
      preemptions += core.stats().preemptions;
      reused += core.stats().cached_tokens;
    }
    EXPECT_EQ(model.pool->free_slots(), model.backend->num_slots());
    EXPECT_EQ(model.pool->free_pages(), model.backend->num_pages());
    for (const auto& [id, submitted] : all) {
      SCOPED_TRACE("seed " + std::to_string(seed) + ", request " + std::to_string(id));
      check(*solo.backend, submitted);
    }
  }
  EXPECT_GT(preemptions, 0u);
  EXPECT_GT(reused, 0u);
}

// Agents' turns in several conversations that push each other out of the device's tier, then the first turn again.
TEST(engine, long_conversations_stay_right_and_mostly_cached) {
  test::LoadedModel model(test::golden_directory("rand-small"), {.num_slots = 6, .max_tokens = 1500, .max_rows = 64, .num_threads = 2});
  test::LoadedModel solo(test::golden_directory("rand-small"), {.num_slots = 1, .max_tokens = 1500, .max_rows = 64, .num_threads = 2});
  EngineOptions options;
  options.snapshot_slots = 4;
  options.host_cache_bytes = std::size_t{1} << 28;
  EngineCore core(*model.pool, nullptr, options);
  constexpr int kConversations = 3, kTurns = 12;
  std::vector<std::vector<int>> conversations;
  for (unsigned c = 0; c < kConversations; ++c) conversations.push_back(test::random_ids(70, model.config.vocab_size, c));
  const auto request_for = [](const std::vector<int>& prompt) {
    EngineRequest request;
    request.generation.prompt_ids = prompt;
    request.generation.sampling.temperature = 0;
    request.generation.sampling.logprobs = 0;
    request.generation.max_tokens = 12;
    return request;
  };
  const EngineRequest first_turn = request_for(conversations[0]);
  std::uint64_t id = 0;
  for (unsigned turn = 0; turn < kTurns; ++turn) {
    std::vector<Submitted> all;
    for (const std::vector<int>& prompt : conversations) {
      all.push_back({request_for(prompt), std::make_shared<RecordingSink>()});
      core.add(++id, all.back().request, all.back().sink, EngineCore::Clock::now());
    }
    while (!core.idle()) core.step();
    for (std::size_t c = 0; c < all.size(); ++c) {
      SCOPED_TRACE("turn " + std::to_string(turn) + " of " + std::to_string(c));
      check(*solo.backend, all[c]);
      std::vector<int>& conversation = conversations[c];
      if (turn > 0) {
        EXPECT_EQ(all[c].sink->started->cached_tokens, static_cast<int>(conversation.size()) - 10);
      }
      const std::vector<int>& answer = all[c].sink->choices[0].ids;
      conversation.insert(conversation.end(), answer.begin(), answer.end());
      const std::vector<int> question = test::random_ids(9, model.config.vocab_size, 100 + turn);
      conversation.insert(conversation.end(), question.begin(), question.end());
    }
  }
  Submitted again{first_turn, std::make_shared<RecordingSink>()};
  core.add(++id, again.request, again.sink, EngineCore::Clock::now());
  while (!core.idle()) core.step();
  check(*solo.backend, again);
  EXPECT_GT(core.stats().prefix_cache.demotions, 20u);
}

}  // namespace
}  // namespace tetrad::engine_test
