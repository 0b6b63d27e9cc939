#include "server/model_routes.h"

#include <cmath>
#include <limits>

#include "server/activity.h"
#include "server/chat_prompt.h"
#include "server/request_json.h"

namespace tetrad {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kMaxDetokenizeIds = std::size_t{1} << 22;

Json model_json(const Service& service, const std::string& name) {
  Json model;
  model["id"] = name;
  model["object"] = "model";
  model["created"] = service.created;
  model["owned_by"] = "tetrad";
  model["root"] = service.settings.model_names.front();
  model["parent"] = nullptr;
  model["max_model_len"] = service.context_tokens;
  return model;
}

HttpResponse json_response(const Json& body) { return {.body = body.dump(-1, ' ', false, Json::error_handler_t::replace)}; }

}  // namespace

HttpResponse list_models(const Service& service) {
  Json body;
  body["object"] = "list";
  body["data"] = Json::array();
  for (const std::string& name : service.settings.model_names)
    if (name != "*") body["data"].push_back(model_json(service, name));
  return json_response(body);
}

HttpResponse describe_model(const Service& service, const std::string& name) {
  return json_response(model_json(service, service.resolve_model(name)));
}

HttpResponse server_load(const Service& service) {
  const EngineStats stats = service.engine->stats();
  Json body;
  body["server_load"] = stats.requests_running + stats.requests_waiting;
  return json_response(body);
}

HttpResponse server_loads(const Service& service) {
  const EngineStats stats = service.engine->stats();
  const double share = kv_cache_use(stats);  // what only the prefix cache holds gives way
  Json load;
  load["dp_rank"] = 0;
  load["num_running_reqs"] = stats.requests_running;
  load["num_waiting_reqs"] = stats.requests_waiting;
  load["num_total_reqs"] = stats.requests_running + stats.requests_waiting;
  load["num_used_tokens"] = std::llround(share * stats.pages) * service.page_tokens;
  load["max_total_num_tokens"] = stats.pages * service.page_tokens;
  load["token_usage"] = share;
  Json body;
  body["dp_rank_count"] = 1;
  body["loads"] = Json::array({std::move(load)});
  body["aggregate"] = {{"total_running_reqs", stats.requests_running},
                       {"total_waiting_reqs", stats.requests_waiting},
                       {"total_reqs", stats.requests_running + stats.requests_waiting},
                       {"avg_token_usage", share}};
  return json_response(body);
}

HttpResponse tokenize(const Service& service, const HttpRequest& request) {
  const Json body = parse_request_body(request.body);
  std::vector<int> ids;
  RequestFields fields(body, "");
  const bool with_text = fields.boolean("return_token_strs").value_or(false);
  if (body.contains("messages")) {
    const ChatRequest chat = parse_chat_request(body, service.request_context());
    service.resolve_model(chat.model);
    ids = chat_prompt(service, chat).ids;
  } else {
    service.resolve_model(fields.text("model").value_or(""));
    fields.boolean("add_special_tokens");  // the tokenizer adds none of its own either way
    ids = service.encode(fields.required_text("prompt"), "prompt");
  }
  Json answer;
  answer["count"] = ids.size();
  answer["max_model_len"] = service.context_tokens;
  answer["tokens"] = ids;
  if (with_text) {
    Json& texts = answer["token_strs"] = Json::array();
    for (const int id : ids) texts.push_back(std::string(service.tokenizer->token_bytes(id)));
  }
  return json_response(answer);
}

HttpResponse detokenize(const Service& service, const HttpRequest& request) {
  const Json body = parse_request_body(request.body);
  RequestFields fields(body, "");
  service.resolve_model(fields.text("model").value_or(""));
  const Json* tokens = fields.list("tokens", kMaxDetokenizeIds);
  if (tokens == nullptr) refuse("tokens", "tokens: a list of token ids is needed");
  std::vector<int> ids;
  ids.reserve(tokens->size());
  for (const Json& token : *tokens) {
    const std::string where = fmt::format("tokens[{}]", ids.size());
    if (!token.is_number_integer()) refuse(where, "{}: a token id is needed, got {}", where, described(token));
    const bool in_range = token.is_number_unsigned()
                              ? token.get<std::uint64_t>() < static_cast<std::uint64_t>(service.tokenizer->size())
                              : token.get<std::int64_t>() >= 0 && token.get<std::int64_t>() < service.tokenizer->size();
    if (!in_range) refuse(where, "{}: {} is no token: ids are from 0 to {}", where, described(token), service.tokenizer->size() - 1);
    ids.push_back(token.get<int>());
  }
  Json answer;
  answer["prompt"] = service.tokenizer->decode(ids);
  return json_response(answer);
}

}  // namespace tetrad
