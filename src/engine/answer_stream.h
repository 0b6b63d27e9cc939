#pragma once
// From rows of logits to an answer: the token, the text that may be shown, and whether the answer ends with it. One AnswerStream is one
// answer; whoever runs requests, alone or many in one batch, feeds it a row per token.
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/generation_request.h"
#include "engine/sampler.h"
#include "engine/stop_strings.h"
#include "text/tokenizer.h"

namespace tetrad {

struct AnswerToken {
  SampledToken sampled;
  std::string text;  // that became safe to show: incomplete code points and what may become a stop string are held back
  std::optional<FinishReason> finish;
  // With the last token before the content that the constraints speak of, where something goes before it: the content's first byte,
  // counted from the start of the answer's text.
  std::optional<std::size_t> content_at = {};
};

class AnswerStream {
 public:
  // Without a tokenizer no text comes out and stop strings are an InputError. `request` is valid (validate()); it need not outlive this.
  AnswerStream(const GenerationRequest& request, const Tokenizer* tokenizer, const SampleableIds& sampleable, int max_positions);

  // logits [V] of the newest token, of the prompt at first. Not to be called after a finish. Throws NumericError as Sampler does,
  // and ConstraintError where the request's constraints leave no token.
  AnswerToken take(std::span<const float> logits);

  // The same where the row stays with a backend that chooses from it: what it is asked, with the row left open, valid until the next
  // call; then what it answers. Each choice() is followed by its take(), which throws as the one above.
  TokenChoice choice();
  AnswerToken take(const ChosenToken& chosen);
  bool needs_row() const { return sampler_.needs_row(); }  // only the take() of logits will do

  // No more rows come: the text that was held back.
  std::string flush();

  int position() const { return position_; }      // of the token to come: those of the prompt and of the answer so far
  int num_tokens() const { return num_tokens_; }  // of the answer so far

 private:
  template <class Choose>
  SampledToken explained(Choose choose) const;
  AnswerToken append(SampledToken sampled);

  std::vector<int> stop_ids_;
  bool skip_special_;
  int max_tokens_, max_length_, position_;
  int num_tokens_ = 0;
  Sampler sampler_;
  ConstraintSet constraints_;
  std::size_t text_bytes_ = 0;  // of the answer so far, what is held back included
  bool content_begun_;
  std::optional<StreamDetokenizer> detokenizer_;
  StopStrings stops_;
};

}  // namespace tetrad
