#pragma once
// The engine without its thread: requests are added, step() advances all of them by one packed step, events go to their sinks.
// EngineLoop runs it; a test may drive it by hand. Not thread-safe but for check() and check_load().
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/answer_stream.h"
#include "engine/engine_events.h"
#include "engine/engine_stats.h"
#include "engine/prefix_cache.h"
#include "engine/scheduler.h"
#include "engine/stepper.h"

namespace tetrad {

struct EngineOptions {
  int max_rows = 0;          // packed rows of a step; 0: as many as the backend takes
  int max_prefill_rows = 0;  // of them for prompts; 0: no bound of their own
  // Of the backend's slots, set aside for the prefix cache; at least one remains to run in. A request leaves three points or more: with
  // fewer slots than that for each conversation, the second tier is what keeps them.
  int snapshot_slots = 0;
  std::size_t host_cache_bytes = 0;  // second tier of the prefix cache
  SnapshotPolicy snapshots = {};
  int max_waiting = 1024;                // requests
  std::int64_t max_waiting_tokens = 0;   // of their prompts; 0: no limit
  int max_choices = 16;                  // of a request
  int max_scored_rows = kMaxScoredRows;  // rows of a step whose logits score prompts, all prompts together (but one of each)
};

class EngineCore : private Capacity {
 public:
  using Clock = std::chrono::steady_clock;

  // tokenizer may be null: ids only, no text. Both outlive this. Throws InputError for options that cannot be.
  EngineCore(StatePool& pool, const Tokenizer* tokenizer, const EngineOptions& options);

  // Throw EngineRefusal for a request that add() must not be given: for its own sake, and for what waits already. They read constants only:
  // may be called from any thread.
  void check(const EngineRequest& request) const;
  void check_load(const EngineRequest& request, const QueueLoad& load) const;

  void add(std::uint64_t id, EngineRequest request, std::shared_ptr<EventSink> sink, Clock::time_point submitted);  // ids grow
  void cancel(std::uint64_t id);  // ends with FinishReason::kCancelled; nothing if the request is not there any more
  void fail_all(EngineErrorKind kind, const std::string& message);
  // One packed step at most. on_started is called before it is computed if it started requests, whose counts it would hold up.
  void step(const std::function<void()>& on_started = {});

  bool idle() const { return requests_.empty(); }
  QueueLoad load() const;                                 // that waits to be started
  int context_tokens() const { return context_tokens_; }  // of prompt and answer: of the model, and of the pages there are
  EngineStats stats() const;

 private:
  static double seconds_between(Clock::time_point from, Clock::time_point to) { return std::chrono::duration<double>(to - from).count(); }

  struct Choice {
    int index = 0;
    std::vector<int> ids;                // prompt and answer; the state holds the first of them
    std::optional<SequenceState> state;  // while it runs
    std::optional<AnswerStream> answer;
    std::optional<FinishReason> finish;
    std::vector<int> snapshot_points;
    Clock::time_point last_token;
    // Of the present step, where its row of logits stays with the backend: what that chose, or why it was not asked.
    std::optional<ChosenToken> chosen;
    std::exception_ptr not_chosen;
  };
  struct Active {
    std::uint64_t id = 0;
    EngineRequest request;
    std::shared_ptr<EventSink> sink;
    Clock::time_point submitted, admitted, first_token, last_token;
    bool started = false, has_token = false;
    int cached_tokens = 0, completion_tokens = 0;
    std::vector<Choice> choices;
    std::optional<PromptScorer> scorer;  // with prompt_logprobs; choice 0 computes the prompt

    bool scores(const SequenceId& sequence) const { return sequence.choice == 0 && scorer && scorer->pending(); }
  };
  // Why the first that waits was not admitted: as long as this holds, another attempt would end the same.
  struct Blocked {
    SequenceId id;
    int headroom = 0, free_pages = 0;
    std::uint64_t inserts = 0, releases = 0;
    friend bool operator==(const Blocked&, const Blocked&) = default;
  };
  struct Row {  // of the present step
    SequenceId id;
    int num_rows = 0;
    std::vector<StateSave> saves;
  };

  std::optional<Admission> admit(SequenceId id, int headroom) override;
  std::optional<Admission> try_admit(SequenceId id, int headroom);
  bool reserve(SequenceId id, int num_rows) override;
  void release(SequenceId id) override;

  Active* find_request(std::uint64_t id);
  Choice* find_choice(SequenceId id);
  void expire_waiting();
  void start(Active& active);
  void run(std::vector<Row>& rows);
  int rows_to_run(const PlannedRows& planned, int scored_share);
  StepRequest step_request(const Row& row);
  bool score_prompt(Active& active, const Row& row, std::span<const float> logits);
  std::vector<StateSave> snapshots_within(const Active& active, const Choice& choice, int num_rows);
  bool answers(const Row& row, const StepOutcome& outcome);
  void choose_tokens(std::span<const Row> rows, std::span<const StepOutcome> outcomes);
  void finish_row(Row& row, const StepOutcome& outcome);
  void give_back(Row& row);
  void finish_prompt(Active& active);
  void answer_prompt(Active& active, std::span<const float> logits);
  bool take_token(Active& active, Choice& choice, std::span<const float> logits);
  void keep(const Active& active, const Choice& choice);
  bool emit(Active& active, EngineEvent event);
  void fail_request(Active& active, EngineErrorKind kind, const std::string& message);
  void end(Active& active, EngineEvent terminal);
  RequestUsage usage_of(const Active& active) const;
  RequestTimings timings_of(const Active& active) const;

  StatePool* pool_;
  const Tokenizer* tokenizer_;
  EngineOptions options_;
  SampleableIds sampleable_;
  int context_tokens_;
  QueueLimits queue_limits_;
  PrefixCache cache_;
  Scheduler scheduler_;
  Stepper stepper_;
  std::map<std::uint64_t, Active> requests_;
  std::optional<Blocked> blocked_;
  std::uint64_t releases_ = 0;  // of sequences' states
  int stalled_steps_ = 0;
  EngineStats stats_;
};

}  // namespace tetrad
