#include "engine/engine_core.h"

#include <algorithm>
#include <utility>

namespace tetrad {
namespace {

int slots_to_run(int num_slots, const EngineOptions& options) {
  if (options.snapshot_slots < 0 || options.snapshot_slots >= num_slots)
    fail<InputError>("{} state slots are set aside for the prefix cache, of {}: at least one must remain to run in", options.snapshot_slots,
                     num_slots);
  return num_slots - options.snapshot_slots;
}

// A number of tokens that fits an int whatever the backend's size.
int clamped(std::int64_t tokens, int limit) { return static_cast<int>(std::min<std::int64_t>(tokens, limit)); }

}  // namespace

EngineCore::EngineCore(StatePool& pool, const Tokenizer* tokenizer, const EngineOptions& options)
    : pool_(&pool),
      tokenizer_(tokenizer),
      options_(options),
      sampleable_(tokenizer != nullptr ? SampleableIds::of(*tokenizer, pool.backend().config().vocab_size)
                                       : SampleableIds::all(pool.backend().config().vocab_size)),
      context_tokens_(clamped(static_cast<std::int64_t>(pool.backend().num_pages()) * pool.layout().page_tokens,
                              pool.backend().config().max_positions)),
      queue_limits_{.max_waiting = options.max_waiting,
                    .max_waiting_tokens = options.max_waiting_tokens,
                    .context_tokens = pool.backend().config().max_positions,
                    .capacity_tokens = context_tokens_},
      cache_(pool, {.device_slots = options.snapshot_slots, .host_bytes = options.host_cache_bytes}),
      scheduler_({.max_rows = options.max_rows > 0 ? std::min(options.max_rows, pool.backend().max_rows()) : pool.backend().max_rows(),
                  .max_prefill_rows = options.max_prefill_rows,
                  .max_running = slots_to_run(pool.backend().num_slots(), options),
                  .page_tokens = pool.layout().page_tokens}),
      stepper_(pool) {
  if (options.max_scored_rows < 1)
    fail<InputError>("rows of a step that score prompts must be at least 1, got {}", options.max_scored_rows);
}

void EngineCore::check_load(const EngineRequest& request, const QueueLoad& load) const {
  const auto prompt_tokens = static_cast<std::int64_t>(request.generation.prompt_ids.size());
  const std::optional<Refusal> refusal = refusal_of(queue_limits_, load, prompt_tokens, request.generation.prompt_only ? 0 : 1);
  if (!refusal) return;
  const std::string_view answer = request.generation.prompt_only ? "" : ", the answer included";
  switch (*refusal) {
    case Refusal::kPromptTooLong:
      throw EngineRefusal(EngineErrorKind::kPromptTooLong,
                          fmt::format("the prompt has {} tokens and the context holds {}{}: shorten the prompt", prompt_tokens,
                                      queue_limits_.context_tokens, answer));
    case Refusal::kNeverFits:
      throw EngineRefusal(EngineErrorKind::kNeverFits,
                          fmt::format("the prompt has {} tokens and the memory planned for state holds {} of one sequence{}: shorten the "
                                      "prompt or start with more state memory",
                                      prompt_tokens, queue_limits_.capacity_tokens, answer));
    case Refusal::kQueueFull:
      throw EngineRefusal(EngineErrorKind::kQueueFull,
                          fmt::format("{} with {} prompt tokens {} already: try again later",
                                      load.requests == 1 ? "1 request" : fmt::format("{} requests", load.requests), load.tokens,
                                      load.requests == 1 ? "waits" : "wait"));
  }
}

void EngineCore::check(const EngineRequest& request) const {
  check_load(request, {});
  const auto refuse = [](const std::string& message) { throw EngineRefusal(EngineErrorKind::kInput, message); };
  try {
    validate(request.generation, sampleable_.vocab_size, context_tokens_);
  } catch (const InputError& error) {
    refuse(error.what());
  }
  if (request.num_choices < 1 || request.num_choices > options_.max_choices)
    refuse(fmt::format("the number of choices must be from 1 to {}, got {}", options_.max_choices, request.num_choices));
  if (tokenizer_ == nullptr && !request.generation.stop_strings.empty())
    refuse("stop strings need the text of the answer: the model has no tokenizer");
  if (!(request.queue_timeout >= 0)) refuse(fmt::format("queue_timeout must be at least 0 seconds, got {}", request.queue_timeout));
}

void EngineCore::add(std::uint64_t id, EngineRequest request, std::shared_ptr<EventSink> sink, Clock::time_point submitted) {
  TETRAD_CHECK(!requests_.contains(id), "request {} is there already", id);
  ++stats_.submitted;
  Active& active = requests_[id];
  active.id = id;
  active.request = std::move(request);
  active.sink = std::move(sink);
  active.submitted = submitted;
  active.choices.resize(static_cast<std::size_t>(active.request.num_choices));
  try {
    for (std::size_t i = 0; i < active.choices.size(); ++i) {
      GenerationRequest generation = active.request.generation;
      generation.sampling.seed = choice_seed(generation.sampling.seed, static_cast<int>(i));
      active.choices[i].index = static_cast<int>(i);
      active.choices[i].answer.emplace(generation, tokenizer_, sampleable_, context_tokens_);
    }
  } catch (const std::exception& error) {
    fail_request(active, kind_of(error), error.what());
    return;
  }
  if (active.request.generation.prompt_logprobs >= 0) active.scorer.emplace(active.request.generation, sampleable_);
  active.choices[0].ids = active.request.generation.prompt_ids;
  scheduler_.enqueue({id, 0});
}

void EngineCore::cancel(std::uint64_t id) {
  Active* active = find_request(id);
  if (active == nullptr) return;
  for (Choice& choice : active->choices) {
    if (choice.finish) continue;
    scheduler_.remove({id, choice.index});
    keep(*active, choice);  // a client that comes back finds what was computed
    choice.state.reset();
    choice.finish = FinishReason::kCancelled;
    ++stats_.choices_finished[static_cast<std::size_t>(FinishReason::kCancelled)];
    if (!emit(*active, ChoiceFinishedEvent{choice.index, FinishReason::kCancelled, choice.answer->flush(), choice.answer->num_tokens()}))
      return;
  }
  FinishedEvent event{{}, usage_of(*active), timings_of(*active)};
  for (const Choice& choice : active->choices) event.reasons.push_back(*choice.finish);
  end(*active, std::move(event));
}

void EngineCore::fail_all(EngineErrorKind kind, const std::string& message) {
  while (!requests_.empty()) fail_request(requests_.begin()->second, kind, message);
}

EngineCore::Active* EngineCore::find_request(std::uint64_t id) {
  const auto found = requests_.find(id);
  return found == requests_.end() ? nullptr : &found->second;
}

EngineCore::Choice* EngineCore::find_choice(SequenceId id) {
  Active* active = find_request(id.request);
  return active == nullptr ? nullptr : &active->choices[static_cast<std::size_t>(id.choice)];
}

std::optional<Admission> EngineCore::admit(SequenceId id, int headroom) {
  const Blocked now{id, headroom, pool_->free_pages(), cache_.stats().inserts, releases_};
  if (headroom > 0 && blocked_ == now) return std::nullopt;
  const std::optional<Admission> admission = try_admit(id, headroom);
  blocked_ = admission ? std::nullopt : std::optional(now);
  return admission;
}

std::optional<Admission> EngineCore::try_admit(SequenceId id, int headroom) {
  const Active& active = requests_.at(id.request);
  Choice& choice = *find_choice(id);
  if (pool_->free_slots() == 0) return std::nullopt;
  // A prompt that is to be scored needs the logits of its rows: it resumes behind those that have given their scores, after a preemption,
  // and never behind others.
  std::span<const int> reusable = choice.ids;
  if (active.scores(id)) reusable = reusable.first(static_cast<std::size_t>(active.scorer->scored_rows()) + 1);
  const PrefixCache::Match match = active.request.reuse_prefix ? cache_.find(active.request.cache_salt, reusable) : PrefixCache::Match{};
  const int tokens = static_cast<int>(choice.ids.size()), page_tokens = pool_->layout().page_tokens;
  // Before anything is evicted for it: whether that would be enough.
  const int wanted = (tokens + page_tokens - 1) / page_tokens - match.device_pages() + headroom;
  if (wanted > pool_->free_pages() && wanted > pool_->free_pages() + cache_.reclaimable_pages(match)) return std::nullopt;
  choice.state.emplace(*pool_);
  try {
    if (match.found()) cache_.resume(match, *choice.state);
  } catch (const CapacityError&) {
    choice.state.reset();
    return std::nullopt;
  }
  if (!reserve(id, tokens - choice.state->length())) {
    choice.state.reset();
    return std::nullopt;
  }
  if (active.request.reuse_prefix && cache_.enabled())
    choice.snapshot_points = snapshot_points(choice.state->length(), static_cast<int>(active.request.generation.prompt_ids.size()),
                                             match.shared_tokens(), page_tokens, options_.snapshots);
  return Admission{choice.state->length(), tokens - choice.state->length()};
}

bool EngineCore::reserve(SequenceId id, int num_rows) {
  SequenceState& state = *find_choice(id)->state;
  while (state.pages_to_prepare(num_rows) > pool_->free_pages())
    if (!cache_.evict_one()) return false;
  state.prepare(num_rows);
  return true;
}

void EngineCore::release(SequenceId id) {
  Choice& choice = *find_choice(id);
  keep(requests_.at(id.request), choice);  // may spare the computation if memory for it remains
  choice.state.reset();
  ++releases_;
}

void EngineCore::keep(const Active& active, const Choice& choice) {
  if (!active.request.reuse_prefix || !choice.state || choice.state->length() == 0) return;
  cache_.insert(active.request.cache_salt, std::span(choice.ids).first(static_cast<std::size_t>(choice.state->length())), *choice.state);
}

bool EngineCore::emit(Active& active, EngineEvent event) {
  try {
    if (active.sink->push(std::move(event))) return true;
  } catch (const std::exception& error) {
    fail_request(active, EngineErrorKind::kInternal, fmt::format("the receiver of events failed: {}", error.what()));
    return false;
  } catch (...) {
    fail_request(active, EngineErrorKind::kInternal, "the receiver of events failed");
    return false;
  }
  fail_request(active, EngineErrorKind::kSlowConsumer, "events were not read as fast as they came: the request is given up");
  return false;
}

void EngineCore::fail_request(Active& active, EngineErrorKind kind, const std::string& message) {
  ++stats_.failed[static_cast<std::size_t>(kind)];
  end(active, FailedEvent{kind, message, usage_of(active), timings_of(active)});
}

// The request is gone afterwards.
void EngineCore::end(Active& active, EngineEvent terminal) {
  if (std::holds_alternative<FinishedEvent>(terminal)) ++stats_.finished;
  stats_.request_seconds.observe(seconds_between(active.submitted, Clock::now()));
  for (const Choice& choice : active.choices) scheduler_.remove({active.id, choice.index});
  const std::shared_ptr<EventSink> sink = std::move(active.sink);
  const std::uint64_t id = active.id;
  requests_.erase(id);
  ++releases_;
  try {
    sink->push(std::move(terminal));
  } catch (...) {  // it has nowhere to be told
  }
}

RequestUsage EngineCore::usage_of(const Active& active) const {
  return {static_cast<int>(active.request.generation.prompt_ids.size()), active.cached_tokens, active.completion_tokens};
}

RequestTimings EngineCore::timings_of(const Active& active) const {
  const Clock::time_point now = Clock::now();
  RequestTimings timings;
  timings.total = seconds_between(active.submitted, now);
  timings.queue = seconds_between(active.submitted, active.started ? active.admitted : now);
  if (active.has_token) {
    timings.prefill = seconds_between(active.admitted, active.first_token);
    timings.first_token = seconds_between(active.submitted, active.first_token);
    timings.decode = seconds_between(active.first_token, active.last_token);
  }
  return timings;
}

QueueLoad EngineCore::load() const {
  QueueLoad load;
  for (const auto& [id, active] : requests_) {
    if (active.started) continue;
    ++load.requests;
    load.tokens += static_cast<std::int64_t>(active.request.generation.prompt_ids.size());
  }
  return load;
}

EngineStats EngineCore::stats() const {
  EngineStats stats = stats_;
  const QueueLoad waiting = load();
  stats.requests_waiting = waiting.requests;
  stats.waiting_tokens = waiting.tokens;
  stats.requests_running = static_cast<int>(requests_.size()) - waiting.requests;
  stats.sequences_running = scheduler_.num_running();
  stats.sequences_waiting = scheduler_.num_waiting();
  const Backend& backend = pool_->backend();
  stats.slots = backend.num_slots();
  stats.slots_taken = stats.slots - pool_->free_slots();
  stats.pages = backend.num_pages();
  stats.pages_taken = stats.pages - pool_->free_pages();
  stats.prefix_cache = cache_.stats();
  return stats;
}

}  // namespace tetrad
