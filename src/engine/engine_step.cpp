// One step of the engine: plan, run, and what each row of logits leads to.
#include <algorithm>
#include <utility>

#include "engine/engine_core.h"

namespace tetrad {
namespace {

constexpr int kMaxStalledSteps = 100;

}  // namespace

void EngineCore::step(const std::function<void()>& on_started) {
  expire_waiting();
  if (scheduler_.idle()) return;
  const StepPlan plan = scheduler_.plan(*this);
  stats_.preemptions += plan.preempted.size();
  if (plan.unservable) {
    if (Active* active = find_request(plan.unservable->request))
      fail_request(*active, EngineErrorKind::kCapacity,
                   fmt::format("no state memory for a sequence of {} tokens, although nothing else runs",
                               active->choices[static_cast<std::size_t>(plan.unservable->choice)].ids.size()));
  }
  for (const SequenceId id : plan.admitted) {
    Active* active = find_request(id.request);
    if (active != nullptr && !active->started) start(*active);
  }
  if (!plan.admitted.empty() && on_started) on_started();
  int scored = 0;
  for (const PlannedRows& planned : plan.rows) {
    const Active* active = find_request(planned.id.request);
    scored += active != nullptr && active->scores(planned.id) ? 1 : 0;
  }
  std::vector<Row> rows;
  for (const PlannedRows& planned : plan.rows) {
    const Active* active = find_request(planned.id.request);
    if (active == nullptr) continue;
    const int num_rows = rows_to_run(planned, std::max(1, options_.max_scored_rows / std::max(1, scored)));
    rows.push_back({planned.id, num_rows, snapshots_within(*active, *find_choice(planned.id), num_rows)});
  }
  if (!rows.empty()) {
    stalled_steps_ = 0;
    run(rows);
  } else if (plan.rows.empty() && !plan.unservable && ++stalled_steps_ >= kMaxStalledSteps) {
    fail_all(EngineErrorKind::kInternal, fmt::format("the scheduler found nothing to do in {} steps", stalled_steps_));
    stalled_steps_ = 0;
  }
}

void EngineCore::expire_waiting() {
  const Clock::time_point now = Clock::now();
  std::vector<std::uint64_t> expired;
  for (const auto& [id, active] : requests_)
    if (!active.started && active.request.queue_timeout > 0 && seconds_between(active.submitted, now) >= active.request.queue_timeout)
      expired.push_back(id);
  for (const std::uint64_t id : expired)
    fail_request(requests_.at(id), EngineErrorKind::kQueueTimeout, "the request waited too long to be started: try again later");
}

void EngineCore::start(Active& active) {
  active.started = true;
  active.admitted = Clock::now();
  active.cached_tokens = active.choices[0].state->length();
  const double queued = seconds_between(active.submitted, active.admitted);
  const int prompt_tokens = static_cast<int>(active.request.generation.prompt_ids.size());
  stats_.queue_seconds.observe(queued);
  stats_.prompt_tokens += static_cast<std::uint64_t>(prompt_tokens);
  stats_.cached_tokens += static_cast<std::uint64_t>(active.cached_tokens);
  if (active.request.reuse_prefix) cache_.count_lookup(prompt_tokens, active.cached_tokens);
  emit(active, StartedEvent{queued, prompt_tokens, active.cached_tokens});
}

// If slots are short the later points have them: more of a prompt can be spared there.
std::vector<StateSave> EngineCore::snapshots_within(const Active& active, const Choice& choice, int num_rows) {
  std::vector<StateSave> saves;
  const int length = choice.state->length();
  for (auto it = choice.snapshot_points.rbegin(); it != choice.snapshot_points.rend(); ++it) {
    const int point = *it;
    if (point <= length || point > length + num_rows) continue;
    if (cache_.contains(active.request.cache_salt, std::span(choice.ids).first(static_cast<std::size_t>(point)))) continue;
    const std::optional<int> slot = cache_.take_slot();
    if (!slot) break;
    saves.push_back({point - length - 1, *slot});
  }
  std::reverse(saves.begin(), saves.end());
  return saves;
}

void EngineCore::give_back(Row& row) {
  for (const StateSave& save : row.saves) cache_.give_back(save.slot);
  row.saves.clear();
}

// Of the rows planned, as many as have room for their logits if these score the prompt; what is left stays pending. Rows that have given
// their scores, and are computed again after a preemption, need no logits and come on their own.
int EngineCore::rows_to_run(const PlannedRows& planned, int scored_share) {
  const Active& active = requests_.at(planned.id.request);
  if (!active.scores(planned.id)) return planned.num_rows;
  const int length = active.choices[0].state->length(), again = active.scorer->scored_rows() - length;
  if (again > 0) return std::min(planned.num_rows, again);
  if (planned.num_rows <= scored_share) return planned.num_rows;
  const int page_tokens = pool_->layout().page_tokens, page_end = (length + scored_share) / page_tokens * page_tokens;
  return page_end > length ? page_end - length : scored_share;
}

StepRequest EngineCore::step_request(const Row& row) {
  Choice& choice = *find_choice(row.id);
  const auto length = static_cast<std::size_t>(choice.state->length()), num_rows = static_cast<std::size_t>(row.num_rows);
  const Active& active = requests_.at(row.id.request);
  LogitsWanted logits = length + num_rows == choice.ids.size() ? LogitsWanted::kLast : LogitsWanted::kNone;
  if (active.scores(row.id) && static_cast<std::size_t>(active.scorer->scored_rows()) < length + num_rows) logits = LogitsWanted::kAll;
  return {.state = &*choice.state,
          .token_ids = std::span(choice.ids).subspan(length, num_rows),
          .logits = logits,
          .saves = row.saves,
          .choose = logits == LogitsWanted::kLast && !choice.answer->needs_row()};
}

// If the step fails as a whole, its rows are run one by one, so that only the requests to blame fail.
void EngineCore::run(std::vector<Row>& rows) {
  std::vector<StepRequest> requests;
  for (const Row& row : rows) requests.push_back(step_request(row));
  std::vector<StepOutcome> outcomes;
  try {
    outcomes = stepper_.run(requests);
  } catch (const std::exception& error) {
    if (rows.size() == 1) {
      give_back(rows[0]);
      fail_request(requests_.at(rows[0].id.request), kind_of(error), error.what());
      return;
    }
    for (Row& row : rows) {
      std::vector<Row> alone(1, row);
      if (find_request(row.id.request) != nullptr)
        run(alone);
      else
        give_back(row);
    }
    return;
  }
  ++stats_.steps;
  int total = 0;
  for (const Row& row : rows) total += row.num_rows;
  stats_.rows += static_cast<std::uint64_t>(total);
  stats_.step_rows.observe(total);
  choose_tokens(rows, outcomes);
  for (std::size_t i = 0; i < rows.size(); ++i) finish_row(rows[i], outcomes[i]);
}

// Whether the step has computed all of the sequence's tokens, and its logits stayed with the backend: a token is chosen there.
bool EngineCore::answers(const Row& row, const StepOutcome& outcome) {
  const Active* active = find_request(row.id.request);
  return active != nullptr && !outcome.fault && outcome.kept_row >= 0 && !active->request.generation.prompt_only;
}

// One call for the whole step. Every choice of a request takes its first token from the one row. What goes wrong with one of them is kept
// for take_token(), which fails its request alone.
void EngineCore::choose_tokens(std::span<const Row> rows, std::span<const StepOutcome> outcomes) {
  std::vector<TokenChoice> asked;
  std::vector<Choice*> asking;
  const auto ask = [&](Choice& choice, int row) {
    choice.chosen.reset();
    choice.not_chosen = nullptr;
    try {
      asked.push_back(choice.answer->choice());
      asked.back().row = row;
      asking.push_back(&choice);
    } catch (...) {
      choice.not_chosen = std::current_exception();
    }
  };
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (!answers(rows[i], outcomes[i])) continue;
    Choice& choice = *find_choice(rows[i].id);
    if (choice.answer->num_tokens() > 0)
      ask(choice, outcomes[i].kept_row);
    else
      for (Choice& each : find_request(rows[i].id.request)->choices) ask(each, outcomes[i].kept_row);
  }
  try {
    const std::vector<ChosenToken> chosen = stepper_.choose(sampleable_, asked);
    for (std::size_t i = 0; i < asking.size(); ++i) asking[i]->chosen = chosen[i];
  } catch (...) {
    for (Choice* choice : asking) choice->not_chosen = std::current_exception();
  }
}

