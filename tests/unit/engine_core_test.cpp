// The engine driven by hand, step by step, over a scripted backend.
#include "engine/engine_core.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "engine/generator.h"
#include "support/engine_rig.h"

namespace tetrad::engine_core_test {
namespace {

using testing::canned_script;
using testing::hashed_script;
using testing::RecordingSink;
using testing::ScriptedBackend;

constexpr int kPage = 8, kVocab = 64, kStop = 63;

std::vector<int> counted(int first, int count) {
  std::vector<int> ids;
  for (int i = 0; i < count; ++i) ids.push_back((first + i) % (kVocab - 2));
  return ids;
}

EngineRequest request_of(std::vector<int> prompt, int max_tokens = 0, double temperature = 0) {
  EngineRequest request;
  request.generation.prompt_ids = std::move(prompt);
  request.generation.sampling.temperature = temperature;
  request.generation.sampling.seed = 11;
  request.generation.stop_ids = {kStop};
  request.generation.max_tokens = max_tokens;
  return request;
}

struct Rig {
  explicit Rig(ScriptedBackend::Sizes sizes = {}, EngineOptions options = {}, ScriptedBackend::Script script = hashed_script(kStop))
      : backend(with_vocab(sizes), script), pool(backend), core(std::in_place, pool, nullptr, options), solo(on_the_host(sizes), script) {}
  static ScriptedBackend::Sizes with_vocab(ScriptedBackend::Sizes sizes) {
    sizes.vocab_size = kVocab;
    return sizes;
  }
  static ScriptedBackend::Sizes on_the_host(ScriptedBackend::Sizes sizes) {
    sizes.kept_rows = 0;
    return with_vocab(sizes);
  }

  std::shared_ptr<RecordingSink> add(EngineRequest request, int refuse_at = -1, int throw_at = -1) {
    auto sink = std::make_shared<RecordingSink>(request.num_choices);
    sink->refuse_at = refuse_at;
    sink->throw_at = throw_at;
    core->add(++last_id, std::move(request), sink, EngineCore::Clock::now());
    return sink;
  }
  void run(int max_steps = 10000) {
    for (int i = 0; i < max_steps && !core->idle(); ++i) core->step();
    EXPECT_TRUE(core->idle()) << "not done in " << max_steps << " steps";
  }
  // The answer of the same request alone, every token chosen on the host.
  GenerationResult alone(const EngineRequest& request, int choice = 0) {
    StatePool solo_pool(solo);
    SequenceState state(solo_pool);
    GenerationRequest generation = request.generation;
    generation.sampling.seed = choice_seed(generation.sampling.seed, choice);
    return Generator(solo_pool).generate(state, generation);
  }
  void expect_equals_alone(const RecordingSink& sink, const EngineRequest& request) {
    ASSERT_TRUE(sink.finished) << (sink.failed ? sink.failed->message : "no end");
    for (int c = 0; c < request.num_choices; ++c) {
      const GenerationResult expected = alone(request, c);
      EXPECT_EQ(sink.choices[static_cast<std::size_t>(c)].ids, expected.ids) << "choice " << c;
      EXPECT_EQ(sink.choices[static_cast<std::size_t>(c)].finish, expected.finish) << "choice " << c;
    }
  }
  // Nothing is left but what the prefix cache holds, and then nothing.
  void expect_all_free() {
    EXPECT_TRUE(core->idle());
    const EngineStats stats = core->stats();
    EXPECT_EQ(stats.sequences_running + stats.sequences_waiting + stats.requests_running + stats.requests_waiting, 0);
    EXPECT_EQ(stats.slots_taken, stats.prefix_cache.device_entries);
    EXPECT_EQ(stats.pages_taken, stats.prefix_cache.device_pages);
    core.reset();
    EXPECT_EQ(pool.free_slots(), backend.num_slots());
    EXPECT_EQ(pool.free_pages(), backend.num_pages());
  }

