#include "engine/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "base/error.h"

namespace tetrad::scheduler_test {
namespace {

constexpr int kPage = 8;

// Pages and slots as numbers; each sequence has the tokens it was added with and those it decoded.
class Ledger : public Capacity {
 public:
  Ledger(int num_pages, int cached = 0) : free_pages(num_pages), cached_tokens(cached) {}

  std::optional<Admission> admit(SequenceId id, int headroom) override {
    const int wanted = pages_of(tokens.at(id));
    if (wanted + headroom > free_pages) return std::nullopt;
    free_pages -= wanted;
    pages[id] = wanted;
    return Admission{cached_tokens, tokens.at(id) - cached_tokens};
  }
  bool reserve(SequenceId id, int) override {
    const int wanted = pages_of(tokens.at(id)) - pages.at(id);
    if (wanted > free_pages) return false;
    free_pages -= wanted;
    pages[id] += wanted;
    return true;
  }
  void release(SequenceId id) override {
    free_pages += pages.at(id);
    pages.erase(id);
  }
  static int pages_of(int tokens) { return (tokens + kPage - 1) / kPage; }

  int free_pages, cached_tokens;
  std::map<SequenceId, int> tokens, pages;
};

// A scheduler with sequences that decode up to a number of tokens.
struct Rig {
  explicit Rig(SchedulerLimits limits, int num_pages = 1000) : scheduler(limits), ledger(num_pages) {}

  SequenceId add(int prompt_tokens, int answer_tokens = 1 << 20) {
    const SequenceId id{++last, 0};
    ledger.tokens[id] = prompt_tokens;
    until[id] = prompt_tokens + answer_tokens;
    scheduler.enqueue(id);
    return id;
  }
  void end(SequenceId id) {
    scheduler.remove(id);
    if (ledger.pages.contains(id)) ledger.release(id);
    lengths.erase(id);
    ended.push_back(id);
  }
  StepPlan step() {
    StepPlan plan = scheduler.plan(ledger);
    for (const SequenceId id : plan.preempted) lengths.erase(id);
    for (const SequenceId id : plan.admitted) lengths[id] = ledger.cached_tokens;
    for (const auto& [id, rows] : plan.rows) {
      scheduler.computed(id, rows);
      lengths[id] += rows;
      if (lengths[id] < ledger.tokens[id]) continue;
      if (++ledger.tokens[id] >= until[id]) {
        end(id);
        continue;
      }
      scheduler.append(id);
    }
    return plan;
  }

