#pragma once
// Log probabilities as JSON text, written as they come: lists of a prompt's length are never held as values. A number is printed once and
// the text used wherever it stands, so that equal ones compare as equal.
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/logprobs.h"

namespace tetrad {

using TokenBytes = std::function<std::string(int)>;

double finite_logprob(float logprob);  // minus infinity has no form in JSON

// A token's bytes as text; those that are no whole text are spelled out, so that different tokens stay different.
std::string token_text(const std::string& bytes);
int num_characters(std::string_view text);

// The form of completions: four lists, of tokens, of their log probabilities, of the best in their place, of where they begin in the text.
class CompletionLogprobs {
 public:
  // Of a token without a score, the first of a prompt: null.
  void add_unscored(int id, const TokenBytes& token_bytes);
  // The best `num_top` and the token itself, though it may not be among them: evaluations compare the two.
  void add(const SampledToken& sampled, int num_top, const TokenBytes& token_bytes);
  void skip_text(int characters) { offset_ += characters; }

  std::string text() const;
  void clear();  // but for the place in the text

 private:
  void add_token(const std::string& bytes);

  std::string tokens_, logprobs_, top_, offsets_;
  int offset_ = 0;  // characters before the next token
};

// vLLM's form of a prompt's: a list with null for the first token and an object for each other, keyed by id, the prompt's own token first.
// The rank is null where it is not among the best that were computed.
class PromptLogprobs {
 public:
  void add(const std::vector<SampledToken>& tokens, int num_top, const TokenBytes& token_bytes);
  std::string text() const { return "[null" + entries_ + "]"; }

 private:
  std::string entries_;
};

}  // namespace tetrad
