#pragma once
// /v1/completions as a value.
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "server/chat_request.h"

namespace tetrad {

inline constexpr std::size_t kMaxPrompts = 1024;                    // of one request
inline constexpr std::size_t kMaxPromptIds = std::size_t{1} << 20;  // of one prompt

using CompletionPrompt = std::variant<std::string, std::vector<int>>;

struct CompletionRequest {
  std::string model;
  std::vector<CompletionPrompt> prompts;  // at least one; choice c of prompt p has index p * n + c in the answer
  EngineRequest engine;                   // for each prompt: all but prompt_ids; sampling.logprobs as asked for
  std::vector<int> asked_stop_ids;        // of engine's stop ids those that the client named: what stop_reason reports
  OutputForm form;                        // of the answers
  bool echo = false;                      // the prompt's text comes before the answer's; with logprobs, so do its log probabilities
  std::optional<int> prompt_logprobs;     // in a list of their own; the engine's number serves echo too
  Delivery delivery;
  std::string request_id;
  std::vector<std::string> unknown_fields;
};

// Refused by name: suffix, best_of over n, and what chat refuses.
CompletionRequest parse_completion_request(std::string_view body, const RequestContext& context);

}  // namespace tetrad
