#include "server/generation_routes.h"

#include <chrono>
#include <set>
#include <utility>

#include "server/anthropic_request.h"
#include "server/completion_request.h"
#include "server/generation_reply.h"
#include "server/http_wire.h"
#include "server/model_routes.h"
#include "server/replay_prompt.h"

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
    const std::string name = field.substr(0, kMaxFieldBytes);
    if (told.insert(name).second) service.log(fmt::format("field '{}' is not known and has no effect", name));
  }
}

ResponseContext response_context(const Service& service, const HttpRequest& request, std::string_view prefix, std::string model,
                                 std::string_view call_prefix) {
  ResponseContext context;
  context.id = random_id(prefix);
  context.created = seconds_since_1970();
  context.model = std::move(model);
  context.request_id = request.id;
  context.reasoning_fields = service.settings.reasoning_fields;
  context.make_id = [call_prefix = std::string(call_prefix)] { return random_id(call_prefix); };
  context.token_bytes = [tokenizer = service.tokenizer](int id) { return std::string(tokenizer->token_bytes(id)); };
  return context;
}

Reply start_chat(const std::shared_ptr<const Service>& service, ChatRequest chat, ResponseContext context, bool anthropic,
                 const HttpRequest& request) {
  EngineRequest engine = chat.engine;
  ReplayPrompt prompt = replay_prompt(*service, chat, ReplayCount::kCount);
  context.starts_in_reasoning = prompt.opens_reasoning && chat.answer_prefix.empty();
  TurnRecorder recorder(*service, chat, prompt, context);
  engine.generation.prompt_ids = std::move(prompt.ids);
  const auto prompt_tokens = static_cast<int>(engine.generation.prompt_ids.size());
  const int context_tokens = service->context_tokens;
  engine.generation.max_length = context_tokens;
  if (anthropic)
    check_context_anthropic(prompt_tokens, context_tokens);
  else
    check_context(prompt_tokens, engine.generation.max_tokens, context_tokens);
  GenerationReply::Setup setup;
  setup.trace = trace_of(request, context.model, chat.delivery.stream);
  setup.builder = recorder.around(anthropic ? anthropic_response(chat, std::move(context)) : chat_response(chat, std::move(context)));
  setup.requests.push_back(std::move(engine));
  setup.stream = chat.delivery.stream;
  setup.shape = anthropic ? ApiShape::kAnthropic : ApiShape::kOpenAi;
  setup.request_id = request.id;
  return std::make_unique<GenerationReply>(service, std::move(setup));
}

}  // namespace

Reply chat_completions(const std::shared_ptr<const Service>& service, const HttpRequest& request) {
  ChatRequest chat = parse_chat_request(std::string_view(request.body), service->request_context());
  std::string model = service->resolve_model(chat.model);
  log_unknown(*service, chat.unknown_fields);
  ResponseContext context = response_context(*service, request, "chatcmpl-", std::move(model), "call_");
  return start_chat(service, std::move(chat), std::move(context), false, request);
}

Reply messages(const std::shared_ptr<const Service>& service, const HttpRequest& request) {
  ChatRequest chat = parse_anthropic_request(request.body, service->request_context());
  std::string model = service->resolve_model(chat.model);
  log_unknown(*service, chat.unknown_fields);
  ResponseContext context = response_context(*service, request, "msg_", std::move(model), "toolu_");
  return start_chat(service, std::move(chat), std::move(context), true, request);
}

HttpResponse count_message_tokens(const Service& service, const HttpRequest& request) {
  const ChatRequest chat = parse_anthropic_count_request(request.body, service.request_context());
  service.resolve_model(chat.model);
  return {.body = anthropic_count_body(static_cast<int>(chat_prompt_ids(service, chat).size()))};
}

Reply completions(const std::shared_ptr<const Service>& service, const HttpRequest& request) {
  const CompletionRequest completion = parse_completion_request(request.body, service->request_context());
  std::string model = service->resolve_model(completion.model);
  log_unknown(*service, completion.unknown_fields);
  ResponseContext context = response_context(*service, request, "cmpl-", std::move(model), "call_");
  GenerationReply::Setup setup;
  const int context_tokens = service->context_tokens;
  auto texts = std::make_shared<std::vector<std::string>>();  // of the prompts, for echo
  for (const CompletionPrompt& prompt : completion.prompts) {
    EngineRequest engine = completion.engine;
    engine.generation.max_length = context_tokens;
    const auto* text = std::get_if<std::string>(&prompt);
    engine.generation.prompt_ids = text != nullptr ? service->encode(*text) : std::get<std::vector<int>>(prompt);
    if (engine.generation.prompt_ids.empty()) refuse("prompt", "prompt: at least one token is needed, got an empty prompt");
    check_context(static_cast<int>(engine.generation.prompt_ids.size()), engine.generation.max_tokens, context_tokens);
    if (completion.echo) texts->push_back(text != nullptr ? *text : service->tokenizer->decode(engine.generation.prompt_ids));
    setup.requests.push_back(std::move(engine));
  }
  context.prompt_text = [texts](int prompt) { return texts->at(static_cast<std::size_t>(prompt)); };
  setup.trace = trace_of(request, context.model, completion.delivery.stream);
  setup.builder = completion_response(completion, std::move(context));
  setup.stream = completion.delivery.stream;
  setup.request_id = request.id;
  return std::make_unique<GenerationReply>(service, std::move(setup));
}

}  // namespace tetrad