  Scheduler scheduler;
  Ledger ledger;
  std::map<SequenceId, int> lengths, until;
  std::vector<SequenceId> ended;
  std::uint64_t last = 0;
};

int rows_of(const StepPlan& plan, SequenceId id) {
  for (const PlannedRows& planned : plan.rows)
    if (planned.id == id) return planned.num_rows;
  return 0;
}

TEST(scheduler, a_prompt_is_computed_in_chunks_that_end_with_pages) {
  Rig rig({.max_rows = 20, .max_running = 4, .page_tokens = kPage});
  const SequenceId id = rig.add(45);
  EXPECT_EQ(rows_of(rig.step(), id), 16);
  EXPECT_EQ(rows_of(rig.step(), id), 16);
  EXPECT_EQ(rows_of(rig.step(), id), 13) << "what is left, page or not";
  EXPECT_EQ(rows_of(rig.step(), id), 1) << "decode";
}

TEST(scheduler, a_budget_below_a_page_still_advances_and_meets_every_page_end) {
  Rig rig({.max_rows = 3, .max_running = 1, .page_tokens = kPage});
  const SequenceId id = rig.add(20);
  std::vector<int> ends;
  for (int length = 0; length < 20;) {
    length += rows_of(rig.step(), id);
    ends.push_back(length);
  }
  EXPECT_EQ(ends, (std::vector<int>{3, 6, 8, 11, 14, 16, 19, 20}));
}

TEST(scheduler, decode_rows_come_first_and_prompts_get_the_rest) {
  Rig rig({.max_rows = 24, .max_running = 4, .page_tokens = kPage});
  const SequenceId a = rig.add(4), b = rig.add(4);
  rig.step();
  const SequenceId prompt = rig.add(1000);
  for (int i = 0; i < 10; ++i) {
    const StepPlan plan = rig.step();
    EXPECT_EQ(plan.rows[0].id, a);
    EXPECT_EQ(plan.rows[1].id, b);
    EXPECT_EQ(rows_of(plan, prompt), 16);
  }
}

TEST(scheduler, a_step_never_holds_more_than_its_rows) {
  Rig rig({.max_rows = 10, .max_running = 30, .page_tokens = kPage});
  for (int i = 0; i < 30; ++i) rig.add(1 + i * 3, 5);
  for (int i = 0; i < 400 && !rig.scheduler.idle(); ++i) {
    const StepPlan plan = rig.step();
    int total = 0;
    for (const PlannedRows& planned : plan.rows) total += planned.num_rows;
    EXPECT_EQ(total, plan.total_rows);
    EXPECT_LE(total, 10);
  }
  EXPECT_TRUE(rig.scheduler.idle());
  EXPECT_EQ(rig.ledger.free_pages, 1000);
}

TEST(scheduler, rows_of_prompts_can_be_bounded) {
  Rig rig({.max_rows = 100, .max_prefill_rows = 16, .max_running = 4, .page_tokens = kPage});
  rig.add(200), rig.add(200);
  EXPECT_EQ(rig.step().total_rows, 16);
}

TEST(scheduler, more_decodes_than_rows_take_turns_and_do_not_starve_a_prompt) {
  Rig rig({.max_rows = 8, .max_running = 40, .page_tokens = 4});
  std::vector<SequenceId> decodes;
  for (int i = 0; i < 20; ++i) decodes.push_back(rig.add(1));
  for (int i = 0; i < 10; ++i) rig.step();
  const SequenceId prompt = rig.add(40);
  std::map<SequenceId, int> last;
  int prompt_rows = 0;
  for (int step = 0; step < 60 && prompt_rows < 40; ++step) {
    const StepPlan plan = rig.step();
    prompt_rows += rows_of(plan, prompt);
    for (const SequenceId id : decodes) {
      if (rows_of(plan, id) > 0) last[id] = step;
      EXPECT_LE(step - last[id], 6) << "decode " << id.request << " waits";
    }
  }
  EXPECT_EQ(prompt_rows, 40);
}

TEST(scheduler, one_row_a_step_serves_both_kinds) {
  Rig rig({.max_rows = 1, .max_running = 2, .page_tokens = kPage});
  const SequenceId decode = rig.add(1);
  rig.step();
  const SequenceId prompt = rig.add(20);
  int decoded = 0, prefilled = 0;
  for (int i = 0; i < 30; ++i) {
    const StepPlan plan = rig.step();
    decoded += rows_of(plan, decode);
    prefilled += rows_of(plan, prompt);
  }
  EXPECT_GE(decoded, 10);
  EXPECT_GE(prefilled, 10);
}

TEST(scheduler, prompts_take_turns_so_a_long_one_does_not_hold_up_a_short_one) {
  Rig rig({.max_rows = 16, .max_running = 4, .page_tokens = kPage});
  const SequenceId large = rig.add(4000);
  for (int i = 0; i < 5; ++i) rig.step();
  const SequenceId small = rig.add(10);
  EXPECT_EQ(rows_of(rig.step(), large), 16) << "its turn came before the newcomer's";
  EXPECT_EQ(rows_of(rig.step(), small), 10);
}

TEST(scheduler, short_prompts_without_end_do_not_starve_a_long_one) {
  Rig rig({.max_rows = 16, .max_running = 4, .page_tokens = kPage});
  const SequenceId large = rig.add(320, 1);
  int steps = 0;
  for (; std::find(rig.ended.begin(), rig.ended.end(), large) == rig.ended.end() && steps < 400; ++steps) {
    rig.add(16, 1);
    rig.step();
  }
  EXPECT_LE(steps, 4 * 320 / 16 + 4);
}

TEST(scheduler, admission_is_in_order_and_none_overtakes_the_first) {
  Rig rig({.max_rows = 64, .max_running = 8, .page_tokens = kPage}, 10);
  const SequenceId a = rig.add(48, 4), large = rig.add(64, 4), small = rig.add(8, 4);
  StepPlan plan = rig.step();
  EXPECT_EQ(plan.admitted, std::vector{a});
  while (rig.ended.empty()) EXPECT_EQ(rows_of(rig.step(), small), 0);
  plan = rig.step();
  EXPECT_EQ(plan.admitted.front(), large);
}

TEST(scheduler, slots_bound_what_runs) {
  Rig rig({.max_rows = 64, .max_running = 2, .page_tokens = kPage});
  for (int i = 0; i < 5; ++i) rig.add(8, 3);
  rig.step();
  EXPECT_EQ(rig.scheduler.num_running(), 2);
  EXPECT_EQ(rig.scheduler.num_waiting(), 3);
  for (int i = 0; i < 20; ++i) rig.step();
  EXPECT_EQ(rig.ended.size(), 5u);
}

TEST(scheduler, the_youngest_gives_up_its_pages_and_resumes_before_those_behind_it) {
  Rig rig({.max_rows = 64, .max_running = 3, .page_tokens = kPage}, 6);
  const SequenceId a = rig.add(8, 24), b = rig.add(8, 24);
  rig.step();
  const SequenceId c = rig.add(30, 2);
  std::vector<SequenceId> preempted, admitted;
  for (int i = 0; i < 100 && !rig.scheduler.idle(); ++i) {
    const StepPlan plan = rig.step();
    preempted.insert(preempted.end(), plan.preempted.begin(), plan.preempted.end());
    admitted.insert(admitted.end(), plan.admitted.begin(), plan.admitted.end());
    for (const SequenceId id : plan.preempted) EXPECT_EQ(rows_of(plan, id), 0);
    EXPECT_FALSE(plan.unservable);
  }
  EXPECT_EQ(preempted, std::vector{b});
  EXPECT_EQ(admitted, (std::vector{b, c}));
  EXPECT_EQ(rig.ended, (std::vector{a, b, c}));
  EXPECT_EQ(rig.ledger.free_pages, 6);
}

TEST(scheduler, what_cannot_fit_alone_is_named_instead_of_tried_for_ever) {
  Rig rig({.max_rows = 64, .max_running = 3, .page_tokens = kPage}, 2);
  const SequenceId grows = rig.add(15);
  std::optional<SequenceId> unservable;
  for (int i = 0; i < 10 && !unservable; ++i) unservable = rig.step().unservable;
  EXPECT_EQ(unservable, grows);
  rig.end(grows);
  const SequenceId large = rig.add(30);
  EXPECT_EQ(rig.step().unservable, large);
  rig.end(large);
  EXPECT_TRUE(rig.scheduler.idle());
  EXPECT_EQ(rig.ledger.free_pages, 2);
}

TEST(scheduler, removal_works_in_every_phase) {
  Rig rig({.max_rows = 16, .max_running = 2, .page_tokens = kPage});
  const SequenceId decode = rig.add(4), prefill = rig.add(100), waiting = rig.add(4);
  rig.step();
  rig.end(waiting);
  EXPECT_EQ(rig.scheduler.num_waiting(), 0);
  rig.end(prefill);
  const StepPlan plan = rig.step();
  EXPECT_EQ(plan.rows.size(), 1u);
  rig.end(decode);
  rig.end(decode);  // twice is once
  EXPECT_TRUE(rig.scheduler.idle());
  EXPECT_TRUE(rig.step().rows.empty());
}

TEST(scheduler, cached_tokens_are_not_planned_again) {
  Rig rig({.max_rows = 64, .max_running = 2, .page_tokens = kPage});
  rig.ledger.cached_tokens = 30;
  const SequenceId id = rig.add(40);
  EXPECT_EQ(rows_of(rig.step(), id), 10);
}

TEST(scheduler, misuse_is_noticed) {
  EXPECT_THROW(Scheduler({.max_rows = 0}), InputError);
  EXPECT_THROW(Scheduler({.max_running = 0}), InputError);
  Scheduler scheduler({.max_running = 1});
  scheduler.enqueue({1, 0});
  EXPECT_THROW(scheduler.enqueue({1, 0}), InternalError);
  EXPECT_THROW(scheduler.append({1, 0}), InternalError) << "does not run yet";
  scheduler.start({2, 0}, {0, 4});
  EXPECT_THROW(scheduler.start({3, 0}, {0, 4}), InternalError) << "no slot";
  EXPECT_THROW(scheduler.computed({2, 0}, 5), InternalError);
}

TEST(queue_limits, refusals_are_distinct) {
  const QueueLimits limits{.max_waiting = 2, .max_waiting_tokens = 100, .context_tokens = 64, .capacity_tokens = 48};
  EXPECT_EQ(refusal_of(limits, {}, 47), std::nullopt);
  EXPECT_EQ(refusal_of(limits, {}, 48), Refusal::kNeverFits);
  EXPECT_EQ(refusal_of(limits, {}, 63), Refusal::kNeverFits);
  EXPECT_EQ(refusal_of(limits, {}, 64), Refusal::kPromptTooLong);
  EXPECT_EQ(refusal_of(limits, {}, std::int64_t{1} << 40), Refusal::kPromptTooLong);
  EXPECT_EQ(refusal_of(limits, {1, 60}, 40), std::nullopt);
  EXPECT_EQ(refusal_of(limits, {1, 60}, 41), Refusal::kQueueFull) << "tokens";
  EXPECT_EQ(refusal_of(limits, {2, 2}, 1), Refusal::kQueueFull) << "requests";
  EXPECT_EQ(refusal_of(limits, {2, 2}, 64), Refusal::kPromptTooLong) << "the lasting reason comes first";
}

}  // namespace
}  // namespace tetrad::scheduler_test
