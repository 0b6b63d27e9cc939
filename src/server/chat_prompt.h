#pragma once
// From a conversation to the tokens that the engine computes.
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "server/replay_prompt.h"
#include "server/service.h"

namespace tetrad {

struct ChatPrompt {
  std::string text;  // rendered
  std::vector<int> ids;
  bool in_reasoning = false;          // the answer begins there
  std::optional<Digest> digest = {};  // ReplayPrompt's
};
ChatPrompt chat_prompt(const Service& service, const ChatRequest& chat, ReplayCount count = ReplayCount::kQuiet);

// The bound on the thinking of an answer: the request's, else the server's; null if there is none. Throws RequestError for a model whose
// tokenizer has no tokens for the tags.
std::shared_ptr<const TokenConstraint> thinking_budget(const Service& service, const ChatRequest& chat, bool in_reasoning);

// What binds the answer to its form, to calls, or to the schemas of strict tools; null if nothing does. Throws RequestError for what cannot
// be compiled.
std::shared_ptr<const TokenConstraint> answer_constraint(const Service& service, const ChatRequest& chat, bool in_reasoning);

}  // namespace tetrad
