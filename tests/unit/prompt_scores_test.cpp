// Log probabilities of prompts, by a generator alone and in the engine.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "engine/engine_core.h"
#include "engine/generator.h"
#include "support/engine_rig.h"
#include "support/loaded_model.h"

namespace tetrad::prompt_scores_test {
namespace {

using testing::hashed_script;
using testing::RecordingSink;
using testing::ScriptedBackend;

constexpr int kVocab = 64, kStop = 63;

std::vector<int> counted(int first, int count) {
  std::vector<int> ids;
  for (int i = 0; i < count; ++i) ids.push_back((first + i) % (kVocab - 2));
  return ids;
}

EngineRequest scored(std::vector<int> prompt, int top, bool prompt_only = true) {
  EngineRequest request;
  request.generation.prompt_ids = std::move(prompt);
  request.generation.sampling.temperature = 0;
  request.generation.stop_ids = {kStop};
  request.generation.prompt_logprobs = top;
  request.generation.prompt_only = prompt_only;
  request.generation.max_tokens = prompt_only ? 0 : 5;
  return request;
}

struct Rig {
  explicit Rig(ScriptedBackend::Sizes sizes = {}, EngineOptions options = {}, ScriptedBackend::Script script = hashed_script(kStop))
      : backend(with_vocab(sizes), script), pool(backend), core(std::in_place, pool, nullptr, options) {
    backend.before_step = [this](const StepBatch& batch) { most_logit_rows = std::max(most_logit_rows, batch.logit_rows.size()); };
  }
  static ScriptedBackend::Sizes with_vocab(ScriptedBackend::Sizes sizes) {
    sizes.vocab_size = kVocab;
    return sizes;
  }
  std::shared_ptr<RecordingSink> add(EngineRequest request) {
    auto sink = std::make_shared<RecordingSink>(request.num_choices);
    core->add(++last_id, std::move(request), sink, EngineCore::Clock::now());
    return sink;
  }
  void run() {
    for (int i = 0; i < 10000 && !core->idle(); ++i) core->step();
    EXPECT_TRUE(core->idle());
  }
  ScriptedBackend backend;
  StatePool pool;
  std::optional<EngineCore> core;
  std::size_t most_logit_rows = 0;
  std::uint64_t last_id = 0;
};

double log_softmax(std::span<const float> row, int id) {
  const double best = *std::max_element(row.begin(), row.end());
  double total = 0;
  for (const float x : row) total += std::exp(x - best);
  return row[static_cast<std::size_t>(id)] - best - std::log(total);
}

TEST(prompt_scores, are_the_log_softmax_of_the_logits_of_a_model) {
  test::LoadedModel model(test::golden_directory("rand-small"), {.num_slots = 4, .max_tokens = 1024, .max_rows = 100, .num_threads = 2});
  const auto vocab = static_cast<std::size_t>(model.config.vocab_size);
  const std::vector<int> prompt = test::random_ids(170, model.config.vocab_size, 5);
  std::vector<float> logits;
  {
    SequenceState state(*model.pool);
    logits = model.feed(state, prompt, 33);
  }
  SequenceState state(*model.pool);
  const GenerationResult result = Generator(*model.pool).generate(state, scored(prompt, 3).generation);
  EXPECT_EQ(result.finish, FinishReason::kLength);
  EXPECT_TRUE(result.ids.empty());
  EXPECT_EQ(state.length(), 170);
  ASSERT_EQ(result.prompt_scores.size(), 169u);
  for (std::size_t i = 0; i < result.prompt_scores.size(); ++i) {
    const auto row = std::span<const float>(logits).subspan(i * vocab, vocab);
    const SampledToken& token = result.prompt_scores[i];
    EXPECT_EQ(token.id, prompt[i + 1]);
    EXPECT_EQ(token.logprob->id, prompt[i + 1]);
    EXPECT_NEAR(token.logprob->logprob, log_softmax(row, prompt[i + 1]), 2e-6) << "row " << i;
    ASSERT_EQ(token.top.size(), 3u);
    EXPECT_EQ(token.top[0].id, std::max_element(row.begin(), row.end()) - row.begin());
    for (const TokenLogprob& top : token.top) EXPECT_NEAR(top.logprob, log_softmax(row, top.id), 2e-6);
  }
}

TEST(prompt_scores, come_in_pieces_whose_logits_have_a_bound) {
  Rig rig({.num_slots = 4, .max_rows = 64}, {.max_scored_rows = 16});
  const auto sink = rig.add(scored(counted(1, 100), 2, false));
  rig.run();
  ASSERT_TRUE(sink->finished);
  EXPECT_TRUE(sink->scored);
  EXPECT_EQ(sink->prompt_scores.size(), 99u);
  EXPECT_EQ(sink->score_pieces, 7) << "16 rows each";
  EXPECT_EQ(rig.most_logit_rows, 16u);
  EXPECT_FALSE(sink->choices[0].ids.empty());
  EXPECT_EQ(sink->finished->usage.completion_tokens, static_cast<int>(sink->choices[0].ids.size()));

  std::vector<std::shared_ptr<RecordingSink>> sinks;
  for (int i = 0; i < 4; ++i) sinks.push_back(rig.add(scored(counted(i, 100), 0)));
  rig.run();
  EXPECT_EQ(rig.most_logit_rows, 16u) << "of all prompts together";
  for (const auto& each : sinks) EXPECT_EQ(each->prompt_scores.size(), 99u);
}

TEST(prompt_scores, a_prompt_alone_ends_without_a_token_and_may_fill_the_context) {
  Rig rig({.max_positions = 40, .num_pages = 5});
  EngineRequest request = scored(counted(1, 40), 1);
  request.num_choices = 3;
  EXPECT_NO_THROW(rig.core->check(request));
  const auto sink = rig.add(request);
  rig.run();
  ASSERT_TRUE(sink->finished) << sink->failed->message;
  EXPECT_EQ(sink->finished->reasons, std::vector<FinishReason>(3, FinishReason::kLength));
  EXPECT_EQ(sink->finished->usage.completion_tokens, 0);
  EXPECT_EQ(sink->finished->usage.prompt_tokens, 40);
  EXPECT_EQ(sink->prompt_scores.size(), 39u);

  const auto one = rig.add(scored({7}, 1));
  rig.run();
  EXPECT_TRUE(one->finished);
  EXPECT_EQ(one->score_pieces, 0) << "the first token has no score";

  request.generation.prompt_ids.push_back(1);
  try {
    rig.core->check(request);
    FAIL() << "41 tokens in a context of 40";
  } catch (const EngineRefusal& refusal) {
    EXPECT_EQ(refusal.kind(), EngineErrorKind::kPromptTooLong);
    EXPECT_EQ(std::string(refusal.what()), "the prompt has 41 tokens and the context holds 40: shorten the prompt");
  }
  request = scored(counted(1, 40), 1, false);
  EXPECT_THROW(rig.core->check(request), EngineRefusal) << "with an answer it must leave room";
}

TEST(prompt_scores, never_come_from_the_prefix_cache) {
  Rig rig({.num_slots = 8}, {.snapshot_slots = 5});
  EngineRequest plain = scored(counted(1, 40), -1, false);
  rig.add(plain);
  rig.run();
  const auto first = rig.add(scored(counted(1, 40), 1));
  rig.run();
  EXPECT_EQ(first->started->cached_tokens, 0);
  EXPECT_EQ(first->prompt_scores.size(), 39u);
  const auto other = rig.add(plain);
  rig.run();
  EXPECT_EQ(other->started->cached_tokens, 32) << "a request without scores does";

  // A prompt that was only scored is there for those that come after it.
  rig.add(scored(counted(20, 40), 1));
  rig.run();
  const auto after = rig.add(scored(counted(20, 41), -1, false));
  rig.run();
  EXPECT_EQ(after->started->cached_tokens, 40);
}

TEST(prompt_scores, a_preempted_prompt_repeats_none) {
  std::uint64_t preemptions = 0;
  for (const int snapshot_slots : {0, 2}) {
    Rig rig({.num_slots = 6, .num_pages = 10, .max_rows = 12}, {.snapshot_slots = snapshot_slots, .max_scored_rows = 5});
    EngineRequest decoding = scored(counted(1, 10), -1, false);
    decoding.generation.stop_ids = {};
    decoding.generation.max_tokens = 45;
    rig.add(decoding);
    rig.core->step();
    const auto sink = rig.add(scored(counted(5, 50), 1, false));  // the sink checks that the pieces join
    rig.run();
    preemptions += rig.core->stats().preemptions;
    ASSERT_TRUE(sink->finished);
    EXPECT_EQ(sink->prompt_scores.size(), 49u);
  }
  EXPECT_GT(preemptions, 0u);
}

TEST(prompt_scores, a_row_that_is_not_finite_fails_its_own_request) {
  const auto hashed = hashed_script(kStop);
  Rig rig({.num_slots = 6}, {.snapshot_slots = 2}, [=](std::span<const int> history, std::span<float> logits) {
    hashed(history, logits);
    if (history.front() == 9 && history.size() == 12) logits[5] = std::numeric_limits<float>::quiet_NaN();
    if (history.front() == 8 && history.size() == 12) std::fill(logits.begin(), logits.end(), -std::numeric_limits<float>::infinity());
  });
  const auto bad = rig.add(scored(counted(9, 30), 1)), empty = rig.add(scored(counted(8, 30), 1)),
             good = rig.add(scored(counted(1, 30), 1));
  rig.run();
  ASSERT_TRUE(bad->failed && empty->failed && good->finished);
  EXPECT_EQ(bad->failed->kind, EngineErrorKind::kNumeric);
  EXPECT_NE(bad->failed->message.find("position 12"), std::string::npos) << bad->failed->message;
  EXPECT_EQ(empty->failed->kind, EngineErrorKind::kNumeric);
  const EngineStats stats = rig.core->stats();
  EXPECT_EQ(stats.slots_taken, stats.prefix_cache.device_entries);
}

TEST(prompt_scores, a_sink_without_room_fails_its_own_request) {
  Rig rig({.num_slots = 6}, {.snapshot_slots = 2, .max_scored_rows = 8});
  const auto sink = rig.add(scored(counted(9, 30), 1));
  sink->refuse_at = 2;
  rig.run();
  ASSERT_TRUE(sink->failed);
  EXPECT_EQ(sink->failed->kind, EngineErrorKind::kSlowConsumer);
  const EngineStats stats = rig.core->stats();
  EXPECT_EQ(stats.slots_taken, stats.prefix_cache.device_entries);
  EXPECT_EQ(stats.pages_taken, stats.prefix_cache.device_pages);
}

TEST(prompt_scores, ids_without_a_token_are_not_named) {
  GenerationRequest request;
  request.prompt_ids = {0, 5};
  request.prompt_logprobs = 2;
  const std::vector<float> logits{0, 3, 2, 9, 1, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
  PromptScorer scorer(request, SampleableIds{8, 5, {3}});
  const std::vector<SampledToken> scores = scorer.take(logits, 0);
  ASSERT_EQ(scores.size(), 1u);
  EXPECT_FALSE(scorer.pending());
  EXPECT_EQ(scores[0].logprob->id, 5);
  EXPECT_NEAR(scores[0].logprob->logprob, log_softmax(std::span(logits).first(8), 5), 1e-6);
  ASSERT_EQ(scores[0].top.size(), 2u);
  EXPECT_EQ(scores[0].top[0].id, 1);
  EXPECT_EQ(scores[0].top[1].id, 2);
}

TEST(prompt_scores, requests_are_checked) {
  const auto message = [](const GenerationRequest& request) -> std::string {
    try {
      validate(request, kVocab, 10);
    } catch (const InputError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(message(scored(counted(1, 10), 20).generation), "");
  EXPECT_EQ(message(scored(counted(1, 5), 21).generation), "prompt_logprobs must be between 0 and 20, or -1 for none, got 21");
  EXPECT_EQ(message(scored(counted(1, 5), -2).generation), "prompt_logprobs must be between 0 and 20, or -1 for none, got -2");
  GenerationRequest request = scored(counted(1, 5), 1).generation;
  request.max_tokens = 1;
  EXPECT_EQ(message(request), "a request for the prompt alone has no answer: max_tokens must be 0, got 1");
  request.max_tokens = 0;
  request.min_tokens = 1;
  EXPECT_EQ(message(request), "a request for the prompt alone has no answer: min_tokens must be 0");
  EXPECT_NE(message(scored(counted(1, 11), 1).generation), "");
  ScriptedBackend backend({.vocab_size = kVocab}, hashed_script(kStop));
  StatePool pool(backend);
  EXPECT_THROW(EngineCore(pool, nullptr, {.max_scored_rows = 0}), InputError);
}

}  // namespace
}  // namespace tetrad::prompt_scores_test
