#include "server/response_json.h"

#include "server/response_parts.h"

namespace tetrad {

std::string sse_text(const ServerSentEvent& event) {
  std::string text = event.name.empty() ? "" : "event: " + event.name + "\n";
  return text + "data: " + event.data + "\n\n";
}

std::string anthropic_count_body(int input_tokens) { return json_text({{"input_tokens", input_tokens}}); }

ServerSentEvent openai_error_event(const ApiError& error) { return {"", openai_error_body(error)}; }

ServerSentEvent anthropic_error_event(const ApiError& error) { return {"error", anthropic_error_body(error)}; }

}  // namespace tetrad