void EngineCore::finish_row(Row& row, const StepOutcome& outcome) {
  Active* active = find_request(row.id.request);
  if (active == nullptr) {  // another of its choices failed in this step
    give_back(row);
    return;
  }
  if (outcome.fault) {
    give_back(row);
    fail_request(*active, EngineErrorKind::kNumeric, numeric_error(*outcome.fault).what());
    return;
  }
  if (!score_prompt(*active, row, outcome.logits)) {
    give_back(row);
    return;
  }
  scheduler_.computed(row.id, row.num_rows);
  Choice& choice = *find_choice(row.id);
  const int start = choice.state->length() - row.num_rows;
  for (const StateSave& save : row.saves)
    cache_.insert_saved(active->request.cache_salt, std::span(choice.ids).first(static_cast<std::size_t>(start + save.row + 1)), save.slot,
                        choice.state->pages());
  if (choice.state->length() < static_cast<int>(choice.ids.size())) return;
  const auto logits = outcome.logits.empty() ? outcome.logits : outcome.logits.last(static_cast<std::size_t>(sampleable_.vocab_size));
  if (active->request.generation.prompt_only)
    finish_prompt(*active);
  else if (choice.answer->num_tokens() == 0)
    answer_prompt(*active, logits);
  else
    take_token(*active, choice, logits);
}

