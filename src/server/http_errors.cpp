#include "server/http_errors.h"

namespace tetrad {

ApiShape shape_of(std::string_view path) {
  constexpr std::string_view kMessages = "/v1/messages";
  const bool below = path.starts_with(kMessages) && (path.size() == kMessages.size() || path[kMessages.size()] == '/');
  return below ? ApiShape::kAnthropic : ApiShape::kOpenAi;
}

HttpResponse error_response(const ApiError& error, ApiShape shape) {
  const bool anthropic = shape == ApiShape::kAnthropic;
  HttpResponse response{.status = anthropic ? anthropic_status(error) : error.status,
                        .body = anthropic ? anthropic_error_body(error) : openai_error_body(error)};
  if (error.status == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer");
  if (error.retry_after) response.headers.emplace_back("Retry-After", std::to_string(*error.retry_after));
  if (error.should_retry) response.headers.emplace_back("x-should-retry", *error.should_retry ? "true" : "false");
  return response;
}

}  // namespace tetrad
