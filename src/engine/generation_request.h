#pragma once
// What one request asks for: its prompt, how tokens are chosen, and what ends the answer.
#include <string>
#include <string_view>
#include <vector>

#include "engine/sampling_params.h"
#include "engine/token_constraint.h"

namespace tetrad {

enum class FinishReason {
  kStop,       // a stop id, a stop string, or the end of what a constraint allows
  kLength,     // max_tokens, or all that was asked for is the prompt
  kContext,    // the context is full
  kCancelled,  // the caller said so
};
std::string_view finish_reason_name(FinishReason reason);  // "stop", "length", "context", "cancelled"

struct GenerationRequest {
  std::vector<int> prompt_ids;  // the whole prompt, whatever part of it the state already holds; not empty
  SamplingParams sampling;
  std::vector<int> stop_ids;
  std::vector<std::string> stop_strings;
  bool include_stop = false;  // keep a matched stop string in the text
  bool skip_special = true;   // leave special tokens, the stop id among them, out of the text
  int max_tokens = 0;         // 0: until the context is full
  int max_length = 0;         // prompt and answer together; 0: max_positions of the model
  // Score every token of the prompt but the first and name this many of the best in its place; -1: no. Every row of the prompt is computed
  // then, whatever a cache holds of it.
  int prompt_logprobs = -1;
  TokenConstraints constraints;  // in their first state; each answer takes copies
  int min_tokens = 0;            // no stop id before so many tokens; stop strings are not held back
  bool prompt_only = false;      // no answer: ends, with kLength, when the prompt is computed, which may fill the context. max_tokens is 0
};

// Tokens that prompt and answer may have together.
int context_length(const GenerationRequest& request, int max_positions);

// Throws InputError for a request that cannot be honoured by a model with this vocabulary and context; whoever runs a request does so
// too, this serves callers that want to know before they load a model.
void validate(const GenerationRequest& request, int vocab_size, int max_positions);

}  // namespace tetrad
