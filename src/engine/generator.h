#pragma once
// One request from prompt ids to text: prefill, then one row a step, tokens and text handed out as they come.
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/answer_stream.h"
#include "engine/stepper.h"
#include "text/tokenizer.h"

namespace tetrad {

// One generated token. Text may lag behind its token: incomplete code points and what may become a stop string are held back.
struct GeneratedToken {
  SampledToken sampled;
  std::string_view text;  // that became safe to show with this token; valid during the callback
};

struct GenerationTimings {
  int cached_tokens = 0;   // of the prompt, found in the state
  int prefill_tokens = 0;  // of the prompt, computed
  int decode_steps = 0;    // steps after the first token
  double prefill_seconds = 0;
  double first_token_seconds = 0;  // from the call to the first token
  double decode_seconds = 0;

  double prefill_rate() const { return prefill_seconds > 0 ? prefill_tokens / prefill_seconds : 0; }  // tokens/s
  double decode_rate() const { return decode_seconds > 0 ? decode_steps / decode_seconds : 0; }       // tokens/s
};

struct GenerationResult {
  std::vector<int> ids;  // generated, a stop id included
  std::string text;      // what the callbacks got, and after a cancel what was held back
  FinishReason finish = FinishReason::kStop;
  std::vector<SampledToken> tokens;         // with logprobs, one per id; empty unless the request asks for logprobs
  std::vector<SampledToken> prompt_scores;  // with prompt_logprobs, of every token of the prompt but the first, as far as it was computed
  GenerationTimings timings;
};

class Generator {
 public:
  using OnToken = std::function<bool(const GeneratedToken&)>;  // false cancels; that token stays part of the result
  using IsCancelled = std::function<bool()>;                   // asked before every step, so a long prefill can be left too

  Generator(StatePool& pool, const Tokenizer& tokenizer);
  // Ids only: the text stays empty, every id of the vocabulary may be chosen, and stop strings are an InputError.
  explicit Generator(StatePool& pool);

  // `state` holds a proper prefix of the prompt (or nothing; nothing, if the prompt is to be scored). Afterwards it holds the prompt and
  // every generated token but the last; after a cancel, what was computed so far. Throws InputError for a request that cannot be honoured
  // before anything is computed, and NumericError when the numbers of the sequence go non-finite: the state is then cleared.
  GenerationResult generate(SequenceState& state, const GenerationRequest& request, const OnToken& on_token = {},
                            const IsCancelled& is_cancelled = {});

  // Appends ids without choosing a token. False if cancelled before the end.
  bool prefill(SequenceState& state, std::span<const int> ids, const IsCancelled& is_cancelled = {});

 private:
  StepOutcome step(SequenceState& state, std::span<const int> ids, LogitsWanted logits, bool choose = false);
  AnswerToken next_token(AnswerStream& answer, const StepOutcome& outcome);
  std::optional<StepOutcome> prefill_chunks(SequenceState& state, std::span<const int> ids, LogitsWanted logits,
                                            const IsCancelled& is_cancelled, bool choose = false);
  std::optional<StepOutcome> score_prompt(SequenceState& state, const GenerationRequest& request, const IsCancelled& is_cancelled,
                                          std::vector<SampledToken>& scores);

  StatePool* pool_;
  const Tokenizer* tokenizer_;  // null: ids only
  Stepper stepper_;
  SampleableIds sampleable_;
};

}  // namespace tetrad
