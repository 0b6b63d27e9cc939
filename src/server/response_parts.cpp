#include "server/response_parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "server/logprob_text.h"

namespace tetrad {

using Json = nlohmann::ordered_json;

std::string json_text(const Json& value) { return value.dump(-1, ' ', false, Json::error_handler_t::replace); }

Json usage_json(const RequestUsage& usage, std::optional<int> reasoning_tokens) {
  Json json = {{"prompt_tokens", usage.prompt_tokens},
               {"completion_tokens", usage.completion_tokens},
               {"total_tokens", usage.prompt_tokens + usage.completion_tokens},
               {"prompt_tokens_details", {{"cached_tokens", usage.cached_tokens}}}};
  if (reasoning_tokens) json["completion_tokens_details"] = {{"reasoning_tokens", *reasoning_tokens}};
  return json;
}

Json timings_json(const RequestUsage& usage, const RequestTimings& timings) {
  Json json = {{"cache_n", usage.cached_tokens}};
  const auto add = [&](const std::string& what, int tokens, int steps, double seconds) {
    json[what + "_n"] = tokens;
    json[what + "_ms"] = 1000 * seconds;
    json[what + "_per_token_ms"] = steps > 0 ? 1000 * seconds / steps : 0;
    json[what + "_per_second"] = seconds > 0 ? steps / seconds : 0;
  };
  const int computed = usage.prompt_tokens - usage.cached_tokens;
  add("prompt", computed, computed, timings.prefill);
  add("predicted", usage.completion_tokens, std::max(usage.completion_tokens - 1, 0), timings.decode);  // from the first token on
  return json;
}

Json token_logprobs(const SampledToken& sampled, const std::function<std::string(int)>& token_bytes) {
  const auto entry_of = [&](const TokenLogprob& token) {
    const std::string bytes = token_bytes ? token_bytes(token.id) : std::string();
    Json numbers = Json::array();
    for (const char byte : bytes) numbers.push_back(static_cast<unsigned>(static_cast<unsigned char>(byte)));
    return Json{{"token", bytes}, {"logprob", finite_logprob(token.logprob)}, {"bytes", std::move(numbers)}};
  };
  Json entry = entry_of(*sampled.logprob);
  Json& top = entry["top_logprobs"] = Json::array();
  for (const TokenLogprob& other : sampled.top) top.push_back(entry_of(other));
  return entry;
}

void add_member(std::string& object, std::string_view key, std::string_view value) {
  object.pop_back();
  if (object.size() > 1) object += ',';
  object += fmt::format("\"{}\":{}}}", key, value);
}

std::string ids_text(std::span<const int> ids) { return fmt::format("[{}]", fmt::join(ids, ",")); }

StopFinder::StopFinder(const GenerationRequest& generation, std::vector<int> reported_ids, std::function<std::string(int)> token_bytes)
    : stop_ids_(generation.stop_ids),
      reported_ids_(std::move(reported_ids)),
      token_bytes_(std::move(token_bytes)),
      strings_(generation.stop_strings),
      has_strings_(!generation.stop_strings.empty()) {}

void StopFinder::add(int id) {
  last_id_ = id;
  if (has_strings_ && token_bytes_ && std::find(stop_ids_.begin(), stop_ids_.end(), id) == stop_ids_.end()) strings_.feed(token_bytes_(id));
}

Json StopFinder::stop_reason(FinishReason reason) const {
  if (reason != FinishReason::kStop) return nullptr;
  if (strings_.matched() != nullptr) return *strings_.matched();
  if (std::find(reported_ids_.begin(), reported_ids_.end(), last_id_) != reported_ids_.end()) return last_id_;
  return nullptr;
}

AnswerForm answer_form(const ChatRequest& request, const ToolSet& tools, const ResponseContext& context) {
  AnswerForm form{context.starts_in_reasoning, &tools, request.max_tool_calls, context.make_id};
  if (request.form.kind != OutputForm::Kind::kText) form.content = tools.empty() ? ContentRule::kVerbatim : ContentRule::kVerbatimOrCalls;
  form.content_is_told = context.is_bound;
  return form;
}

ChatChoice::ChatChoice(const ChatRequest& request, const ToolSet& tools, const ResponseContext& context)
    : reasoning_(request.reasoning),
      parser_(answer_form(request, tools, context)),
      stops_(request.engine.generation, request.asked_stop_ids, context.token_bytes) {}

std::vector<AnswerEvent> ChatChoice::feed(const TokenEvent& event) {
  if (parser_.in_reasoning()) ++reasoning_tokens_;
  stops_.add(event.sampled.id);
  if (event.content_at) parser_.content_begins_at(*event.content_at);
  return shaped(parser_.feed(event.text), false);
}

std::vector<AnswerEvent> ChatChoice::finish(const ChoiceFinishedEvent& event) {
  reason_ = event.reason;
  finished_ = true;
  std::vector<AnswerEvent> events = shaped(parser_.feed(event.text), false);
  const bool ended_by_model = event.reason == FinishReason::kStop && stops_.matched_string() == nullptr;
  for (AnswerEvent& more : shaped(parser_.finish(ended_by_model), true)) events.push_back(std::move(more));
  return events;
}

std::vector<AnswerEvent> ChatChoice::shaped(std::vector<AnswerEvent> events, bool last) {
  if (reasoning_ == ReasoningOutput::kSeparate) return events;
  std::vector<AnswerEvent> kept;
  for (AnswerEvent& event : events) {
    auto* reasoning = std::get_if<ReasoningDelta>(&event);
    if (reasoning == nullptr) {
      if (std::exchange(inside_tags_, false)) kept.emplace_back(ContentDelta{"\n</think>\n\n"});
      kept.push_back(std::move(event));
    } else if (reasoning_ == ReasoningOutput::kInline) {
      kept.emplace_back(ContentDelta{(std::exchange(inside_tags_, true) ? "" : "<think>\n") + reasoning->text});
    }
  }
  if (last && inside_tags_ && !parser_.in_reasoning()) kept.emplace_back(ContentDelta{"\n</think>\n\n"});
  return kept;
}

}  // namespace tetrad