  ScriptedBackend backend;
  StatePool pool;
  std::optional<EngineCore> core;
  ScriptedBackend solo;
  std::uint64_t last_id = 0;
};

TEST(engine_core, a_request_gets_its_start_its_tokens_and_its_end) {
  Rig rig({}, {}, canned_script({{{1, 2, 3}, {7, 8, 9, kStop}}}, 0));
  const auto sink = rig.add(request_of({1, 2, 3}));
  rig.run();
  ASSERT_TRUE(sink->started && sink->finished);
  EXPECT_EQ(sink->choices[0].ids, (std::vector<int>{7, 8, 9, kStop}));
  EXPECT_EQ(sink->choices[0].finish, FinishReason::kStop);
  EXPECT_EQ(sink->started->prompt_tokens, 3);
  EXPECT_EQ(sink->finished->usage.prompt_tokens, 3);
  EXPECT_EQ(sink->finished->usage.completion_tokens, 4);
  EXPECT_EQ(sink->finished->usage.cached_tokens, 0);
  const RequestTimings& t = sink->finished->timings;
  EXPECT_GE(t.first_token, t.queue);
  EXPECT_GE(t.total, t.first_token);
  const EngineStats stats = rig.core->stats();
  EXPECT_EQ(stats.steps, 4u);
  EXPECT_EQ(stats.rows, 6u);
  EXPECT_EQ(stats.prompt_tokens, 3u);
  EXPECT_EQ(stats.generated_tokens, 4u);
  EXPECT_EQ(stats.finished, 1u);
  EXPECT_EQ(stats.inter_token_seconds.count(), 3u);
  EXPECT_EQ(stats.first_token_seconds.count(), 1u);
  rig.expect_all_free();
}

TEST(engine_core, many_at_once_answer_as_each_alone) {
  for (const double temperature : {0.0, 1.0}) {
    Rig rig({.num_slots = 4, .max_rows = 24});
    std::vector<EngineRequest> requests;
    std::vector<std::shared_ptr<RecordingSink>> sinks;
    for (int i = 0; i < 12; ++i) {
      requests.push_back(request_of(counted(5 * i, 1 + 9 * i % 40), 25, temperature));
      requests.back().generation.sampling.seed = static_cast<std::uint64_t>(i);
      requests.back().generation.sampling.repetition_penalty = 1.2;
      requests.back().generation.sampling.logprobs = 2;
      sinks.push_back(rig.add(requests.back()));
      rig.core->step();
    }
    rig.run();
    for (std::size_t i = 0; i < sinks.size(); ++i) rig.expect_equals_alone(*sinks[i], requests[i]);
    EXPECT_EQ(sinks[3]->choices[0].tokens[0].top.size(), 2u);
    rig.expect_all_free();
  }
}

TEST(engine_core, preemption_changes_no_token_and_repeats_none) {
  for (const int snapshot_slots : {0, 2}) {
    for (const std::size_t host_bytes : {std::size_t{0}, std::size_t{16384}}) {
      Rig rig({.num_slots = 6, .num_pages = 9, .max_rows = 24}, {.snapshot_slots = snapshot_slots, .host_cache_bytes = host_bytes});
      std::vector<EngineRequest> requests;
      std::vector<std::shared_ptr<RecordingSink>> sinks;
      for (int i = 0; i < 4; ++i) {
        requests.push_back(request_of(counted(9 * i, 10), 50, 0.8));
        requests.back().generation.stop_ids = {};
        sinks.push_back(rig.add(requests.back()));
      }
      rig.run();
      EXPECT_GT(rig.core->stats().preemptions, 0u);
      for (std::size_t i = 0; i < sinks.size(); ++i) rig.expect_equals_alone(*sinks[i], requests[i]);
      rig.expect_all_free();
    }
  }
}

TEST(engine_core, a_full_cache_makes_way_for_a_long_prompt) {
  Rig rig({.max_positions = 128, .num_slots = 8, .num_pages = 16, .max_rows = 32}, {.snapshot_slots = 5, .host_cache_bytes = 8000});
  for (int i = 0; i < 4; ++i) rig.add(request_of(counted(13 * i, 20), 8));
  rig.run();
  EXPECT_GT(rig.core->stats().prefix_cache.device_entries, 0);
  const EngineRequest large = request_of(counted(40, 110), 10);
  const auto sink = rig.add(large), second = rig.add(large);
  rig.run();
  rig.expect_equals_alone(*sink, large);
  rig.expect_equals_alone(*second, large);
  rig.expect_all_free();
}

TEST(engine_core, an_answer_that_fills_every_page_ends_with_the_context) {
  Rig rig({.max_positions = 512, .num_slots = 3, .num_pages = 4});
  EXPECT_EQ(rig.core->context_tokens(), 4 * kPage);
  EngineRequest request = request_of(counted(1, 10));
  request.generation.stop_ids = {};
  const auto a = rig.add(request), b = rig.add(request);
  rig.run();
  for (const auto& sink : {a, b}) {
    EXPECT_EQ(sink->choices[0].finish, FinishReason::kContext);
    EXPECT_EQ(sink->choices[0].ids.size(), 22u);
  }
  rig.expect_all_free();
}

TEST(engine_core, choices_share_the_prompt_and_differ) {
  for (const int slots : {1, 2, 3, 8}) {
    Rig rig({.num_slots = slots, .num_pages = 24, .max_rows = 16});
    EngineRequest request = request_of(counted(3, 21), 30, 1.0);
    request.num_choices = 5;
    const auto sink = rig.add(request), other = rig.add(request);
    rig.run();
    rig.expect_equals_alone(*sink, request);
    rig.expect_equals_alone(*other, request);
    EXPECT_NE(sink->choices[0].ids, sink->choices[1].ids);
    EXPECT_NE(sink->choices[1].ids, sink->choices[2].ids);
    if (slots == 8) {
      EXPECT_LT(rig.backend.rows_computed, 2 * 21 + 10 * 30) << "the prompt is computed once";
    }
    rig.expect_all_free();
  }
}

TEST(engine_core, choices_of_one_token_need_no_copies) {
  Rig rig({.num_slots = 1});
  EngineRequest request = request_of(counted(3, 21), 1, 1.0);
  request.num_choices = 8;
  const auto sink = rig.add(request);
  rig.core->step();
  rig.core->step();
  EXPECT_TRUE(sink->finished);
  rig.expect_equals_alone(*sink, request);
  rig.expect_all_free();
}

TEST(engine_core, cancellation_takes_effect_before_the_next_step_in_every_phase) {
  Rig rig({.num_slots = 2, .max_rows = 16});
  EngineRequest endless = request_of({1, 2, 3});
  endless.generation.stop_ids = {};
  const auto decode = rig.add(endless);
  rig.core->step();
  const auto prefill = rig.add(request_of(counted(1, 100)));
  rig.core->step();
  const auto waiting = rig.add(endless);
  rig.core->step();
  const int steps = rig.backend.steps;
  for (const std::uint64_t id : {3u, 2u, 1u, 1u, 77u}) rig.core->cancel(id);
  EXPECT_EQ(rig.backend.steps, steps);
  for (const auto& sink : {decode, prefill, waiting}) {
    ASSERT_TRUE(sink->finished);
    EXPECT_EQ(sink->finished->reasons[0], FinishReason::kCancelled);
  }
  EXPECT_FALSE(waiting->started);
  EXPECT_GT(decode->choices[0].ids.size(), 1u);
  EXPECT_TRUE(prefill->choices[0].ids.empty());
  rig.expect_all_free();
}

TEST(engine_core, cancelling_one_of_many_choices_cancels_all) {
  Rig rig({.num_slots = 3});
  EngineRequest request = request_of(counted(1, 10), 0, 1.0);
  request.num_choices = 6;
  request.generation.stop_ids = {};
  const auto sink = rig.add(request);
  for (int i = 0; i < 5; ++i) rig.core->step();
  rig.core->cancel(1);
  ASSERT_TRUE(sink->finished);
  EXPECT_EQ(sink->finished->reasons, std::vector<FinishReason>(6, FinishReason::kCancelled));
  rig.expect_all_free();
}

// One request fails while others are in the same steps.
void expect_only_one_fails(Rig& rig, EngineRequest bad, EngineErrorKind kind, int refuse_at = -1, int throw_at = -1) {
  const EngineRequest good = request_of(counted(30, 12), 20);
  const auto before = rig.add(good);
  const auto failing = rig.add(std::move(bad), refuse_at, throw_at);
  const auto after = rig.add(good);
  rig.run();
  ASSERT_TRUE(failing->failed);
  EXPECT_EQ(failing->failed->kind, kind) << failing->failed->message;
  EXPECT_FALSE(failing->failed->message.empty());
  EXPECT_EQ(failing->terminals, 1);
  rig.expect_equals_alone(*before, good);
  rig.expect_equals_alone(*after, good);
  EXPECT_EQ(rig.core->stats().failed[static_cast<std::size_t>(kind)], 1u);
  rig.expect_all_free();
}

TEST(engine_core, numbers_that_go_wrong_fail_their_own_request) {
  for (const int choices : {1, 3}) {
    Rig rig({.num_slots = 8}, {.snapshot_slots = 2});
    rig.backend.fault_token = 62;
    EngineRequest bad = request_of({1, 2, 62, 4});
    bad.num_choices = choices;
    expect_only_one_fails(rig, bad, EngineErrorKind::kNumeric);
  }
}

TEST(engine_core, a_row_of_logits_that_is_not_finite_fails_its_own_request) {
  const auto hashed = hashed_script(kStop);
  Rig rig({}, {}, [=](std::span<const int> history, std::span<float> logits) {
    hashed(history, logits);
    if (history.front() == 9 && history.size() > 6) logits[5] = std::numeric_limits<float>::quiet_NaN();
  });
  EngineRequest bad = request_of({9, 2, 3});
  bad.generation.stop_ids = {};
  expect_only_one_fails(rig, bad, EngineErrorKind::kNumeric);
}

TEST(engine_core, a_sink_without_room_or_that_throws_fails_its_own_request) {
  for (int event = 0; event < 6; ++event) {
    EngineRequest request = request_of({1, 2, 3});
    request.generation.stop_ids = {};
    request.num_choices = 2;
    Rig full, throwing;
    expect_only_one_fails(full, request, EngineErrorKind::kSlowConsumer, event);
    expect_only_one_fails(throwing, request, EngineErrorKind::kInternal, -1, event);
  }
}

// A choice that waited for a slot computes the prompt again, with a point to save, while another choice of its request fails.
TEST(engine_core, a_failure_gives_back_what_other_choices_hold_in_the_step) {
  for (int event = 0; event < 120; ++event) {
    Rig rig({.num_slots = 3, .max_rows = 64}, {.snapshot_slots = 1});
    EngineRequest request = request_of(counted(3, 40), 20, 1.0);
    request.num_choices = 5;
    const auto sink = rig.add(request, event);
    rig.run();
    EXPECT_TRUE(sink->ended());
    rig.expect_all_free();
  }
}

TEST(engine_core, a_step_that_fails_as_a_whole_blames_the_request_that_fails_alone) {
  Rig rig({.num_slots = 6}, {.snapshot_slots = 2});
  rig.backend.before_step = [](const StepBatch& batch) {
    if (std::find(batch.token_ids.begin(), batch.token_ids.end(), 61) != batch.token_ids.end()) fail<InternalError>("the device said no");
  };
  const EngineRequest good = request_of(counted(30, 12), 5);
  const auto before = rig.add(good);
  const auto bad = rig.add(request_of(counted(50, 12)));  // holds token 61
  const auto after = rig.add(good);
  rig.run();
  ASSERT_TRUE(bad->failed);
  EXPECT_EQ(bad->failed->kind, EngineErrorKind::kInternal);
  EXPECT_TRUE(before->ended() && after->ended());
  rig.expect_all_free();
}

TEST(engine_core, memory_held_by_others_fails_a_request_instead_of_spinning) {
  Rig rig({.num_slots = 3, .num_pages = 4});
  {
    SequenceState outside(rig.pool);
    outside.prepare(3 * kPage);
    const auto sink = rig.add(request_of(counted(1, 20)));
    rig.run(10);
    ASSERT_TRUE(sink->failed);
    EXPECT_EQ(sink->failed->kind, EngineErrorKind::kCapacity);
  }
  rig.expect_all_free();
}

TEST(engine_core, a_request_may_wait_only_so_long) {
  Rig rig({.num_slots = 1});
  EngineRequest endless = request_of({1, 2, 3});
  endless.generation.stop_ids = {};
  rig.add(endless);
  rig.core->step();
  EngineRequest impatient = request_of({1});
  impatient.queue_timeout = 1e-9;
  const auto sink = rig.add(impatient);
  rig.core->step();
  ASSERT_TRUE(sink->failed);
  EXPECT_EQ(sink->failed->kind, EngineErrorKind::kQueueTimeout);
  rig.core->fail_all(EngineErrorKind::kStopping, "over");
  rig.expect_all_free();
}

TEST(engine_core, refusals_are_typed) {
  Rig rig({.max_positions = 100, .num_pages = 8}, {.max_waiting = 2, .max_choices = 4});
  const auto kind = [&](const EngineRequest& request, const QueueLoad& load = {}) -> std::optional<EngineErrorKind> {
    try {
      rig.core->check(request);
      rig.core->check_load(request, load);
    } catch (const EngineRefusal& refusal) {
      return refusal.kind();
    }
    return std::nullopt;
  };
  EXPECT_EQ(kind(request_of(counted(0, 63))), std::nullopt);
  EXPECT_EQ(kind(request_of(counted(0, 64))), EngineErrorKind::kNeverFits);
  EXPECT_EQ(kind(request_of(counted(0, 100))), EngineErrorKind::kPromptTooLong);
  EXPECT_EQ(kind(request_of({1}), {2, 5}), EngineErrorKind::kQueueFull);
  EXPECT_EQ(kind(request_of({})), EngineErrorKind::kInput);
  EXPECT_EQ(kind(request_of({kVocab})), EngineErrorKind::kInput);
  EXPECT_EQ(kind(request_of({-1})), EngineErrorKind::kInput);
  EngineRequest request = request_of({1});
  for (const int choices : {0, -1, 5, 1000}) {
    request.num_choices = choices;
    EXPECT_EQ(kind(request), EngineErrorKind::kInput) << choices;
  }
  request = request_of({1});
  request.generation.stop_strings = {"x"};
  EXPECT_EQ(kind(request), EngineErrorKind::kInput) << "no tokenizer";
  request = request_of({1}, 0, -1.0);
  EXPECT_EQ(kind(request), EngineErrorKind::kInput);
  EXPECT_THROW(Rig({.num_slots = 2}, {.snapshot_slots = 2}), InputError) << "no slot remains to run in";
}

// Conversation: the prompt of each turn is the last one, its answer and something new.
TEST(engine_core, turns_reuse_all_of_the_turn_before) {
  for (const int max_rows : {3, 16, 200}) {
    Rig rig({.num_slots = 8, .max_rows = max_rows}, {.snapshot_slots = 6, .host_cache_bytes = 1 << 20});
    std::vector<int> conversation = counted(1, 30);
    for (int turn = 0; turn < 6; ++turn) {
      const EngineRequest request = request_of(conversation, 15);
      const auto sink = rig.add(request);
      rig.run();
      rig.expect_equals_alone(*sink, request);
      const int known = turn == 0 ? 0 : static_cast<int>(conversation.size()) - 5 - 1;  // all but the last token chosen, never fed
      EXPECT_EQ(sink->started->cached_tokens, known) << "turn " << turn;
      EXPECT_EQ(sink->finished->usage.cached_tokens, known);
      conversation.insert(conversation.end(), sink->choices[0].ids.begin(), sink->choices[0].ids.end());
      const std::vector<int> question = counted(7 * turn, 5);
      conversation.insert(conversation.end(), question.begin(), question.end());
    }
    rig.expect_all_free();
  }
}

// The template drops the thinking of earlier turns, so the answer comes back changed: the end of the prompt is the point to reuse.
TEST(engine_core, turns_with_an_altered_answer_reuse_up_to_it) {
  Rig rig({.num_slots = 8, .max_rows = 16}, {.snapshot_slots = 6});
  std::vector<int> conversation = counted(1, 30);
  for (int turn = 0; turn < 4; ++turn) {
    const auto sink = rig.add(request_of(conversation, 15));
    rig.run();
    EXPECT_EQ(sink->started->cached_tokens, turn == 0 ? 0 : static_cast<int>(conversation.size()) - 9);
    const std::vector<int> rewritten = counted(20 + turn, 9);
    conversation.insert(conversation.end(), rewritten.begin(), rewritten.end());
  }
}

TEST(engine_core, exact_repeats_and_shared_beginnings_are_reused_for_any_chunk_size) {
  for (const int max_rows : {8, 20, 256}) {
    Rig rig({.num_slots = 16, .num_pages = 200, .max_rows = max_rows}, {.snapshot_slots = 14, .snapshots = {.interval_tokens = 16}});
    std::vector<int> a = counted(0, 100), b = a;
    for (std::size_t i = 60; i < b.size(); ++i) b[i] = 3;
    const auto reused = [&](const std::vector<int>& prompt) {
      const EngineRequest request = request_of(prompt, 4);
      const auto sink = rig.add(request);
      rig.run();
      rig.expect_equals_alone(*sink, request);
      return sink->started->cached_tokens;
    };
    EXPECT_EQ(reused(a), 0);
    EXPECT_EQ(reused(a), 96) << "the last page end before the last token";
    EXPECT_EQ(reused(b), 32) << "a point on the grid, which is coarse for a prompt of this length";
    for (std::size_t i = 60; i < b.size(); ++i) b[i] = 4;
    EXPECT_EQ(reused(b), 56) << "the second to depart left a point where it did";
  }
}

TEST(engine_core, the_last_point_of_a_prompt_gets_the_slot_when_there_is_one) {
  Rig rig({.num_slots = 4, .max_rows = 256}, {.snapshot_slots = 1, .snapshots = {.interval_tokens = 16}});
  EngineRequest request = request_of(counted(0, 100));
  request.generation.stop_ids = {};
  rig.add(request);
  rig.backend.before_step = [&](const StepBatch& batch) {
    ASSERT_EQ(batch.sequences[0].saves.size(), 1u);
    EXPECT_EQ(batch.sequences[0].saves[0].row, 95);
  };
  rig.core->step();
  rig.core->fail_all(EngineErrorKind::kStopping, "over");
  rig.expect_all_free();
}

TEST(engine_core, a_cancelled_prefill_is_kept_for_the_retry) {
  Rig rig({.num_slots = 4, .max_rows = 16}, {.snapshot_slots = 2});
  const EngineRequest request = request_of(counted(1, 200), 5);
  rig.add(request);
  for (int i = 0; i < 5; ++i) rig.core->step();
  rig.core->cancel(1);
  const auto retry = rig.add(request);
  rig.run();
  EXPECT_EQ(retry->started->cached_tokens, 5 * 16);
  rig.expect_equals_alone(*retry, request);
}

TEST(engine_core, salts_and_requests_that_do_not_want_it_share_nothing) {
  Rig rig({.num_slots = 8}, {.snapshot_slots = 6});
  EngineRequest request = request_of(counted(1, 40), 5);
  request.cache_salt = "a";
  rig.add(request);
  rig.run();
  const auto again = rig.add(request);
  request.cache_salt = "b";
  const auto other = rig.add(request);
  request.cache_salt = "a";
  request.reuse_prefix = false;
  const auto without = rig.add(request);
  rig.run();
  EXPECT_EQ(again->started->cached_tokens, 32);
  EXPECT_EQ(other->started->cached_tokens, 0);
  EXPECT_EQ(without->started->cached_tokens, 0);
  const EngineStats stats = rig.core->stats();
  EXPECT_EQ(stats.prefix_cache.lookups, 3u);
  EXPECT_EQ(stats.prefix_cache.hits, 1u);
  EXPECT_EQ(stats.cached_tokens, 32u);
}

TEST(engine_core, a_failed_sequence_leaves_nothing_in_the_cache) {
  Rig rig({.num_slots = 8, .max_rows = 64}, {.snapshot_slots = 6});  // one step, which would save its state at token 32
  rig.backend.fault_token = 62;
  std::vector<int> prompt = counted(1, 40);
  prompt[35] = 62;
  rig.add(request_of(prompt));
  rig.run();
  EXPECT_EQ(rig.core->stats().prefix_cache.device_entries, 0);
  rig.expect_all_free();
}

}  // namespace
}  // namespace tetrad::engine_core_test
