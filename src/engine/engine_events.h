#pragma once
// What goes into the engine loop, a request, and what comes out, events. Times are in seconds.
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/error.h"
#include "engine/generation_request.h"
#include "engine/sampler.h"

namespace tetrad {

struct EngineRequest {
  GenerationRequest generation;
  int num_choices = 1;          // answers to the one prompt; choice 0 is the answer of a request for one
  std::string cache_salt;       // prefixes are reused among requests of equal salt only
  bool reuse_prefix = true;     // false: neither takes from the prefix cache nor adds to it
  bool take_what_fits = false;  // max_tokens may pass the context: the answer then ends with it (check_room())
  double queue_timeout = 0;     // fails if it has waited this long; 0: never
};

// The seed of a choice: choices differ, and each can be repeated.
std::uint64_t choice_seed(std::uint64_t seed, int choice);

enum class EngineErrorKind {
  kInput,          // the request is malformed, or its constraints leave no token
  kPromptTooLong,  // the prompt leaves no room for an answer in the context
  kNeverFits,      // the prompt does not fit in the pages, even alone
  kQueueFull,      // try again later
  kStopping,       // the engine drains or stops
  kQueueTimeout,
  kSlowConsumer,  // the sink had no room for an event
  kNumeric,       // the numbers of this request went non-finite
  kCapacity,      // no memory could be found for the sequence although nothing else ran
  kInternal,      // a fault of the engine, or a sink that threw
};
inline constexpr int kNumEngineErrorKinds = static_cast<int>(EngineErrorKind::kInternal) + 1;
std::string_view engine_error_name(EngineErrorKind kind);  // "input", "prompt_too_long", ...

EngineErrorKind kind_of(const std::exception& error);  // that a request fails with

// Why a request was not taken: kInput to kStopping.
class EngineRefusal : public Error {
 public:
  EngineRefusal(EngineErrorKind kind, const std::string& message) : Error(message), kind_(kind) {}
  EngineErrorKind kind() const { return kind_; }

 private:
  EngineErrorKind kind_;
};

// Throws EngineRefusal (kPromptTooLong) if the prompt and max_tokens together pass the context, unless the request takes what fits. Not
// part of what the engine checks: it ends an answer where the context ends, and some callers want to know before. context_tokens: the
// engine's.
void check_room(const EngineRequest& request, int context_tokens);

struct RequestUsage {
  int prompt_tokens = 0;
  int cached_tokens = 0;      // of the prompt, whose computation was spared
  int completion_tokens = 0;  // of all choices, stop ids included
};

struct RequestTimings {
  double queue = 0;        // from submission to the first admission
  double prefill = 0;      // from there to the first token
  double first_token = 0;  // from submission to the first token; 0 if there was none
  double decode = 0;       // from the first token to the last
  double total = 0;        // from submission to the end
};

struct StartedEvent {
  double queue_seconds = 0;
  int prompt_tokens = 0;
  int cached_tokens = 0;
};

// With prompt_logprobs: a piece of the prompt's scores. The pieces come in order, each token of the prompt but the first once, whatever is
// preempted meanwhile, and all before the first TokenEvent. A prompt of one token has none.
struct PromptScoredEvent {
  int first = 1;                     // index in the prompt of the first token of the piece
  std::vector<SampledToken> tokens;  // with logprob, and top where it was asked for
  bool last = false;                 // no piece follows
};

struct TokenEvent {
  int choice = 0;
  SampledToken sampled;
  std::string text;  // that became safe to show with this token; may lag behind
  // AnswerToken's: told once, where thinking goes before an answer in a given form.
  std::optional<std::size_t> content_at = {};
};

struct ChoiceFinishedEvent {
  int choice = 0;
  FinishReason reason = FinishReason::kStop;
  std::string text;  // after a cancel, what was held back; else empty
  int num_tokens = 0;
};

struct FinishedEvent {  // after every choice finished
  std::vector<FinishReason> reasons;
  RequestUsage usage;
  RequestTimings timings;
};

struct FailedEvent {
  EngineErrorKind kind = EngineErrorKind::kInternal;
  std::string message;
  RequestUsage usage;
  RequestTimings timings;
};

using EngineEvent = std::variant<StartedEvent, PromptScoredEvent, TokenEvent, ChoiceFinishedEvent, FinishedEvent, FailedEvent>;
bool is_terminal(const EngineEvent& event);  // FinishedEvent or FailedEvent: the last one of its request

// Where the events of one request go: Started once, then scores of the prompt, tokens, then one terminal event, nothing after it. (A
// request that fails or is cancelled while it waits has no Started.)
class EventSink {
 public:
  virtual ~EventSink() = default;
  // Called on the engine's worker thread with no lock held: must not wait. False says that there is no room: the request then fails with
  // kSlowConsumer. What it throws fails the request with kInternal. The answer to a terminal event is ignored.
  virtual bool push(EngineEvent event) = 0;
};

}  // namespace tetrad
