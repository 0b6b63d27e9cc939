#pragma once
// A request of the chat kind, whatever API it came through, as a value; and the reader of OpenAI's chat completions.
//
// The caller then: chat_work(), which makes the prompt and checks the rest; submit.
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "engine/engine_events.h"
#include "server/structured_output.h"
#include "server/tool_set.h"

namespace tetrad {

inline constexpr std::size_t kMaxMessages = 16384;
inline constexpr std::size_t kMaxContentParts = 4096;  // of one message
inline constexpr std::size_t kMaxCallsOfMessage = 1024;
inline constexpr std::size_t kMaxTemplateSwitches = 64;  // chat_template_kwargs
inline constexpr int kNoThinkingBudget = -1;

// What the server knows before it reads a request.
struct RequestContext {
  SamplingParams sampling;    // of generation_config.json
  std::vector<int> stop_ids;  // of generation_config.json
  int vocab_size = 0;
  int max_choices = 16;               // bound on n
  int default_max_tokens = 0;         // of a request that states none; 0: what is left of the context
  double queue_timeout = 0;           // seconds; 0: never
  bool merge_system_messages = true;  // false: system messages anywhere but first are refused
  bool strict_fields = false;         // unknown fields are refused instead of reported
  std::uint64_t fresh_seed = 0;       // for a request that states none: a new random number every time
};

enum class ToolChoice { kAuto, kNone, kRequired, kNamed };

enum class ReasoningOutput {
  kSeparate,  // in fields of its own
  kOmit,      // include_reasoning: false
  kInline,    // separate_reasoning: false: in the content, between think tags
};

struct Delivery {
  bool stream = false;
  bool include_usage = false;         // a last chunk with the usage
  bool usage_in_every_chunk = false;  // continuous_usage_stats
  bool token_ids = false;             // return_token_ids
};

struct ChatRequest {
  std::string model;                 // as the client wrote it; "" if it did not
  nlohmann::ordered_json variables;  // for ChatTemplate::render; the shape conversation_variables() yields, add_generation_prompt included
  OutputForm form;                   // of the answer's content
  EngineRequest engine;              // all but prompt_ids; max_tokens 0: what is left of the context
  std::vector<int> asked_stop_ids;   // of engine's stop ids those that the client named: what stop_reason reports
  ToolSet tools;                     // that the answer may call: empty with tool_choice none
  ToolChoice tool_choice = ToolChoice::kAuto;
  std::string named_tool;              // with ToolChoice::kNamed
  int max_tool_calls = 0;              // 0: any number; 1 with parallel_tool_calls false or a named function
  std::optional<int> thinking_budget;  // tokens; kNoThinkingBudget: none, whatever the server's default
  bool continues_last = false;         // the answer goes on where the last message, the assistant's, ends
  bool returns_prompt_text = false;
  ReasoningOutput reasoning = ReasoningOutput::kSeparate;
  Delivery delivery;
  std::string_view prompt_field = "messages";  // what the conversation comes from, for messages about it
  std::string request_id;                      // as the client wrote it in the body; "" if it did not
  bool merged_system_messages = false;         // more than one, or not first: joined into one at the start
  std::vector<std::string> unknown_fields;     // accepted, without effect; to be logged once each
};

// Every field is honoured, refused by name (RequestError with param), or listed in unknown_fields.
ChatRequest parse_chat_request(std::string_view body, const RequestContext& context);
inline ChatRequest parse_chat_request(const std::string& body, const RequestContext& context) {  // text, and not a JSON string
  return parse_chat_request(std::string_view(body), context);
}
ChatRequest parse_chat_request(const nlohmann::ordered_json& body, const RequestContext& context);

// How the rendered prompt ends, which says where the answer starts.
bool prompt_opens_reasoning(std::string_view rendered_prompt);  // "<think>", and only white space behind it

}  // namespace tetrad
