#include "engine/scheduler.h"

#include <algorithm>

#include "base/error.h"

namespace tetrad {

std::optional<Refusal> refusal_of(const QueueLimits& limits, const QueueLoad& load, std::int64_t prompt_tokens,
                                  std::int64_t answer_tokens) {
  if (prompt_tokens > limits.context_tokens - answer_tokens) return Refusal::kPromptTooLong;
  if (prompt_tokens > limits.capacity_tokens - answer_tokens) return Refusal::kNeverFits;
  if (load.requests == 0) return std::nullopt;
  if (limits.max_waiting > 0 && load.requests >= limits.max_waiting) return Refusal::kQueueFull;
  if (limits.max_waiting_tokens > 0 && load.tokens + prompt_tokens > limits.max_waiting_tokens) return Refusal::kQueueFull;
  return std::nullopt;
}

Scheduler::Scheduler(const SchedulerLimits& limits) : limits_(limits) {
  if (limits.max_rows < 1) fail<InputError>("a step must hold at least 1 row, got {}", limits.max_rows);
  if (limits.max_running < 1) fail<InputError>("at least 1 sequence must be able to run, got {}", limits.max_running);
  if (limits.max_prefill_rows < 0)
    fail<InputError>("rows of prompts in a step must be at least 1, or 0 for all, got {}", limits.max_prefill_rows);
  TETRAD_CHECK(limits.page_tokens > 0, "pages of {} tokens", limits.page_tokens);
}

void Scheduler::enqueue(SequenceId id) {
  TETRAD_CHECK(!running_.contains(id), "sequence {}.{} runs already", id.request, id.choice);
  const bool is_new = waiting_.insert(id).second;
  TETRAD_CHECK(is_new, "sequence {}.{} waits already", id.request, id.choice);
}

void Scheduler::start(SequenceId id, Admission state) {
  TETRAD_CHECK(has_room() && state.pending > 0, "{} sequences run, {} tokens pending", num_running(), state.pending);
  const bool is_new = running_.emplace(id, Running{state.length, state.pending, ++turn_}).second;
  TETRAD_CHECK(is_new && !waiting_.contains(id), "sequence {}.{} is there already", id.request, id.choice);
}

void Scheduler::remove(SequenceId id) {
  running_.erase(id);
  waiting_.erase(id);
}

Scheduler::Running& Scheduler::running(SequenceId id) {
  const auto found = running_.find(id);
  TETRAD_CHECK(found != running_.end(), "sequence {}.{} does not run", id.request, id.choice);
  return found->second;
}

void Scheduler::computed(SequenceId id, int num_rows) {
  Running& sequence = running(id);
  TETRAD_CHECK(num_rows > 0 && num_rows <= sequence.pending, "{} rows computed of {} pending", num_rows, sequence.pending);
  sequence.length += num_rows;
  sequence.pending -= num_rows;
}

void Scheduler::append(SequenceId id) { ++running(id).pending; }

std::vector<SequenceId> Scheduler::in_turn(bool decode) const {
  std::vector<std::pair<std::uint64_t, SequenceId>> order;
  for (const auto& [id, sequence] : running_)
    if (!sequence.planned && (decode ? sequence.pending == 1 : sequence.pending > 1)) order.emplace_back(sequence.turn, id);
  std::sort(order.begin(), order.end());
  std::vector<SequenceId> ids;
  for (const auto& [turn, id] : order) ids.push_back(id);
  return ids;
}

bool Scheduler::prefill_is_due() const {
  const auto prefills = [](const auto& entry) { return entry.second.pending > 1; };
  return std::any_of(running_.begin(), running_.end(), prefills) || (!waiting_.empty() && has_room());
}

void Scheduler::preempt_youngest(Capacity& capacity, StepPlan& plan) {
  const SequenceId victim = running_.rbegin()->first;
  if (running_.size() == 1) plan.unservable = victim;
  running_.erase(victim);
  waiting_.insert(victim);
  std::erase(plan.admitted, victim);
  plan.preempted.push_back(victim);
  const auto planned = std::find_if(plan.rows.begin(), plan.rows.end(), [&](const PlannedRows& rows) { return rows.id == victim; });
  if (planned != plan.rows.end()) {
    plan.total_rows -= planned->num_rows;
    plan.rows.erase(planned);
  }
  capacity.release(victim);
}

// False if the sequence is itself the one that had to go.
bool Scheduler::add_rows(Capacity& capacity, SequenceId id, int num_rows, StepPlan& plan) {
  while (!capacity.reserve(id, num_rows)) {
    preempt_youngest(capacity, plan);
    if (!running_.contains(id)) return false;
  }
  Running& sequence = running(id);
  sequence.turn = ++turn_;
  sequence.planned = true;
  plan.rows.push_back({id, num_rows});
  plan.total_rows += num_rows;
  return true;
}

void Scheduler::add_decode_rows(Capacity& capacity, int budget, StepPlan& plan) {
  for (const SequenceId id : in_turn(true)) {
    if (plan.total_rows >= budget) return;
    if (running_.contains(id)) add_rows(capacity, id, 1, plan);  // unless it was preempted for another
  }
}

void Scheduler::admit_waiting(Capacity& capacity, StepPlan& plan) {
  // Who was preempted for lack of pages would only take them back.
  if (!plan.preempted.empty()) return;
  while (!waiting_.empty() && has_room()) {
    const SequenceId id = *waiting_.begin();
    const std::optional<Admission> admission = capacity.admit(id, num_running());  // each that runs may need a page soon
    if (!admission) {
      if (running_.empty()) plan.unservable = id;
      return;
    }
    TETRAD_CHECK(admission->pending > 0, "sequence {}.{} is admitted with nothing to compute", id.request, id.choice);
    waiting_.erase(id);
    running_.emplace(id, Running{admission->length, admission->pending, ++turn_});
    plan.admitted.push_back(id);
  }
}

int Scheduler::chunk_of(const Running& sequence, int budget) const {
  if (sequence.pending <= budget) return sequence.pending;
  const int end = (sequence.length + budget) / limits_.page_tokens * limits_.page_tokens;
  return end > sequence.length ? end - sequence.length : budget;
}

void Scheduler::add_prefill_chunks(Capacity& capacity, StepPlan& plan) {
  int budget = limits_.max_prefill_rows > 0 ? limits_.max_prefill_rows : limits_.max_rows;
  for (const SequenceId id : in_turn(false)) {
    const int room = std::min(budget, limits_.max_rows - plan.total_rows);
    if (room <= 0) return;
    if (!running_.contains(id)) continue;
    const int rows = chunk_of(running(id), room);
    if (add_rows(capacity, id, rows, plan)) budget -= rows;
  }
}

StepPlan Scheduler::plan(Capacity& capacity) {
  StepPlan plan;
  for (auto& [id, sequence] : running_) sequence.planned = false;
  // A page for prompts, half a small step, and every other step where a step is a single row.
  const int kept = limits_.max_rows > 1 ? std::min(limits_.page_tokens, limits_.max_rows / 2) : static_cast<int>(step_++ % 2);
  add_decode_rows(capacity, limits_.max_rows - (prefill_is_due() ? kept : 0), plan);
  admit_waiting(capacity, plan);
  add_prefill_chunks(capacity, plan);
  add_decode_rows(capacity, limits_.max_rows, plan);  // a prompt's last token, and what the prompts left
  return plan;
}

}  // namespace tetrad
