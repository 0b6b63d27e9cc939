#pragma once
// What the API answers instead of an answer: one value for every refusal and fault, and its body in the two shapes clients know.
#include <optional>
#include <string>

#include "base/error.h"
#include "engine/engine_events.h"

namespace tetrad {

struct ApiError {
  int status = 400;
  std::string type = "invalid_request_error";
  std::string code;   // "" becomes null
  std::string param;  // the field at fault, e.g. "messages[2].content[0].type"; "" becomes null
  std::string message;
  std::optional<int> retry_after;    // seconds, for the header Retry-After
  std::optional<bool> should_retry;  // for the header x-should-retry: false where another attempt cannot help
};

// A request that cannot be honoured; status 400 but where said otherwise.
class RequestError : public InputError {
 public:
  RequestError(std::string param, const std::string& message, std::string code = {});
  explicit RequestError(ApiError error);
  const ApiError& error() const { return error_; }

 private:
  ApiError error_;
};

template <class... Args>
[[noreturn]] void refuse(std::string param, fmt::format_string<Args...> format, Args&&... args) {
  throw RequestError(std::move(param), fmt::format(format, std::forward<Args>(args)...));
}

// Of whatever a request can fail with: a RequestError as it is, an InputError (TemplateError among them) as 400, an EngineRefusal by its
// kind, all else as 500. The text of a 500 names request_id and not the fault, which is for the log.
ApiError api_error(const std::exception& error, const std::string& request_id);
ApiError api_error(EngineErrorKind kind, const std::string& message, const std::string& request_id);

// Throws RequestError code "context_length_exceeded" if prompt and answer cannot fit. max_tokens 0: whatever is left, at least one token;
// of a request for its prompt alone, none.
void check_context(const EngineRequest& request, int context_tokens, std::string_view field);
// The same for /v1/messages, whose answers may end early with model_context_window_exceeded: the prompt alone must leave room for a token.
void check_context_anthropic(int prompt_tokens, int context_tokens);

std::string openai_error_body(const ApiError& error);     // {"error": {"message", "type", "param", "code"}}
std::string anthropic_error_body(const ApiError& error);  // {"type": "error", "error": {"type", "message"}}
int anthropic_status(const ApiError& error);              // 529 where the engine is overloaded (queue full), else error.status

}  // namespace tetrad
