#include "server/api_error.h"

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <utility>

#include <nlohmann/json.hpp>

namespace tetrad {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kRetrySeconds = 1;
constexpr std::string_view kContextCode = "context_length_exceeded";

// Messages quote what clients sent; whatever is not UTF-8 in it must not spoil the answer.
std::string dump(const Json& value) { return value.dump(-1, ' ', false, Json::error_handler_t::replace); }

Json or_null(const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); }

ApiError overloaded(std::string code, std::string message) {
  return {.status = 503,
          .type = "overloaded_error",
          .code = std::move(code),
          .param = {},
          .message = std::move(message),
          .retry_after = kRetrySeconds,
          .should_retry = {}};
}

// Two attempts at a fault of the engine may end differently, but for those that come from the request's own numbers or size.
ApiError server_fault(std::string code, const std::string& request_id, bool may_retry) {
  return {.status = 500,
          .type = "server_error",
          .code = std::move(code),
          .param = {},
          .message = fmt::format("the server could not complete request {}: its log says why", request_id),
          .retry_after = {},
          .should_retry = may_retry ? std::nullopt : std::optional(false)};
}

}  // namespace

RequestError::RequestError(std::string param, const std::string& message, std::string code) : InputError(message) {
  error_.param = std::move(param);
  error_.code = std::move(code);
  error_.message = message;
}

RequestError::RequestError(ApiError error) : InputError(error.message), error_(std::move(error)) {}

ApiError api_error(const std::exception& error, const std::string& request_id) {
  if (const auto* request = dynamic_cast<const RequestError*>(&error)) return request->error();
  if (const auto* refusal = dynamic_cast<const EngineRefusal*>(&error)) return api_error(refusal->kind(), error.what(), request_id);
  if (dynamic_cast<const InputError*>(&error) != nullptr) return RequestError({}, error.what()).error();
  return server_fault("internal_error", request_id, true);
}

ApiError api_error(EngineErrorKind kind, const std::string& message, const std::string& request_id) {
  switch (kind) {
    case EngineErrorKind::kInput: return RequestError({}, message).error();
    case EngineErrorKind::kPromptTooLong:
    case EngineErrorKind::kNeverFits: return RequestError({}, message, std::string(kContextCode)).error();
    case EngineErrorKind::kQueueFull: return overloaded("queue_full", message);
    case EngineErrorKind::kQueueTimeout: return overloaded("queue_timeout", message);
    case EngineErrorKind::kCapacity: return overloaded("no_capacity", message);
    case EngineErrorKind::kStopping: {
      ApiError error = overloaded("stopping", message);
      error.type = "unavailable_error";
      return error;
    }
    case EngineErrorKind::kSlowConsumer: return server_fault("slow_consumer", request_id, false);
    case EngineErrorKind::kNumeric: return server_fault("numeric_error", request_id, false);
    case EngineErrorKind::kInternal: return server_fault("internal_error", request_id, true);
  }
  return server_fault("internal_error", request_id, true);
}

// The start of the sentence is what agents look for to know that they should shorten the conversation.
void check_context(const EngineRequest& request, int context_tokens, std::string_view field) {
  const GenerationRequest& generation = request.generation;
  const auto prompt_tokens = static_cast<std::int64_t>(generation.prompt_ids.size());
  const int max_tokens = generation.max_tokens, least = generation.prompt_only ? 0 : std::max(max_tokens, 1);
  if (prompt_tokens + least <= context_tokens) return;
  const std::string asked = max_tokens > 0           ? fmt::format(" and {} of the answer", max_tokens)
                            : generation.prompt_only ? ""
                                                     : ", which leaves no room for an answer";
  throw RequestError(std::string(field),
                     fmt::format("This model's maximum context length is {} tokens. However, the request has {} tokens of input{}. Shorten "
                                 "the input or lower max_tokens.",
                                 context_tokens, prompt_tokens, asked),
                     std::string(kContextCode));
}

void check_context_anthropic(int prompt_tokens, int context_tokens) {
  if (prompt_tokens < context_tokens) return;
  throw RequestError("messages", fmt::format("prompt is too long: {} tokens > {} maximum", prompt_tokens, context_tokens - 1),
                     std::string(kContextCode));
}

std::string openai_error_body(const ApiError& error) {
  return dump(
      {{"error", {{"message", error.message}, {"type", error.type}, {"param", or_null(error.param)}, {"code", or_null(error.code)}}}});
}

std::string anthropic_error_body(const ApiError& error) {
  static const std::pair<int, std::string_view> kTypes[] = {
      {401, "authentication_error"}, {403, "permission_error"}, {404, "not_found_error"}, {413, "request_too_large"},
      {429, "rate_limit_error"},     {503, "overloaded_error"}, {529, "overloaded_error"}};
  std::string_view type = error.status >= 500 ? "api_error" : "invalid_request_error";
  for (const auto& [status, name] : kTypes)
    if (status == error.status) type = name;
  const std::string where = error.param.empty() || error.message.find(error.param) != std::string::npos ? "" : error.param + ": ";
  return dump({{"type", "error"}, {"error", {{"type", type}, {"message", where + error.message}}}});
}

int anthropic_status(const ApiError& error) { return error.status == 503 && error.type == "overloaded_error" ? 529 : error.status; }

}  // namespace tetrad
