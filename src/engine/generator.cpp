#include "engine/generator.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <optional>

#include "base/error.h"

namespace tetrad {
namespace {

class Stopwatch {
 public:
  double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace

Generator::Generator(StatePool& pool, const Tokenizer& tokenizer)
    : pool_(&pool), tokenizer_(&tokenizer), stepper_(pool), sampleable_(SampleableIds::of(tokenizer, pool.backend().config().vocab_size)) {}

Generator::Generator(StatePool& pool)
    : pool_(&pool), tokenizer_(nullptr), stepper_(pool), sampleable_(SampleableIds::all(pool.backend().config().vocab_size)) {}

StepOutcome Generator::step(SequenceState& state, std::span<const int> ids, LogitsWanted logits, bool choose) {
  const StepRequest request{.state = &state, .token_ids = ids, .logits = logits, .choose = choose};
  StepOutcome outcome = stepper_.run({&request, 1}).front();
  if (outcome.fault) {
    state.clear();
    throw numeric_error(*outcome.fault);
  }
  return outcome;
}

std::optional<StepOutcome> Generator::prefill_chunks(SequenceState& state, std::span<const int> ids, LogitsWanted logits,
                                                     const IsCancelled& is_cancelled, bool choose) {
  const auto chunk = static_cast<std::size_t>(pool_->backend().max_rows());
  StepOutcome outcome;
  while (!ids.empty()) {
    if (is_cancelled && is_cancelled()) return std::nullopt;
    const std::size_t rows = std::min(chunk, ids.size());
    outcome = step(state, ids.first(rows), rows == ids.size() ? logits : LogitsWanted::kNone, choose);
    ids = ids.subspan(rows);
  }
  return outcome;
}

std::optional<StepOutcome> Generator::score_prompt(SequenceState& state, const GenerationRequest& request, const IsCancelled& is_cancelled,
                                                   std::vector<SampledToken>& scores) {
  TETRAD_CHECK(state.length() == 0, "the state holds {} tokens of a prompt whose tokens are to be scored", state.length());
  PromptScorer scorer(request, sampleable_);
  const auto vocab = static_cast<std::size_t>(sampleable_.vocab_size);
  const auto chunk = static_cast<std::size_t>(std::min(pool_->backend().max_rows(), kMaxScoredRows));
  std::span<const int> ids = request.prompt_ids;
  StepOutcome outcome;
  while (!ids.empty()) {
    if (is_cancelled && is_cancelled()) return std::nullopt;
    const int first_row = state.length();
    const auto piece = ids.first(std::min(chunk, ids.size()));
    outcome = step(state, piece, LogitsWanted::kAll);
    if (scorer.pending()) {
      try {
        std::vector<SampledToken> some = scorer.take(outcome.logits, first_row);
        std::move(some.begin(), some.end(), std::back_inserter(scores));
      } catch (const NumericError&) {
        state.clear();
        throw;
      }
    }
    ids = ids.subspan(piece.size());
  }
  outcome.logits = outcome.logits.last(vocab);
  return outcome;
}

AnswerToken Generator::next_token(AnswerStream& answer, const StepOutcome& outcome) {
  if (outcome.kept_row < 0) return answer.take(outcome.logits);
  TokenChoice choice = answer.choice();
  choice.row = outcome.kept_row;
  return answer.take(stepper_.choose(sampleable_, {&choice, 1}).front());
}

bool Generator::prefill(SequenceState& state, std::span<const int> ids, const IsCancelled& is_cancelled) {
  return prefill_chunks(state, ids, LogitsWanted::kNone, is_cancelled).has_value();
}

GenerationResult Generator::generate(SequenceState& state, const GenerationRequest& request, const OnToken& on_token,
                                     const IsCancelled& is_cancelled) {
  const int max_positions = pool_->backend().config().max_positions;
  validate(request, sampleable_.vocab_size, max_positions);
  TETRAD_CHECK(state.length() < static_cast<int>(request.prompt_ids.size()), "the state holds {} tokens of a prompt of {}", state.length(),
               request.prompt_ids.size());
  AnswerStream answer(request, tokenizer_, sampleable_, max_positions);

  GenerationResult result;
  GenerationTimings& timings = result.timings;
  timings.cached_tokens = state.length();
  timings.prefill_tokens = static_cast<int>(request.prompt_ids.size()) - state.length();
  const Stopwatch since_call;
  const auto cancel = [&] {
    result.finish = FinishReason::kCancelled;
    result.text += answer.flush();
    return result;
  };
  const auto unknown = std::span(request.prompt_ids).subspan(static_cast<std::size_t>(state.length()));
  const LogitsWanted wanted = request.prompt_only ? LogitsWanted::kNone : LogitsWanted::kLast;
  std::optional<StepOutcome> outcome = request.prompt_logprobs >= 0
                                           ? score_prompt(state, request, is_cancelled, result.prompt_scores)
                                           : prefill_chunks(state, unknown, wanted, is_cancelled, !answer.needs_row());
  timings.prefill_seconds = since_call.seconds();
  if (!outcome) return cancel();
  if (request.prompt_only) {
    result.finish = FinishReason::kLength;
    return result;
  }

  Stopwatch since_first;
  for (;;) {
    AnswerToken token;
    try {
      token = next_token(answer, *outcome);
    } catch (const NumericError&) {
      state.clear();
      throw;
    }
    const int id = token.sampled.id;
    result.ids.push_back(id);
    if (result.ids.size() == 1) {
      timings.first_token_seconds = since_call.seconds();
      since_first = Stopwatch();
    }
    if (request.sampling.logprobs) result.tokens.push_back(token.sampled);
    result.text += token.text;
    const bool go_on = !on_token || on_token({token.sampled, token.text});
    if (token.finish) {
      result.finish = *token.finish;
      return result;
    }
    if (!go_on || (is_cancelled && is_cancelled())) return cancel();
    outcome = step(state, {&id, 1}, LogitsWanted::kLast, !answer.needs_row());
    ++timings.decode_steps;
    timings.decode_seconds = since_first.seconds();
  }
}

}  // namespace tetrad
