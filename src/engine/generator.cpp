#include "engine/generator.h"

#include <algorithm>
#include <chrono>
#include <optional>

#include "base/error.h"
#include "engine/stop_strings.h"

namespace tetrad {
namespace {

int context_length(const GenerationRequest& request, int max_positions) {
  return request.max_length > 0 ? std::min(request.max_length, max_positions) : max_positions;
}

class Stopwatch {
 public:
  double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

// From tokens to text that may be shown.
class TextStream {
 public:
  // Without a tokenizer no text comes out.
  TextStream(const Tokenizer* tokenizer, const GenerationRequest& request) : stops_(request.stop_strings, request.include_stop) {
    if (tokenizer != nullptr) detokenizer_.emplace(*tokenizer, request.skip_special);
  }

  std::string feed(int id) { return detokenizer_ ? stops_.feed(detokenizer_->feed(id)) : std::string(); }
  bool stopped() const { return stops_.stopped(); }
  std::string finish() {
    if (!detokenizer_) return {};
    std::string text = stops_.feed(detokenizer_->finish());
    return text + stops_.finish();
  }

 private:
  std::optional<StreamDetokenizer> detokenizer_;
  StopStrings stops_;
};

}  // namespace

std::string_view finish_reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop: return "stop";
    case FinishReason::kLength: return "length";
    case FinishReason::kContext: return "context";
    case FinishReason::kCancelled: return "cancelled";
  }
  fail<InternalError>("finish reason {} has no name", static_cast<int>(reason));
}

void validate(const GenerationRequest& request, int vocab_size, int max_positions) {
  const int max_length = context_length(request, max_positions);
  if (request.prompt_ids.empty()) fail<InputError>("the prompt is empty: at least one token is needed");
  for (std::size_t i = 0; i < request.prompt_ids.size(); ++i)
    if (request.prompt_ids[i] < 0 || request.prompt_ids[i] >= vocab_size)
      fail<InputError>("prompt token {} has id {}, outside the vocabulary [0, {})", i, request.prompt_ids[i], vocab_size);
  if (request.prompt_ids.size() >= static_cast<std::size_t>(max_length))
    fail<InputError>(
        "the prompt has {} tokens and the context holds {}, the answer included: shorten the prompt or raise the context length",
        request.prompt_ids.size(), max_length);
  if (request.max_tokens < 0) fail<InputError>("max_tokens must be at least 1, or 0 for no limit, got {}", request.max_tokens);
  validate(request.sampling, vocab_size);
  const StopStrings checks_its_strings(request.stop_strings, request.include_stop);
}

Generator::Generator(StatePool& pool, const Tokenizer& tokenizer)
    : pool_(&pool), tokenizer_(&tokenizer), stepper_(pool), sampleable_(SampleableIds::of(tokenizer, pool.backend().config().vocab_size)) {}

Generator::Generator(StatePool& pool)
    : pool_(&pool), tokenizer_(nullptr), stepper_(pool), sampleable_(SampleableIds::all(pool.backend().config().vocab_size)) {}

StepOutcome Generator::step(SequenceState& state, std::span<const int> ids, LogitsWanted logits) {
  const StepRequest request{&state, ids, logits};
  StepOutcome outcome = stepper_.run({&request, 1}).front();
  if (outcome.fault) {
    const SequenceFault& fault = *outcome.fault;
    state.clear();
    if (fault.layer < 0) fail<NumericError>("{} of row {} are not finite: the weights or the state are damaged", fault.what, fault.row);
    fail<NumericError>("layer {}: {} of row {} are not finite: the weights or the state are damaged", fault.layer, fault.what, fault.row);
  }
  return outcome;
}

std::optional<StepOutcome> Generator::prefill_chunks(SequenceState& state, std::span<const int> ids, LogitsWanted logits,
                                                     const IsCancelled& is_cancelled) {
  const auto chunk = static_cast<std::size_t>(pool_->backend().max_rows());
  StepOutcome outcome;
  while (!ids.empty()) {
    if (is_cancelled && is_cancelled()) return std::nullopt;
    const std::size_t rows = std::min(chunk, ids.size());
    outcome = step(state, ids.first(rows), rows == ids.size() ? logits : LogitsWanted::kNone);
    ids = ids.subspan(rows);
  }
  return outcome;
}

bool Generator::prefill(SequenceState& state, std::span<const int> ids, const IsCancelled& is_cancelled) {
  return prefill_chunks(state, ids, LogitsWanted::kNone, is_cancelled).has_value();
}

GenerationResult Generator::generate(SequenceState& state, const GenerationRequest& request, const OnToken& on_token,
                                     const IsCancelled& is_cancelled) {
  const int max_positions = pool_->backend().config().max_positions;
  const int max_length = context_length(request, max_positions);
  validate(request, sampleable_.vocab_size, max_positions);
  if (tokenizer_ == nullptr && !request.stop_strings.empty())
    fail<InputError>("stop strings need the text of the answer: the model has no tokenizer");
  TETRAD_CHECK(state.length() < static_cast<int>(request.prompt_ids.size()), "the state holds {} tokens of a prompt of {}", state.length(),
               request.prompt_ids.size());
  Sampler sampler(request.sampling, sampleable_, request.prompt_ids);
  TextStream stream(tokenizer_, request);

  GenerationResult result;
  GenerationTimings& timings = result.timings;
  timings.cached_tokens = state.length();
  timings.prefill_tokens = static_cast<int>(request.prompt_ids.size()) - state.length();
  const Stopwatch since_call;
  const auto cancel = [&] {
    result.finish = FinishReason::kCancelled;
    result.text += stream.finish();
    return result;
  };
  std::optional<StepOutcome> outcome = prefill_chunks(
      state, std::span(request.prompt_ids).subspan(static_cast<std::size_t>(state.length())), LogitsWanted::kLast, is_cancelled);
  timings.prefill_seconds = since_call.seconds();
  if (!outcome) return cancel();

  Stopwatch since_first;
  for (int position = static_cast<int>(request.prompt_ids.size());; ++position) {
    GeneratedToken token;
    try {
      token.sampled = sampler.sample(outcome->logits, position);
    } catch (const NumericError&) {
      state.clear();
      throw;
    }
    const int id = token.sampled.id;
    sampler.accept(id);
    result.ids.push_back(id);
    if (result.ids.size() == 1) {
      timings.first_token_seconds = since_call.seconds();
      since_first = Stopwatch();
    }
    if (request.sampling.logprobs) result.tokens.push_back(token.sampled);

    const bool stop_id = std::find(request.stop_ids.begin(), request.stop_ids.end(), id) != request.stop_ids.end();
    std::string text = stop_id && request.skip_special ? std::string() : stream.feed(id);
    std::optional<FinishReason> finish;
    if (stop_id || stream.stopped())
      finish = FinishReason::kStop;
    else if (request.max_tokens > 0 && static_cast<int>(result.ids.size()) >= request.max_tokens)
      finish = FinishReason::kLength;
    else if (position + 1 >= max_length)
      finish = FinishReason::kContext;
    if (finish) text += stream.finish();
    result.text += text;
    token.text = text;
    const bool go_on = !on_token || on_token(token);
    if (finish) {
      result.finish = *finish;
      return result;
    }
    if (!go_on || (is_cancelled && is_cancelled())) return cancel();
    outcome = step(state, {&id, 1}, LogitsWanted::kLast);
    ++timings.decode_steps;
    timings.decode_seconds = since_first.seconds();
  }
}

}  // namespace tetrad
