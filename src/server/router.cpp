#include "server/router.h"

#include <fmt/format.h>

#include <algorithm>
#include <new>

#include "server/generation_routes.h"
#include "server/http_errors.h"
#include "server/http_wire.h"
#include "server/model_routes.h"
#include "server/page_route.h"
#include "server/render_routes.h"
#include "server/stats_route.h"

namespace tetrad {
namespace {

enum class Target {
  kPage,
  kHealth,
  kLive,
  kVersion,
  kMetrics,
  kLoad,
  kStats,
  kModels,
  kModel,
  kTokenize,
  kDetokenize,
  kTokenizerInfo,
  kCompletions,
  kChat,
  kMessages,
  kCountTokens,
  kResponses,
  kStoredResponse,
  kRenderCompletions,
  kRenderChat,
  kRenderResponses,
  kApplyTemplate,
  kLoads,
};

struct Route {
  std::string_view path;    // a path that ends in '/' takes whatever follows
  std::string_view method;  // "": any
  Target target;
  bool open = false;         // without a key
  bool needs_model = false;  // refused while it loads
  bool is_work = false;      // refused while draining
  bool generates = false;    // has its place in the journal
};

constexpr Route kRoutes[] = {
    {"/", "GET", Target::kPage, true},
    {"/ui/", "GET", Target::kPage, true},
    {"/health", "GET", Target::kHealth, true},
    {"/health/ready", "GET", Target::kHealth, true},
    {"/health/live", "GET", Target::kLive, true},
    {"/ping", "GET", Target::kHealth, true},
    {"/version", "GET", Target::kVersion},
    {"/metrics", "GET", Target::kMetrics},
    {"/load", "GET", Target::kLoad, false, true},
    {"/v1/stats", "GET", Target::kStats},
    {"/v1/loads", "GET", Target::kLoads, false, true},
    {"/v1/models", "GET", Target::kModels, false, true},
    {"/v1/models/", "GET", Target::kModel, false, true},
    {"/tokenize", "POST", Target::kTokenize, false, true, true},
    {"/detokenize", "POST", Target::kDetokenize, false, true, true},
    {"/tokenizer_info", "GET", Target::kTokenizerInfo, false, true},
    {"/v1/completions", "POST", Target::kCompletions, false, true, true, true},
    {"/v1/chat/completions", "POST", Target::kChat, false, true, true, true},
    {"/v1/messages", "POST", Target::kMessages, false, true, true, true},
    {"/v1/messages/count_tokens", "POST", Target::kCountTokens, false, true, true},
    {"/v1/responses", "POST", Target::kResponses, false, true, true, true},
    {"/v1/completions/render", "POST", Target::kRenderCompletions, false, true, true},
    {"/v1/chat/completions/render", "POST", Target::kRenderChat, false, true, true},
    {"/v1/responses/render", "POST", Target::kRenderResponses, false, true, true},
    {"/v1/responses/", "", Target::kStoredResponse},
    {"/apply-template", "POST", Target::kApplyTemplate, false, true, true},
};

const Route* find_route(std::string_view path) {
  if (path.size() > 1 && path.ends_with('/')) path.remove_suffix(1);
  for (const Route& route : kRoutes) {
    if (route.path == path) return &route;
    if (route.path.size() > 1 && route.path.ends_with('/') && path.starts_with(route.path)) return &route;
  }
  return nullptr;
}

bool takes(const Route& route, std::string_view method) {
  return route.method.empty() || method == route.method || (route.method == "GET" && method == "HEAD");
}

ApiError simple_error(int status, std::string_view type, std::string_view code, std::string message) {
  return {.status = status,
          .type = std::string(type),
          .code = std::string(code),
          .param = {},
          .message = std::move(message),
          .retry_after = {},
          .should_retry = {}};
}

ApiError unavailable(std::string_view code, std::string message, int retry_after) {
  ApiError error = simple_error(503, "unavailable_error", code, std::move(message));
  error.retry_after = retry_after;
  return error;
}

ApiError no_such_response(std::string_view path) {
  return simple_error(
      404, "not_found_error", "response_not_found",
      fmt::format("There is nothing at {}: responses are not stored. Send the whole conversation as input.", path.substr(0, 200)));
}

bool is_json(std::string_view content_type) {
  const std::string_view media = content_type.substr(0, content_type.find(';'));
  constexpr std::string_view kJson = "application/json";
  const std::size_t end = media.find_last_not_of(" \t");
  if (end == std::string_view::npos || end + 1 != kJson.size()) return false;
  return std::equal(kJson.begin(), kJson.end(), media.begin(),
                    [](char expected, char c) { return expected == (c >= 'A' && c <= 'Z' ? c + 32 : c); });
}

}  // namespace

Router::Router(const ServerState& state, ServerMetrics& metrics, ApiKeys keys, CorsPolicy cors, bool has_page)
    : state_(&state), metrics_(&metrics), keys_(std::move(keys)), cors_(std::move(cors)), has_page_(has_page) {}

void Router::set_service(std::shared_ptr<const Service> service) {
  const std::lock_guard lock(mutex_);
  service_ = std::move(service);
}

std::shared_ptr<const Service> Router::service() const {
  const std::lock_guard lock(mutex_);
  return service_;
}

std::unique_ptr<HttpResponse> Router::screen(const HttpRequest& head) {
  const ApiShape shape = shape_of(head.path);
  const auto refuse_with = [&](const ApiError& error) { return std::make_unique<HttpResponse>(error_response(error, shape)); };
  const Route* route = find_route(head.path);
  if (route != nullptr && route->target == Target::kPage && !has_page_) route = nullptr;
  // Browsers ask without the key.
  if (route != nullptr)
    if (auto permission = cors_.preflight(head, route->method)) return permission;
  if ((route == nullptr || !route->open) && !keys_.allows(head))
    return refuse_with(simple_error(401, "authentication_error", "invalid_api_key",
                                    "A valid API key is needed: 'Authorization: Bearer KEY' or 'x-api-key: KEY'."));
  if (route == nullptr)
    return refuse_with(simple_error(
        404, "not_found_error", "route_not_found",
        fmt::format("There is nothing at {} {}. See docs/http.md for what this server answers.", head.method, head.path.substr(0, 200))));
  if (!takes(*route, head.method)) {
    auto response = refuse_with(simple_error(405, "invalid_request_error", "method_not_allowed",
                                             fmt::format("{} takes {}, not {}.", route->path, route->method, head.method)));
    response->headers.emplace_back("Allow", route->method == "GET" ? "GET, HEAD" : std::string(route->method));
    return response;
  }
  const ServerPhase phase = state_->phase();
  if (route->needs_model && (phase == ServerPhase::kLoading || !service()))
    return refuse_with(unavailable("loading", fmt::format("The model is being loaded: {:.0f}% done.", 100 * state_->progress()), 2));
  if (route->is_work && phase == ServerPhase::kDraining)
    return refuse_with(unavailable("draining", "The server is being stopped and takes no more requests.", 5));
  // A web page elsewhere can send other types without asking, but not this one.
  if (route->method == "POST" && !is_json(head.header("content-type")))
    return refuse_with(simple_error(415, "invalid_request_error", "unsupported_media_type", "Content-Type must be application/json."));
  return nullptr;
}

bool Router::is_quick(const HttpRequest& head) const {
  const Route* route = find_route(head.path);
  return route == nullptr || route->method != "POST";
}

Reply Router::handle(const HttpRequest& request) noexcept {
  const ApiShape shape = shape_of(request.path);
  try {
    return answer(request);
  } catch (const std::bad_alloc&) {
    return error_response(unavailable("out_of_memory", "There is not enough memory for this request now.", 5), shape);
  } catch (const std::exception& error) {
    const auto current = service();
    const ApiError api = current ? current->error_of(error, request.id) : api_error(error, request.id);
    if (current && current->log && api.status >= 500 && api.status != 503)
      current->log(fmt::format("request {}: {}", request.id, error.what()));
    if (const Route* route = find_route(request.path); current && current->journal != nullptr && route != nullptr && route->generates)
      current->journal->refused(trace_of(request, {}, false), api);
    return error_response(api, shape);
  }
}

Reply Router::answer(const HttpRequest& request) {
  const Route* route = find_route(request.path);
  TETRAD_CHECK(route != nullptr, "a request without a route was not screened");
  const auto service = this->service();
  TETRAD_CHECK(service || !route->needs_model, "a request for a model that is not there was not screened");
  switch (route->target) {
    case Target::kPage: return page_response(std::string_view(request.path).substr(std::min(route->path.size(), request.path.size())));
    case Target::kHealth: return health();
    case Target::kLive: return HttpResponse{.body = R"({"status":"alive"})"};
    case Target::kVersion: return HttpResponse{.body = fmt::format(R"({{"version":"{}"}})", TETRAD_VERSION)};
    case Target::kMetrics: return metrics_text();
    case Target::kLoad: return server_load(*service);
    case Target::kStats: return server_stats(service.get(), *state_);
    case Target::kModels: return list_models(*service);
    case Target::kModel: return describe_model(*service, percent_decoded(std::string_view(request.path).substr(route->path.size())));
    case Target::kTokenize: return tokenize(*service, request);
    case Target::kDetokenize: return detokenize(*service, request);
    case Target::kTokenizerInfo: return HttpResponse{.body = service->tokenizer_info.dump()};
    case Target::kCompletions: return completions(service, request);
    case Target::kChat: return chat_completions(service, request);
    case Target::kMessages: return messages(service, request);
    case Target::kCountTokens: return count_message_tokens(*service, request);
    case Target::kResponses: return responses(service, request);
    case Target::kStoredResponse: return error_response(no_such_response(request.path), ApiShape::kOpenAi);
    case Target::kRenderCompletions: return render_completions(*service, request);
    case Target::kRenderChat: return render_chat(*service, request);
    case Target::kRenderResponses: return render_responses(*service, request);
    case Target::kApplyTemplate: return apply_template(*service, request);
    case Target::kLoads: return server_loads(*service);
  }
  fail<InternalError>("route {} has no handler", route->path);
}

HttpResponse Router::health() const {
  HttpResponse response;
  switch (state_->phase()) {
    case ServerPhase::kReady: response.body = R"({"status":"ok"})"; return response;
    case ServerPhase::kLoading: response.body = fmt::format(R"({{"status":"loading","progress":{:.3f}}})", state_->progress()); break;
    case ServerPhase::kDraining: response.body = R"({"status":"draining"})"; break;
  }
  response.status = 503;
  response.headers.emplace_back("Retry-After", "2");
  return response;
}

HttpResponse Router::metrics_text() const {
  HttpResponse response{.content_type = "text/plain; version=0.0.4; charset=utf-8"};
  if (const auto current = service()) {
    const EngineStats stats = current->engine->stats();
    response.body = metrics_->text(&stats, {.model_name = current->settings.model_names.front(),
                                            .page_tokens = current->page_tokens,
                                            .context_tokens = current->context_tokens,
                                            .memory = current->memory,
                                            .replay = current->replay != nullptr ? std::optional(current->replay->stats()) : std::nullopt});
  } else {
    response.body = metrics_->text(nullptr, {});
  }
  return response;
}

HttpResponse Router::refusal(const HttpRequest& head, int status, std::string_view message) const {
  ApiError error = simple_error(status, "invalid_request_error", "bad_request", fmt::format("The request was refused: {}.", message));
  if (status == 413) error.type = error.code = "request_too_large";
  if (status == 431) error.code = "headers_too_large";
  if (status == 503) {
    error.type = "overloaded_error";
    error.code = "too_many_large_requests";
    error.retry_after = 1;
  }
  return error_response(error, shape_of(head.path));
}

void Router::finished(const HttpRequest& head, int status, double seconds) {
  const Route* route = find_route(head.path);
  const bool known = head.method == "GET" || head.method == "POST" || head.method == "HEAD";
  metrics_->count_http(route == nullptr ? "unmatched" : route->path, known ? std::string_view(head.method) : "other", status, seconds);
  constexpr int kClientGone = 499;
  if (status == kClientGone) metrics_->count_disconnect();
}

}  // namespace tetrad
