#include "server/generation_routes.h"

#include <chrono>
#include <set>
#include <utility>

#include "server/anthropic_request.h"
#include "server/chat_prompt.h"
#include "server/completion_request.h"
#include "server/engine_requests.h"
#include "server/generation_reply.h"
#include "server/http_wire.h"
#include "server/replay_prompt.h"
#include "server/responses_request.h"

namespace tetrad {
namespace {

std::int64_t seconds_since_1970() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// Each field is told once in the life of the process, and not without end.
void log_unknown(const Service& service, const std::vector<std::string>& fields) {
  constexpr std::size_t kMaxTold = 256, kMaxFieldBytes = 200;
  static std::mutex mutex;
  static std::set<std::string, std::less<>> told;
  if (!service.log) return;
  for (const std::string& field : fields) {
    const std::lock_guard lock(mutex);
    if (told.size() >= kMaxTold) return;
    // Quoted and in ASCII: a name is whatever a client sends.
    const std::string name = nlohmann::json(field.substr(0, kMaxFieldBytes)).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
    if (told.insert(name).second) service.log(fmt::format("field {} is not known and has no effect", name));
  }
}

ResponseContext response_context(const Service& service, const HttpRequest& request, std::string_view prefix, const std::string& asked_id,
                                 std::string model, std::string_view call_prefix) {
  ResponseContext context;
  context.id = asked_id.empty() ? random_id(prefix) : std::string(prefix) + asked_id;
  context.created = seconds_since_1970();
  context.model = std::move(model);
  context.request_id = request.id;
  context.reasoning_fields = service.settings.reasoning_fields;
  context.make_id = [call_prefix = std::string(call_prefix)] { return random_id(call_prefix); };
  context.token_bytes = [tokenizer = service.tokenizer](int id) { return std::string(tokenizer->token_bytes(id)); };
  return context;
}

using MakeBuilder = std::function<std::unique_ptr<ResponseBuilder>(ResponseContext)>;

Reply start_chat(const std::shared_ptr<const Service>& service, const ChatRequest& chat, ResponseContext context, ApiShape shape,
                 const HttpRequest& request, const MakeBuilder& make_builder) {
  ChatWork work = chat_work(*service, chat, shape, ReplayCount::kCount);
  context.starts_in_reasoning = work.prompt.in_reasoning;
  context.is_bound = work.is_bound;
  TurnRecorder recorder(*service, chat, work.prompt.digest, context);
  if (chat.delivery.token_ids) context.prompt_ids = [ids = work.engine.generation.prompt_ids](int) { return ids; };
  if (chat.returns_prompt_text) context.prompt_text = [text = std::move(work.prompt.text)](int) { return text; };
  GenerationReply::Setup setup;
  setup.trace = trace_of(request, context.model, chat.delivery.stream);
  setup.builder = recorder.around(make_builder(std::move(context)));
  setup.requests.push_back(std::move(work.engine));
  setup.stream = chat.delivery.stream;
  setup.shape = shape;
  setup.request_id = request.id;
  return std::make_unique<GenerationReply>(service, std::move(setup));
}

}  // namespace

Reply chat_completions(const std::shared_ptr<const Service>& service, const HttpRequest& request) {
  const ChatRequest chat = parse_chat_request(std::string_view(request.body), service->request_context());
  std::string model = service->resolve_model(chat.model);
  log_unknown(*service, chat.unknown_fields);
  ResponseContext context = response_context(*service, request, "chatcmpl-", chat.request_id, std::move(model), "call_");
  return start_chat(service, chat, std::move(context), ApiShape::kOpenAi, request,
                    [&](ResponseContext more) { return chat_response(chat, std::move(more)); });
}

Reply responses(const std::shared_ptr<const Service>& service, const HttpRequest& request) {
  const ResponsesRequest asked = parse_responses_request(request.body, service->request_context());
  std::string model = service->resolve_model(asked.chat.model);
  log_unknown(*service, asked.chat.unknown_fields);
  ResponseContext context = response_context(*service, request, "resp_", asked.chat.request_id, std::move(model), "call_");
  return start_chat(service, asked.chat, std::move(context), ApiShape::kOpenAi, request,
                    [&](ResponseContext more) { return responses_response(asked, std::move(more)); });
}

Reply messages(const std::shared_ptr<const Service>& service, const HttpRequest& request) {
  const ChatRequest chat = parse_anthropic_request(request.body, service->request_context());
  std::string model = service->resolve_model(chat.model);
  log_unknown(*service, chat.unknown_fields);
  ResponseContext context = response_context(*service, request, "msg_", {}, std::move(model), "toolu_");
  return start_chat(service, chat, std::move(context), ApiShape::kAnthropic, request,
                    [&](ResponseContext more) { return anthropic_response(chat, std::move(more)); });
}

HttpResponse count_message_tokens(const Service& service, const HttpRequest& request) {
  const ChatRequest chat = parse_anthropic_count_request(request.body, service.request_context());
  service.resolve_model(chat.model);
  return {.body = anthropic_count_body(static_cast<int>(chat_prompt(service, chat).ids.size()))};
}

Reply completions(const std::shared_ptr<const Service>& service, const HttpRequest& request) {
  const CompletionRequest completion = parse_completion_request(request.body, service->request_context());
  std::string model = service->resolve_model(completion.model);
  log_unknown(*service, completion.unknown_fields);
  ResponseContext context = response_context(*service, request, "cmpl-", completion.request_id, std::move(model), "call_");
  GenerationReply::Setup setup;
  setup.requests = completion_work(*service, completion);
  auto texts = std::make_shared<std::vector<std::string>>();     // of the prompts, for echo
  auto ids = std::make_shared<std::vector<std::vector<int>>>();  // of the prompts, for return_token_ids and log probabilities
  for (std::size_t i = 0; i < setup.requests.size(); ++i) {
    const GenerationRequest& generation = setup.requests[i].generation;
    const auto* text = std::get_if<std::string>(&completion.prompts[i]);
    if (completion.echo) texts->push_back(text != nullptr ? *text : service->tokenizer->decode(generation.prompt_ids));
    if (generation.prompt_logprobs >= 0 || completion.delivery.token_ids) ids->push_back(generation.prompt_ids);
  }
  context.prompt_ids = [ids](int prompt) { return ids->at(static_cast<std::size_t>(prompt)); };
  context.prompt_text = [texts](int prompt) { return texts->at(static_cast<std::size_t>(prompt)); };
  setup.trace = trace_of(request, context.model, completion.delivery.stream);
  setup.builder = completion_response(completion, std::move(context));
  setup.stream = completion.delivery.stream;
  setup.request_id = request.id;
  return std::make_unique<GenerationReply>(service, std::move(setup));
}

}  // namespace tetrad
