#pragma once
// Which rows the next step holds: continuous batching over one packed step. Pure policy: no device, no clock, no thread; the same calls
// give the same plans. Not thread-safe.
//
// A sequence is one answer. It waits, then runs: it holds a slot and has a number of pending tokens, those its state does not hold yet.
// One pending token is a decode row, more are prefill.
//  - Decode rows go first, one each. While a prompt is pending they leave it a part of the budget, so neither starves the other; when not
//    all find room they take turns.
//  - The rest goes to prompts in turns, one chunk each: a prompt waits at most one step for every prompt before it, however long those are.
//    A chunk that cuts a prompt ends at the end of a page wherever it can.
//  - Waiting sequences are admitted in the order of their ids as soon as one fits; none overtakes the first.
//  - When a running sequence finds no page, the youngest running one is preempted: it gives up everything and waits again at its place,
//    which is before all that came after it. It may be the one that asked. The oldest always advances, so all do in the end.
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

namespace tetrad {

// In the order of arrival.
struct SequenceId {
  std::uint64_t request = 0;
  int choice = 0;
  friend bool operator==(const SequenceId&, const SequenceId&) = default;
  friend bool operator<(const SequenceId& a, const SequenceId& b) {
    return a.request != b.request ? a.request < b.request : a.choice < b.choice;
  }
};

struct SchedulerLimits {
  int max_rows = 512;        // packed rows of a step, the token budget; at least 1
  int max_prefill_rows = 0;  // of a step, all prompts together; 0: max_rows. Bounds how long a prompt holds up the decode rows
  int max_running = 1;       // sequences that hold a slot; at least 1
  int page_tokens = 64;
};

// What may wait. A limit of 0 is none, but for the two capacities.
struct QueueLimits {
  int max_waiting = 1024;               // requests
  std::int64_t max_waiting_tokens = 0;  // of their prompts
  int context_tokens = 0;               // of prompt and answer: the model's
  int capacity_tokens = 0;              // of one sequence that has all pages to itself
};
struct QueueLoad {
  int requests = 0;
  std::int64_t tokens = 0;
};
enum class Refusal {
  kPromptTooLong,  // leaves no room for an answer in the model's context
  kNeverFits,      // in the pages there are, even alone
  kQueueFull,      // now; later it may be taken
};
// Why a prompt cannot join the queue, with room for answer_tokens after it; a queue that is empty takes a prompt of any number of tokens.
// Lasting reasons come first.
std::optional<Refusal> refusal_of(const QueueLimits& limits, const QueueLoad& load, std::int64_t prompt_tokens,
                                  std::int64_t answer_tokens = 1);

struct Admission {
  int length = 0;   // tokens that the state holds already: found in a cache
  int pending = 0;  // tokens to compute, at least 1
};

// The memory that a plan spends. The engine implements it over the pools, tests over numbers.
class Capacity {
 public:
  virtual ~Capacity() = default;
  // Gives a waiting sequence a slot, what can be reused, and pages for all of its pending tokens, if that leaves `headroom` pages to be
  // had. All or nothing.
  virtual std::optional<Admission> admit(SequenceId id, int headroom) = 0;
  // Pages for the next num_rows tokens of a running sequence; false if there are none to be had.
  virtual bool reserve(SequenceId id, int num_rows) = 0;
  // A preempted sequence gives its slot and pages back.
  virtual void release(SequenceId id) = 0;
};

struct PlannedRows {
  SequenceId id;
  int num_rows = 0;
};

struct StepPlan {
  std::vector<PlannedRows> rows;  // each sequence at most once
  int total_rows = 0;             // of all; at most max_rows
  std::vector<SequenceId> admitted, preempted;
  std::optional<SequenceId> unservable;  // does not fit although nothing else runs: to be failed and removed by the caller
};

class Scheduler {
 public:
  explicit Scheduler(const SchedulerLimits& limits);  // throws InputError

  void enqueue(SequenceId id);                 // joins those that wait
  void start(SequenceId id, Admission state);  // runs at once: a fork, whose slot the caller has got
  void remove(SequenceId id);                  // in any phase; what it held is the caller's to give back
  void computed(SequenceId id, int num_rows);  // its planned rows were run
  void append(SequenceId id);                  // one more pending token: the one just chosen

  // Decides the next step and carries out its admissions and preemptions.
  StepPlan plan(Capacity& capacity);

  int num_running() const { return static_cast<int>(running_.size()); }
  int num_waiting() const { return static_cast<int>(waiting_.size()); }
  bool has_room() const { return num_running() < limits_.max_running; }
  bool idle() const { return running_.empty() && waiting_.empty(); }

 private:
  struct Running {
    int length = 0, pending = 0;
    std::uint64_t turn = 0;  // when it was last served; the lowest is next
    bool planned = false;    // in the plan that is being made
  };

  std::vector<SequenceId> in_turn(bool decode) const;
  bool prefill_is_due() const;
  void add_decode_rows(Capacity& capacity, int budget, StepPlan& plan);
  void admit_waiting(Capacity& capacity, StepPlan& plan);
  void add_prefill_chunks(Capacity& capacity, StepPlan& plan);
  int chunk_of(const Running& sequence, int budget) const;
  bool add_rows(Capacity& capacity, SequenceId id, int num_rows, StepPlan& plan);
  void preempt_youngest(Capacity& capacity, StepPlan& plan);
  Running& running(SequenceId id);

  SchedulerLimits limits_;
  std::set<SequenceId> waiting_;
  std::map<SequenceId, Running> running_;
  std::uint64_t turn_ = 0, step_ = 0;
};

}  // namespace tetrad
