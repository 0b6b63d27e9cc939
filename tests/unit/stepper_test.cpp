#include "engine/stepper.h"

#include <gtest/gtest.h>

#include "support/scripted_backend.h"

namespace tetrad::stepper_test {
namespace {

using testing::ScriptedBackend;

// Logit 0 of a row is its position, logit 1 its token, logit 2 the sum of everything so far.
void telling(std::span<const int> history, std::span<float> logits) {
  logits[0] = static_cast<float>(history.size() - 1);
  logits[1] = static_cast<float>(history.back());
  for (const int id : history) logits[2] += static_cast<float>(id);
}

struct Rig {
  explicit Rig(ScriptedBackend::Sizes sizes = {.vocab_size = 100, .num_slots = 4, .num_pages = 8, .max_rows = 16})
      : backend(sizes, telling), pool(backend), stepper(pool) {}
  ScriptedBackend backend;
  StatePool pool;
  Stepper stepper;
};

std::vector<int> counted(int first, int count) {
  std::vector<int> ids;
  for (int i = 0; i < count; ++i) ids.push_back(first + i);
  return ids;
}

TEST(stepper, outcomes_follow_the_requests) {
  Rig rig;
  SequenceState a(rig.pool), b(rig.pool), c(rig.pool);
  const std::vector<int> ids_a = counted(1, 3), ids_b = counted(10, 4), ids_c = counted(20, 2);
  const std::vector<StepRequest> requests{
      {&a, ids_a, LogitsWanted::kAll}, {&b, ids_b, LogitsWanted::kNone}, {&c, ids_c, LogitsWanted::kLast}};
  const auto outcomes = rig.stepper.run(requests);
  ASSERT_EQ(outcomes.size(), 3u);
  EXPECT_EQ(rig.backend.steps, 1);
  ASSERT_EQ(outcomes[0].logits.size(), 300u);
  EXPECT_EQ(outcomes[0].logits[2], 1.0f);
  EXPECT_EQ(outcomes[0].logits[202], 6.0f);
  EXPECT_TRUE(outcomes[1].logits.empty());
  ASSERT_EQ(outcomes[2].logits.size(), 100u);
  EXPECT_EQ(outcomes[2].logits[0], 1.0f);
  EXPECT_EQ(outcomes[2].logits[2], 41.0f);
  EXPECT_EQ(a.length(), 3);
  EXPECT_EQ(b.length(), 4);
  EXPECT_EQ(c.length(), 2);
}

TEST(stepper, no_requests_are_a_step_of_nothing) {
  Rig rig;
  EXPECT_TRUE(rig.stepper.run({}).empty());
}

TEST(stepper, prefill_runs_in_chunks_and_gives_the_last_logits) {
  for (const int chunk : {0, 1, 5, 16, 99}) {
    Rig rig;
    SequenceState state(rig.pool);
    const StepOutcome outcome = rig.stepper.prefill(state, counted(1, 33), chunk);
    ASSERT_EQ(outcome.logits.size(), 100u) << chunk;
    EXPECT_EQ(outcome.logits[0], 32.0f) << chunk;
    EXPECT_EQ(outcome.logits[2], 33.0f * 34 / 2) << chunk;
    EXPECT_EQ(state.length(), 33);
    const int size = chunk == 0 || chunk > 16 ? 16 : chunk;
    EXPECT_EQ(rig.backend.steps, (33 + size - 1) / size) << chunk;
  }
  Rig rig;
  SequenceState state(rig.pool);
  EXPECT_THROW(rig.stepper.prefill(state, {}), InternalError);
}

TEST(stepper, a_fault_clears_its_own_sequence_alone) {
  Rig rig;
  SequenceState a(rig.pool), b(rig.pool);
  rig.stepper.prefill(a, counted(1, 9));
  const std::vector<int> ids_a = counted(30, 1), ids_b = counted(40, 3);
  rig.backend.fault_at = 9;
  const auto outcomes = rig.stepper.run(std::vector<StepRequest>{{&b, ids_b}, {&a, ids_a}});
  EXPECT_FALSE(outcomes[0].fault);
  ASSERT_TRUE(outcomes[1].fault);
  EXPECT_EQ(outcomes[1].fault->layer, 2);
  EXPECT_EQ(outcomes[1].fault->row, 3);
  EXPECT_EQ(a.length(), 0);
  EXPECT_TRUE(a.pages().empty());
  EXPECT_EQ(b.length(), 3);
  rig.backend.fault_at = -1;
  EXPECT_EQ(rig.stepper.prefill(a, counted(1, 2)).logits[2], 3.0f) << "usable again, from the start";
}

TEST(stepper, prefill_stops_at_a_fault) {
  Rig rig;
  SequenceState state(rig.pool);
  rig.backend.fault_at = 4;
  EXPECT_TRUE(rig.stepper.prefill(state, counted(1, 12), 3).fault);
  EXPECT_EQ(rig.backend.steps, 2);
  EXPECT_EQ(state.length(), 0);
}

// The pool as it was before the call, whatever the call had already taken when it failed.
TEST(stepper, a_step_that_fails_gives_back_what_it_took) {
  Rig rig;
  SequenceState a(rig.pool), b(rig.pool);
  rig.stepper.prefill(a, counted(1, 7));
  const auto sums = a.checksums();
  const int free = rig.pool.free_pages();
  const std::vector<int> fits = counted(1, 10), too_many = counted(1, 60), outside{5, 100}, long_step = counted(1, 17), none;
  EXPECT_THROW(rig.stepper.run(std::vector<StepRequest>{{&a, fits}, {&b, too_many}}), CapacityError);
  EXPECT_EQ(rig.pool.free_pages(), free) << "pages of the first request";
  EXPECT_THROW(rig.stepper.run(std::vector<StepRequest>{{&a, long_step}}), InternalError);
  EXPECT_EQ(rig.pool.free_pages(), free) << "more rows than a step holds";
  EXPECT_THROW(rig.stepper.run(std::vector<StepRequest>{{&a, fits}, {&b, none}}), InternalError);
  EXPECT_EQ(rig.pool.free_pages(), free) << "a request without tokens";
  EXPECT_THROW(rig.stepper.run(std::vector<StepRequest>{{&a, fits}, {nullptr, fits}}), InternalError);
  EXPECT_EQ(rig.pool.free_pages(), free) << "a request without a state";
  EXPECT_EQ(a.length(), 7);
  EXPECT_EQ(b.length(), 0);
  EXPECT_EQ(a.checksums(), sums);
  EXPECT_THROW(rig.stepper.run(std::vector<StepRequest>{{&b, outside}}), InputError);
  EXPECT_EQ(b.length(), 0);
  EXPECT_EQ(rig.pool.free_pages(), free);
}

}  // namespace
}  // namespace tetrad::stepper_test