// False if the request has ended.
bool EngineCore::score_prompt(Active& active, const Row& row, std::span<const float> logits) {
  if (!active.scores(row.id)) return true;
  const int start = active.choices[0].state->length() - row.num_rows, first = active.scorer->scored_rows() + 1;
  if (start + row.num_rows < first) return true;
  PromptScoredEvent event{first, {}, false};
  try {
    event.tokens = active.scorer->take(logits, start);
  } catch (const std::exception& error) {
    fail_request(active, kind_of(error), error.what());
    return false;
  }
  event.last = !active.scorer->pending();
  return emit(active, std::move(event));
}

// A request for its prompt alone ends where others have their first token.
void EngineCore::finish_prompt(Active& active) {
  FinishedEvent event;
  keep(active, active.choices[0]);
  for (Choice& choice : active.choices) {
    choice.state.reset();
    choice.finish = FinishReason::kLength;
    event.reasons.push_back(FinishReason::kLength);
    ++stats_.choices_finished[static_cast<std::size_t>(FinishReason::kLength)];
    if (!emit(active, ChoiceFinishedEvent{choice.index, FinishReason::kLength, {}, 0})) return;
  }
  event.usage = usage_of(active);
  event.timings = timings_of(active);
  end(active, std::move(event));
}

// The end of the prompt: every choice takes its first token from the one row, those that go on from copies of the one state.
void EngineCore::answer_prompt(Active& active, std::span<const float> logits) {
  const std::uint64_t id = active.id;
  Choice& first = active.choices[0];
  keep(active, first);
  for (Choice& choice : active.choices)
    if (choice.index > 0) choice.ids = first.ids;
  // Forked before any token, which may end the first choice. Those that find no slot wait for one and compute the prompt again or find it
  // in the cache.
  int room = pool_->backend().num_slots() - options_.snapshot_slots - scheduler_.num_running();
  for (Choice& choice : active.choices) {
    if (choice.index == 0 || active.request.generation.max_tokens == 1) continue;
    if (room-- <= 0 || pool_->free_slots() == 0) break;
    choice.state.emplace(first.state->fork());
  }
  for (std::size_t i = 0; i < active.choices.size(); ++i) {
    Choice& choice = active.choices[i];
    if (!take_token(active, choice, logits)) return;
    if (i == 0 || choice.finish) continue;
    if (choice.state)
      scheduler_.start({id, choice.index}, {choice.state->length(), 1});
    else
      scheduler_.enqueue({id, choice.index});
  }
}

// False if the request has ended.
bool EngineCore::take_token(Active& active, Choice& choice, std::span<const float> logits) {
  AnswerToken token;
  try {
    if (choice.not_chosen) std::rethrow_exception(std::exchange(choice.not_chosen, nullptr));
    token = logits.empty() ? choice.answer->take(choice.chosen.value()) : choice.answer->take(logits);
  } catch (const std::exception& error) {
    fail_request(active, kind_of(error), error.what());
    return false;
  }
  const Clock::time_point now = Clock::now();
  if (!active.has_token) {
    active.first_token = now;
    stats_.first_token_seconds.observe(seconds_between(active.submitted, now));
  }
  if (choice.answer->num_tokens() > 1) stats_.inter_token_seconds.observe(seconds_between(choice.last_token, now));
  active.has_token = true;
  active.last_token = choice.last_token = now;
  ++active.completion_tokens;
  ++stats_.generated_tokens;
  choice.ids.push_back(token.sampled.id);
  const bool is_first = choice.answer->num_tokens() == 1;
  if (!emit(active, TokenEvent{choice.index, std::move(token.sampled), std::move(token.text), token.content_at})) return false;
  const SequenceId id{active.id, choice.index};
  if (!token.finish) {
    if (!is_first || choice.index == 0) scheduler_.append(id);
    return true;
  }
  keep(active, choice);
  choice.state.reset();
  ++releases_;
  scheduler_.remove(id);
  choice.finish = *token.finish;
  ++stats_.choices_finished[static_cast<std::size_t>(*token.finish)];
  if (!emit(active, ChoiceFinishedEvent{choice.index, *token.finish, {}, choice.answer->num_tokens()})) return false;
  FinishedEvent event;
  for (const Choice& other : active.choices) {
    if (!other.finish) return true;
    event.reasons.push_back(*other.finish);
  }
  event.usage = usage_of(active);
  event.timings = timings_of(active);
  end(active, std::move(event));
  return false;
}

}  // namespace tetrad
