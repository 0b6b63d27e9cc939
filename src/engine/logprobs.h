#pragma once
// Log probabilities of tokens: log-softmax of the raw row of logits over all V ids, as a reference computes them; no bias, penalty,
// temperature or filter has a part in it.
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/generation_request.h"
#include "engine/token_selection.h"

namespace tetrad {

class Tokenizer;

// The ids that stand for a token: [0, limit) without the holes.
struct SampleableIds {
  int vocab_size = 0;  // [V], length of a row of logits
  int limit = 0;
  std::vector<int> holes;  // ascending, below limit

  static SampleableIds all(int vocab_size) { return {vocab_size, vocab_size, {}}; }
  static SampleableIds of(const Tokenizer& tokenizer, int vocab_size);
};

struct TokenLogprob {
  int id = 0;
  float logprob = 0;
};

struct SampledToken {
  int id = 0;
  std::optional<TokenLogprob> logprob;  // present when the request asks for logprobs
  std::vector<TokenLogprob> top;        // best first; ids that stand for a token only
};

// Rows of prompts whose logits a step computes at most, for their memory: V floats each.
inline constexpr int kMaxScoredRows = 64;

// Throws NumericError if the row holds a NaN or plus infinity. position: how many tokens precede the one that the row scores.
void require_sound(std::span<const float> logits, std::int64_t position);

// Scores a token and names the best ones of its row.
class LogprobReport {
 public:
  // row [V], sound and with an id above minus infinity. candidates: the same scores, of the ids that may be named; the others at minus
  // infinity or past its end. Fills logprob and top of the token, whose id is set.
  void fill(std::span<const float> row, std::span<const float> candidates, int num_top, SampledToken& token);

 private:
  std::vector<float> weights_;  // [V], reused
  std::vector<ScoredToken> best_;
};

// The scores of a prompt's tokens but the first, row by row: the row of a token scores the token after it. Rows come in order, a chunk at a
// time and each once; where the chunks end makes no difference.
class PromptScorer {
 public:
  // request.prompt_logprobs >= 0; the request is valid and outlives this.
  PromptScorer(const GenerationRequest& request, SampleableIds ids);

  int scored_rows() const { return scored_; }
  bool pending() const { return scored_ < num_rows_; }

  // logits [n, V] of the prompt's rows from first_row on, among them the next one to be scored; rows already scored, and the last one of
  // the prompt, which scores nothing in it, are passed over. Returns the scores of the tokens scored_rows() + 1 and on, as it was before.
  // Throws NumericError for a row that is not sound.
  std::vector<SampledToken> take(std::span<const float> logits, int first_row);

 private:
  std::span<const int> prompt_;
  int num_top_, num_rows_, scored_ = 0;
  SampleableIds ids_;
  LogprobReport report_;
  std::vector<float> candidates_;
};

}  // namespace tetrad
