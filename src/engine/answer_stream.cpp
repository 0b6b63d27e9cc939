#include "engine/answer_stream.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace tetrad {

AnswerStream::AnswerStream(const GenerationRequest& request, const Tokenizer* tokenizer, const SampleableIds& sampleable, int max_positions)
    : stop_ids_(request.stop_ids),
      skip_special_(request.skip_special),
      max_tokens_(request.max_tokens),
      max_length_(context_length(request, max_positions)),
      position_(static_cast<int>(request.prompt_ids.size())),
      sampler_(request.sampling, sampleable, request.prompt_ids),
      constraints_(request.constraints, request.min_tokens, request.stop_ids, sampleable.vocab_size),
      content_begun_(constraints_.begun()),
      stops_(request.stop_strings, request.include_stop) {
  if (tokenizer != nullptr)
    detokenizer_.emplace(*tokenizer, request.skip_special);
  else if (!request.stop_strings.empty())
    fail<InputError>("stop strings need the text of the answer: the model has no tokenizer");
}

template <class Choose>
SampledToken AnswerStream::explained(Choose choose) const {
  try {
    return choose();
  } catch (const ConstraintError& error) {
    fail<ConstraintError>("{}: the constraints of the answer ({}) exclude one another, or all that they leave", error.what(),
                          constraints_.names());
  }
}

AnswerToken AnswerStream::take(std::span<const float> logits) {
  const ConstraintSet::Allowed allowed = constraints_.next();
  if (allowed.forced) return append(sampler_.force(logits, position_, *allowed.forced));
  return append(explained([&] { return sampler_.sample(logits, position_, allowed.mask); }));
}

TokenChoice AnswerStream::choice() {
  const ConstraintSet::Allowed allowed = constraints_.next();
  TokenChoice choice = sampler_.choice(position_, allowed.mask);
  if (allowed.forced) choice.forced = *allowed.forced;
  return choice;
}

AnswerToken AnswerStream::take(const ChosenToken& chosen) {
  return append(explained([&] { return sampler_.chosen(chosen, position_); }));
}

AnswerToken AnswerStream::append(SampledToken sampled) {
  AnswerToken token;
  token.sampled = std::move(sampled);
  const int id = token.sampled.id;
  sampler_.accept(id);
  constraints_.accept(id);
  ++position_;
  ++num_tokens_;
  const bool stop_id = std::find(stop_ids_.begin(), stop_ids_.end(), id) != stop_ids_.end();
  if (detokenizer_ && !(stop_id && skip_special_)) {
    const std::string text = detokenizer_->feed(id);
    text_bytes_ += text.size();
    token.text = stops_.feed(text);
  }
  if (!content_begun_ && constraints_.begun()) {
    content_begun_ = true;
    token.content_at = text_bytes_;
  }
  if (stop_id || stops_.stopped() || constraints_.must_end())
    token.finish = FinishReason::kStop;
  else if (max_tokens_ > 0 && num_tokens_ >= max_tokens_)
    token.finish = FinishReason::kLength;
  else if (position_ >= max_length_)
    token.finish = FinishReason::kContext;
  if (token.finish) token.text += flush();
  return token;
}

std::string AnswerStream::flush() {
  if (!detokenizer_) return {};
  std::string text = stops_.feed(detokenizer_->finish());
  return text + stops_.finish();
}

}  // namespace tetrad
