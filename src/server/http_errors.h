#pragma once
// Errors as HTTP responses, in the shape of the API whose route was called.
#include <string_view>

#include "server/api_error.h"
#include "server/http_message.h"

namespace tetrad {

enum class ApiShape { kOpenAi, kAnthropic };
ApiShape shape_of(std::string_view path);  // /v1/messages and what is below it: Anthropic's

HttpResponse error_response(const ApiError& error, ApiShape shape);

}  // namespace tetrad
