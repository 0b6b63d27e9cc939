#include "server/render_routes.h"

#include "server/engine_requests.h"
#include "server/http_wire.h"
#include "server/response_parts.h"
#include "server/responses_request.h"

namespace tetrad {
namespace {

using Json = nlohmann::ordered_json;

Json sampling_json(const EngineRequest& engine, int context_tokens) {
  const GenerationRequest& generation = engine.generation;
  const SamplingParams& sampling = generation.sampling;
  const auto number_or_null = [](int number) { return number < 0 ? Json(nullptr) : Json(number); };
  const int rest = context_tokens - static_cast<int>(generation.prompt_ids.size());
  Json json;
  json["n"] = engine.num_choices;
  json["presence_penalty"] = sampling.presence_penalty;
  json["frequency_penalty"] = sampling.frequency_penalty;
  json["repetition_penalty"] = sampling.repetition_penalty;
  json["temperature"] = sampling.temperature;
  json["top_p"] = sampling.top_p;
  json["top_k"] = sampling.top_k;
  json["min_p"] = sampling.min_p;
  json["seed"] = sampling.seed;
  json["stop"] = generation.stop_strings;
  json["stop_token_ids"] = generation.stop_ids;
  json["include_stop_str_in_output"] = generation.include_stop;
  json["skip_special_tokens"] = generation.skip_special;
  json["min_tokens"] = generation.min_tokens;
  json["max_tokens"] = generation.max_tokens > 0 || generation.prompt_only ? generation.max_tokens : rest;
  json["logprobs"] = number_or_null(sampling.logprobs.value_or(-1));
  json["prompt_logprobs"] = number_or_null(generation.prompt_logprobs);
  Json& biases = json["logit_bias"] = Json::object();
  for (const auto& [id, bias] : sampling.logit_bias) biases[std::to_string(id)] = bias;
  return json;
}

Json rendered(const Service& service, const EngineRequest& engine, const std::string& model, const std::string& id,
              const Delivery& delivery) {
  Json json;
  json["request_id"] = id;
  json["token_ids"] = engine.generation.prompt_ids;
  json["features"] = nullptr;  // of images
  json["sampling_params"] = sampling_json(engine, service.context_tokens);
  json["model"] = model;
  json["stream"] = delivery.stream;
  json["cache_salt"] = engine.cache_salt.empty() ? Json(nullptr) : Json(engine.cache_salt);
  return json;
}

std::string id_of(std::string_view prefix, const std::string& asked) {
  return asked.empty() ? random_id(prefix) : std::string(prefix) + asked;
}

HttpResponse render(const Service& service, const ChatRequest& chat, std::string_view id_prefix) {
  const std::string model = service.resolve_model(chat.model);
  const ChatWork work = chat_work(service, chat, ApiShape::kOpenAi);
  Json json = rendered(service, work.engine, model, id_of(id_prefix, chat.request_id), chat.delivery);
  if (chat.returns_prompt_text) json["prompt_text"] = work.prompt.text;
  return {.body = json_text(json)};
}

}  // namespace

HttpResponse render_completions(const Service& service, const HttpRequest& request) {
  const CompletionRequest completion = parse_completion_request(request.body, service.request_context());
  const std::string model = service.resolve_model(completion.model), id = id_of("cmpl-", completion.request_id);
  Json list = Json::array();
  for (const EngineRequest& engine : completion_work(service, completion))
    list.push_back(rendered(service, engine, model, fmt::format("{}-{}", id, list.size()), completion.delivery));
  return {.body = json_text(list)};
}

HttpResponse render_chat(const Service& service, const HttpRequest& request) {
  return render(service, parse_chat_request(std::string_view(request.body), service.request_context()), "chatcmpl-");
}

HttpResponse render_responses(const Service& service, const HttpRequest& request) {
  return render(service, parse_responses_request(request.body, service.request_context()).chat, "resp_");
}

HttpResponse apply_template(const Service& service, const HttpRequest& request) {
  const ChatRequest chat = parse_chat_request(std::string_view(request.body), service.request_context());
  service.resolve_model(chat.model);
  const ChatPrompt prompt = chat_prompt(service, chat);
  // What binds the answer is not shown, and yet a chat with this body would be refused for it.
  answer_constraint(service, chat, prompt.in_reasoning);
  thinking_budget(service, chat, prompt.in_reasoning);
  return {.body = json_text({{"prompt", prompt.text}})};
}

}  // namespace tetrad
