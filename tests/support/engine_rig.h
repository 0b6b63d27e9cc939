#pragma once
// Engine tests without a model: scripts for a ScriptedBackend, and a sink that writes down what a request got.
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine_events.h"
#include "engine/event_buffer.h"
#include "support/scripted_backend.h"

namespace tetrad::testing {

// Answers each prompt with its tokens and then with `after` for ever. Prompts of which none is the beginning of another's conversation.
using CannedAnswers = std::vector<std::pair<std::vector<int>, std::vector<int>>>;
ScriptedBackend::Script canned_script(CannedAnswers answers, int after);

// Logits that depend on every token before them, without pattern: a state that is wrong in any token shows in the tokens chosen. `stop`
// comes up about once in 24 tokens, the two ids below it never.
ScriptedBackend::Script hashed_script(int stop);

// What one request got, and checks of the order of events on the way (googletest failures).
class RecordingSink : public EventSink {
 public:
  struct Answer {
    std::vector<int> ids;
    std::string text;
    std::optional<FinishReason> finish;
    std::vector<SampledToken> tokens;
  };

  explicit RecordingSink(int num_choices = 1) : choices(static_cast<std::size_t>(num_choices)) {}
  bool push(EngineEvent event) override;
  bool ended() const { return terminals > 0; }

  std::vector<Answer> choices;
  std::optional<StartedEvent> started;
  std::optional<FinishedEvent> finished;
  std::optional<FailedEvent> failed;
  std::vector<SampledToken> prompt_scores;
  bool scored = false;  // the last piece has come
  int score_pieces = 0;
  int events = 0, terminals = 0;
  int refuse_at = -1, throw_at = -1;  // the event with this index is refused, or thrown at
};

// Reads a buffer to its end.
RecordingSink recorded(EventBuffer& buffer, int num_choices = 1);

}  // namespace tetrad::testing
