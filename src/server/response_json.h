#pragma once
// What goes to the client: the engine's events of a request become chunks (a streamed request) or one body. Streamed or not, the same
// parser and the same rules are at work, so the concatenated stream equals the body field by field. No sockets, no clock, no threads.
//
// Use: make one per HTTP request, feed() it every engine event in order; streamed: send what feed() returns at once; else send body() once
// finished(). A FailedEvent before anything was returned: answer with api_error() and its status. Later feed() itself returns the error
// event.
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/answer_parser.h"
#include "server/api_error.h"
#include "server/chat_request.h"
#include "server/completion_request.h"

namespace tetrad {

struct ResponsesRequest;

// One event of a stream. OpenAI streams have no names; their end is an event with data "[DONE]".
struct ServerSentEvent {
  std::string name;
  std::string data;  // JSON on one line
};
std::string sse_text(const ServerSentEvent& event);  // "event: NAME\ndata: DATA\n\n"

enum class ReasoningFields { kBoth, kReasoningContent, kReasoning };

struct ResponseContext {
  std::string id;                    // of the response, e.g. "chatcmpl-..."
  std::int64_t created = 0;          // seconds since 1970
  std::string model;                 // the name to report
  std::string request_id;            // for errors
  bool starts_in_reasoning = false;  // prompt_opens_reasoning(); chat and messages
  bool is_bound = false;             // answer_constraint() is there: the engine tells where the content begins; chat and messages
  ReasoningFields reasoning_fields = ReasoningFields::kBoth;
  std::function<std::string()> make_id;             // of a tool call, e.g. "call_..." or "toolu_..."; unguessable, new every time
  std::function<std::string(int)> token_bytes;      // of a token id (Tokenizer::token_bytes); for logprobs and stop_reason
  std::function<std::string(int)> prompt_text;      // of prompt p; where it is asked for: echo, return_prompt_text
  std::function<std::vector<int>(int)> prompt_ids;  // of prompt p; where they or their log probabilities are asked for
};

class ResponseBuilder {
 public:
  virtual ~ResponseBuilder() = default;

  // prompt: which of a completion's prompts the event belongs to. Streamed: what to send now. Otherwise empty.
  virtual std::vector<ServerSentEvent> feed(const EngineEvent& event, int prompt = 0) = 0;
  // The whole answer, for a request that is not streamed; after finished() and without failure().
  virtual std::string body() const = 0;
  // Every prompt had its terminal event (or one failed).
  virtual bool finished() const = 0;
  // Nothing that may still come has a use (parallel_tool_calls: false): cancel the request in the engine and go on feeding; the events up
  // to and including the terminal one are still needed.
  virtual bool enough() const = 0;
  // What a silent stream says now and then, for clients that count events; nothing: a comment serves.
  virtual std::optional<ServerSentEvent> ping() = 0;
  // What the request failed with, for a request that is not streamed or of which nothing has been sent yet.
  virtual const ApiError* failure() const = 0;
};

// The requests are copied as far as needed.
std::unique_ptr<ResponseBuilder> chat_response(const ChatRequest& request, ResponseContext context);
std::unique_ptr<ResponseBuilder> completion_response(const CompletionRequest& request, ResponseContext context);
// Events have names. Begins with message_start as soon as StartedEvent says how many tokens the prompt has.
std::unique_ptr<ResponseBuilder> anthropic_response(const ChatRequest& request, ResponseContext context);

// Events have names and count up from 0. Begins with response.created when StartedEvent comes, and ends with response.completed,
// .incomplete or .failed; there is no "[DONE]".
std::unique_ptr<ResponseBuilder> responses_response(const ResponsesRequest& request, ResponseContext context);

std::string anthropic_count_body(int input_tokens);  // {"input_tokens": N}

// Of an error after the first byte: what comes instead of the rest of the stream.
ServerSentEvent openai_error_event(const ApiError& error);
ServerSentEvent anthropic_error_event(const ApiError& error);

}  // namespace tetrad
