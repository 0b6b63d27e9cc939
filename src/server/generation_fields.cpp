#include "server/generation_fields.h"

#include <algorithm>
#include <limits>
#include <tuple>
#include <unordered_set>
#include <utility>

#include "engine/stop_strings.h"
#include "server/http_wire.h"

namespace tetrad {

using Json = nlohmann::ordered_json;

namespace {

constexpr std::size_t kMaxStopIds = 256;
constexpr std::size_t kMaxBiases = 4096;
constexpr std::size_t kMaxSaltBytes = 1024;

std::string key_path(std::string_view field, std::string_view key) { return fmt::format("{}[{}]", field, key.substr(0, 40)); }

std::vector<std::pair<int, double>> read_logit_bias(RequestFields& fields, int vocab_size) {
  std::vector<std::pair<int, double>> biases;
  const Json* given = fields.object("logit_bias");
  if (given == nullptr) return biases;
  if (given->size() > kMaxBiases) refuse("logit_bias", "logit_bias: at most {} tokens, got {}", kMaxBiases, given->size());
  std::unordered_set<int> seen;
  for (const auto& [key, value] : given->items()) {
    const std::string path = key_path("logit_bias", key);
    std::int64_t id = -1;
    if (!key.empty() && key.size() <= 10 && key.find_first_not_of("0123456789") == std::string::npos) id = std::stoll(key);
    if (id < 0 || id >= vocab_size) refuse(path, "{}: a key must be a token id, 0 to {}", path, vocab_size - 1);
    if (!value.is_number()) refuse(path, "{}: expected a number, got {}", path, described(value));
    const double bias = value.get<double>();
    if (!(bias >= -kMaxLogitBias && bias <= kMaxLogitBias))
      refuse(path, "{}: must be between {} and {}, got {}", path, -kMaxLogitBias, kMaxLogitBias, described(value));
    if (!seen.insert(static_cast<int>(id)).second) refuse(path, "{}: token id {} is given twice", path, id);
    biases.emplace_back(static_cast<int>(id), bias);
  }
  return biases;
}

// 64 bits, with a sign or without.
std::uint64_t read_seed(RequestFields& fields, std::uint64_t fresh) {
  const Json* value = fields.find("seed");
  if (value == nullptr) return fresh;
  if (value->is_number_unsigned()) return value->get<std::uint64_t>();
  return static_cast<std::uint64_t>(
      whole_number(*value, "seed", std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::int64_t>::max()));
}

void read_sampling(RequestFields& fields, const RequestContext& context, SamplingParams& sampling) {
  sampling = context.sampling;
  sampling.temperature = number_between(fields, "temperature", sampling.temperature, 0, kMaxTemperature);
  sampling.top_p = number_between(fields, "top_p", sampling.top_p, 0, 1, false);
  sampling.min_p = number_between(fields, "min_p", sampling.min_p, 0, 1);
  if (const auto top_k = fields.integer("top_k", -1, kMaxInt)) sampling.top_k = static_cast<int>(*top_k);
  for (const char* name : {"repeat_penalty", "repetition_penalty"})  // the first is another spelling
    sampling.repetition_penalty = number_between(fields, name, sampling.repetition_penalty, 0, kMaxRepetitionPenalty, false);
  sampling.presence_penalty =
      number_between(fields, "presence_penalty", sampling.presence_penalty, -kMaxAdditivePenalty, kMaxAdditivePenalty);
  sampling.frequency_penalty =
      number_between(fields, "frequency_penalty", sampling.frequency_penalty, -kMaxAdditivePenalty, kMaxAdditivePenalty);
  sampling.logit_bias = read_logit_bias(fields, context.vocab_size);
  sampling.seed = read_seed(fields, context.fresh_seed);
}

void read_stops(RequestFields& fields, const RequestContext& context, GenerationRequest& generation) {
  generation.stop_strings = read_stop_strings(fields, "stop");
  if (!fields.boolean("ignore_eos").value_or(false)) generation.stop_ids = context.stop_ids;
  if (const Json* ids = fields.list("stop_token_ids", kMaxStopIds)) {
    for (std::size_t i = 0; i < ids->size(); ++i) {
      const auto id = static_cast<int>(whole_number((*ids)[i], fmt::format("stop_token_ids[{}]", i), 0, context.vocab_size - 1));
      if (std::find(generation.stop_ids.begin(), generation.stop_ids.end(), id) == generation.stop_ids.end())
        generation.stop_ids.push_back(id);
    }
  }
  generation.include_stop = fields.boolean("include_stop_str_in_output").value_or(false);
  generation.skip_special = fields.boolean("skip_special_tokens").value_or(true);
}

}  // namespace

double number_between(RequestFields& fields, std::string_view field, double fallback, double low, double high, bool low_allowed) {
  const auto value = fields.number(field);
  if (!value) return fallback;
  if ((low_allowed ? *value >= low : *value > low) && *value <= high) return *value;
  const std::string path = fields.path_of(field);
  if (low_allowed) refuse(path, "{}: must be between {} and {}, got {}", path, low, high, *value);
  refuse(path, "{}: must be above {} and at most {}, got {}", path, low, high, *value);
}

std::vector<std::string> read_stop_strings(RequestFields& fields, std::string_view field) {
  std::vector<std::string> strings;
  const Json* given = fields.find(field);
  if (given == nullptr) return strings;
  const auto add = [&](const std::string& path, const Json& value) {
    if (!value.is_string()) refuse(path, "{}: expected a string, got {}", path, described(value));
    std::string text = value.get<std::string>();
    if (text.empty()) refuse(path, "{}: a stop string needs at least one character", path);
    if (text.size() > kMaxStopStringBytes) refuse(path, "{}: at most {} bytes long, got {}", path, kMaxStopStringBytes, text.size());
    strings.push_back(std::move(text));
  };
  if (!given->is_array()) {
    if (!given->is_string())
      refuse(fields.path_of(field), "{}: expected a string or a list of strings, got {}", fields.path_of(field), described(*given));
    add(fields.path_of(field), *given);
    return strings;
  }
  const Json* list = fields.list(field, kMaxStopStrings);
  for (std::size_t i = 0; i < list->size(); ++i) add(fmt::format("{}[{}]", fields.path_of(field), i), (*list)[i]);
  return strings;
}

EngineRequest read_engine_request(RequestFields& fields, const RequestContext& context, bool prompt_alone) {
  EngineRequest engine;
  GenerationRequest& generation = engine.generation;
  read_sampling(fields, context, generation.sampling);
  read_stops(fields, context, generation);
  generation.prompt_logprobs = static_cast<int>(fields.integer("prompt_logprobs", 0, kMaxLogprobs).value_or(-1));
  // Numbers beyond any context are left for check_context() to refuse, in the words that clients look for.
  const int fewest = prompt_alone || generation.prompt_logprobs >= 0 ? 0 : 1;
  const auto older = fields.integer("max_tokens", fewest, kMaxInt, true);
  const auto newer = fields.integer("max_completion_tokens", fewest, kMaxInt, true);
  const auto max_tokens = newer ? newer : older;
  generation.max_tokens = static_cast<int>(max_tokens.value_or(context.default_max_tokens));
  generation.prompt_only = max_tokens == 0;
  generation.min_tokens = static_cast<int>(fields.integer("min_tokens", 0, kMaxInt).value_or(0));
  if (generation.min_tokens > 0 && (generation.prompt_only || (generation.max_tokens > 0 && generation.min_tokens > generation.max_tokens)))
    refuse("min_tokens", "min_tokens: must be at most max_tokens, got {} and {}", generation.min_tokens, generation.max_tokens);
  engine.num_choices = static_cast<int>(fields.integer("n", 1, context.max_choices).value_or(1));
  read_cache_fields(fields, engine);
  engine.queue_timeout = context.queue_timeout;
  return engine;
}

void read_cache_fields(RequestFields& fields, EngineRequest& engine) {
  engine.cache_salt = fields.text("cache_salt").value_or("");
  if (engine.cache_salt.size() > kMaxSaltBytes) refuse("cache_salt", "cache_salt: at most {} bytes long", kMaxSaltBytes);
  engine.reuse_prefix = fields.boolean("cache_prompt").value_or(true);
}

std::string read_request_id(RequestFields& fields) {
  for (const char* name : {"request_id", "rid"}) {
    const std::string id = fields.text(name).value_or("");
    if (id.empty()) continue;
    if (request_id_from(id) != id) refuse(name, "{}: at most 128 letters, digits and the marks - _ . :", name);
    return id;
  }
  return {};
}

std::vector<int> asked_stop_ids(const EngineRequest& engine, const RequestContext& context) {
  std::vector<int> asked;
  for (const int id : engine.generation.stop_ids)
    if (std::find(context.stop_ids.begin(), context.stop_ids.end(), id) == context.stop_ids.end()) asked.push_back(id);
  return asked;
}

Delivery read_delivery(RequestFields& fields) {
  Delivery delivery;
  delivery.stream = fields.boolean("stream").value_or(false);
  delivery.token_ids = fields.boolean("return_token_ids").value_or(false);
  if (delivery.stream && fields.find("prompt_logprobs") != nullptr)
    refuse("prompt_logprobs", "prompt_logprobs: only without a stream: they come in one piece");
  const Json* options = fields.object("stream_options");
  if (options == nullptr) return delivery;
  if (!delivery.stream) refuse("stream_options", "stream_options: only with \"stream\": true");
  RequestFields option_fields(*options, "stream_options");
  delivery.include_usage = option_fields.boolean("include_usage").value_or(false);
  delivery.usage_in_every_chunk = option_fields.boolean("continuous_usage_stats").value_or(false);
  option_fields.accept_field("include_obfuscation");
  for (const std::string& unknown : option_fields.unknown()) refuse(unknown, "{}: no such option", unknown);
  return delivery;
}

void refuse_unsupported_fields(RequestFields& fields) {
  static constexpr std::string_view kConstrained = "answers are bound to a form by response_format or structured_outputs";
  static constexpr std::string_view kTransfer = "there is no transfer of caches between servers";
  static constexpr std::pair<std::string_view, std::string_view> kRefused[] = {
      {"use_beam_search", "answers are sampled, there is no beam search"},
      {"early_stopping", "there is no beam search"},
      {"truncate_prompt_tokens", "prompts are never shortened"},
      {"allowed_token_ids", kConstrained},
      {"bad_words", kConstrained},
      {"logits_processors", "code of clients is not run"},
      {"kv_transfer_params", kTransfer},
      {"ec_transfer_params", kTransfer},
      {"disaggregated_params", kTransfer},
      {"bootstrap_host", kTransfer},
      {"bootstrap_port", kTransfer},
      {"bootstrap_room", kTransfer},
      {"return_tokens_as_token_ids", "answers are text"},
      {"timings_per_token", "only the last chunk carries timings"},
      {"return_progress", "chunks carry no progress"},
  };
  for (const auto& [field, why] : kRefused) fields.refuse_field(field, why);
  // Settings that say nothing new with one value, and something that cannot be done with every other.
  static constexpr std::tuple<const char*, double, const char*> kNeutral[] = {
      {"length_penalty", 1, "there is no beam search"},
      {"priority", 0, "requests are served in the order they come"},
      {"best_of", 1, "only as many answers are made as n asks for"},
  };
  for (const auto& [field, neutral, why] : kNeutral)
    if (const auto value = fields.number(field); value && *value != neutral) refuse(field, "{}: not supported: {}", field, why);
  // The tokenizers of this line add no tokens of their own, whatever add_special_tokens says.
  for (const char* field : {"user", "metadata", "safety_identifier", "add_special_tokens"}) fields.accept_field(field);
}

std::vector<std::string> unknown_fields(RequestFields& fields, const RequestContext& context, std::string_view form_field) {
  refuse_foreign_forms(fields, form_field);
  std::vector<std::string> unknown = fields.unknown();
  if (context.strict_fields && !unknown.empty()) refuse(unknown[0], "{}: unknown field", unknown[0]);
  return unknown;
}

}  // namespace tetrad
