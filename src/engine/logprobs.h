#pragma once
// Log probabilities of tokens: log-softmax of the raw row of logits over all V ids, as a reference computes them; no bias, penalty,
// temperature or filter has a part in it.
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

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

}  // namespace tetrad
