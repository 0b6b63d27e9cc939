#pragma once
// Pieces that the responses of all APIs are made of.
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "engine/engine_events.h"
#include "engine/stop_strings.h"
#include "server/answer_parser.h"
#include "server/response_json.h"

namespace tetrad {

std::string json_text(const nlohmann::ordered_json& value);  // on one line; never throws

// prompt, completion and total tokens, with how many were cached and, where given, how many were reasoning.
nlohmann::ordered_json usage_json(const RequestUsage& usage, std::optional<int> reasoning_tokens);

// llama.cpp's account of where the time went: milliseconds and rates of the prompt, without what was cached, and of the answers.
nlohmann::ordered_json timings_json(const RequestUsage& usage, const RequestTimings& timings);

// A token of an answer as text and as bytes (exact where the text of one token is not whole), with the best ones in its place.
nlohmann::ordered_json token_logprobs(const SampledToken& sampled, const std::function<std::string(int)>& token_bytes);

// Adds a field to the text of an object; value is JSON.
void add_member(std::string& object, std::string_view key, std::string_view value);
std::string ids_text(std::span<const int> ids);  // [1,2,3]

// Which of the stops of a request ended an answer: the engine says only that one did.
class StopFinder {
 public:
  StopFinder(const GenerationRequest& generation, std::vector<int> reported_ids, std::function<std::string(int)> token_bytes);
  void add(int id);
  const std::string* matched_string() const { return strings_.matched(); }
  nlohmann::ordered_json stop_reason(FinishReason reason) const;  // the string, the id if the client named it, or null

 private:
  std::vector<int> stop_ids_, reported_ids_;
  std::function<std::string(int)> token_bytes_;
  StopStrings strings_;
  bool has_strings_;
  int last_id_ = -1;
};

// How the answers of a chat request are read. `tools` outlives the form.
AnswerForm answer_form(const ChatRequest& request, const ToolSet& tools, const ResponseContext& context);

// One answer of a chat request: from the engine's events to the parser's, with reasoning where the request wants it.
class ChatChoice {
 public:
  ChatChoice(const ChatRequest& request, const ToolSet& tools, const ResponseContext& context);

  std::vector<AnswerEvent> feed(const TokenEvent& event);
  std::vector<AnswerEvent> finish(const ChoiceFinishedEvent& event);

  bool enough() const { return finished_ || parser_.enough(); }
  int reasoning_tokens() const { return reasoning_tokens_; }
  bool in_reasoning() const { return parser_.in_reasoning(); }

  // After finish().
  bool called_tools() const { return parser_.complete_calls() > 0 && !cut(); }
  bool cut() const { return parser_.has_incomplete_call() || (out_of_tokens(reason_) && !parser_.enough()); }
  FinishReason reason() const { return reason_; }
  const StopFinder& stops() const { return stops_; }

 private:
  static bool out_of_tokens(FinishReason reason) { return reason == FinishReason::kLength || reason == FinishReason::kContext; }
  std::vector<AnswerEvent> shaped(std::vector<AnswerEvent> events, bool last);

  ReasoningOutput reasoning_;
  AnswerParser parser_;
  StopFinder stops_;
  bool inside_tags_ = false;  // kInline: the opening tag is written, the closing one is not
  bool finished_ = false;
  int reasoning_tokens_ = 0;
  FinishReason reason_ = FinishReason::kStop;
};

}  // namespace tetrad
