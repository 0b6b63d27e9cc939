#include <set>
#include <utility>

#include "server/response_parts.h"
#include "text/unicode.h"

namespace tetrad {

using Json = nlohmann::ordered_json;

namespace {

// A token as text; one that is no whole text is spelled out, so that different tokens stay different.
std::string token_text(const std::string& bytes) {
  if (text::find_invalid_utf8(bytes) == std::string::npos) return bytes;
  std::string spelled = "bytes:";
  for (const char byte : bytes) spelled += fmt::format("\\x{:02x}", static_cast<unsigned>(static_cast<unsigned char>(byte)));
  return spelled;
}

int num_characters(const std::string& bytes) {
  int count = 0;
  for (const char byte : bytes)
    if ((static_cast<unsigned char>(byte) & 0xC0) != 0x80) ++count;
  return count;
}

class CompletionResponse : public ResponseBuilder {
 public:
  CompletionResponse(const CompletionRequest& request, ResponseContext context)
      : context_(std::move(context)),
        delivery_(request.delivery),
        num_choices_(request.engine.num_choices),
        wants_logprobs_(request.engine.generation.sampling.logprobs.has_value()),
        prompts_left_(request.prompts.size()),
        usage_(request.prompts.size()) {
    for (std::size_t p = 0; p < request.prompts.size(); ++p) {
      const std::string echo = request.echo && context_.prompt_text ? context_.prompt_text(static_cast<int>(p)) : std::string();
      for (int c = 0; c < num_choices_; ++c) {
        choices_.emplace_back(StopFinder(request.engine.generation, request.asked_stop_ids, context_.token_bytes));
        choices_.back().text = echo;
        choices_.back().offset = num_characters(echo);
      }
    }
  }

  std::vector<ServerSentEvent> feed(const EngineEvent& event, int prompt) override {
    std::vector<ServerSentEvent> out;
    if (finished()) return out;
    RequestUsage& usage = usage_.at(static_cast<std::size_t>(prompt));
    if (const auto* started = std::get_if<StartedEvent>(&event)) {
      usage.prompt_tokens = started->prompt_tokens;
      usage.cached_tokens = started->cached_tokens;
    } else if (const auto* token = std::get_if<TokenEvent>(&event)) {
      ++usage.completion_tokens;
      const int index = prompt * num_choices_ + token->choice;
      Choice& choice = choices_.at(static_cast<std::size_t>(index));
      choice.stops.add(token->sampled.id);
      choice.text += token->text;
      if (token->sampled.logprob) add_logprobs(choice, token->sampled);
      if (delivery_.stream && !token->text.empty()) out.push_back(chunk(Json::array({entry(index)})));
    } else if (const auto* end = std::get_if<ChoiceFinishedEvent>(&event)) {
      const int index = prompt * num_choices_ + end->choice;
      Choice& choice = choices_.at(static_cast<std::size_t>(index));
      choice.text += end->text;
      choice.reason = end->reason;
      if (delivery_.stream) out.push_back(chunk(Json::array({entry(index)})));
    } else if (const auto* done = std::get_if<FinishedEvent>(&event)) {
      usage = done->usage;
      --prompts_left_;
      if (delivery_.stream && prompts_left_ == 0) {
        if (delivery_.include_usage) out.push_back(chunk(Json::array(), true));
        out.push_back({"", "[DONE]"});
      }
    } else {
      const auto& failed = std::get<FailedEvent>(event);
      failure_ = api_error(failed.kind, failed.message, context_.request_id);
      if (sent_) out.push_back(openai_error_event(*failure_));
    }
    if (!out.empty()) sent_ = true;
    return out;
  }

  std::string body() const override {
    Json json = head();
    Json& choices = json["choices"] = Json::array();
    for (std::size_t i = 0; i < choices_.size(); ++i) choices.push_back(entry_of(choices_[i], static_cast<int>(i)));
    json["usage"] = usage();
    return json_text(json);
  }

  bool finished() const override { return prompts_left_ == 0 || failure_.has_value(); }
  bool enough() const override { return false; }
  const ApiError* failure() const override { return failure_ ? &*failure_ : nullptr; }

 private:
  struct Choice {
    explicit Choice(StopFinder finder) : stops(std::move(finder)) {}

    StopFinder stops;
    std::string text;  // streamed: since the last chunk
    Json tokens = Json::array(), logprobs = Json::array(), top = Json::array(), offsets = Json::array();
    int offset = 0;  // characters before the next token
    std::optional<FinishReason> reason;
  };

  Json head() const {
    return {{"id", context_.id}, {"object", "text_completion"}, {"created", context_.created}, {"model", context_.model}};
  }

  Json usage() const {
    RequestUsage sum;
    for (const RequestUsage& usage : usage_) {
      sum.prompt_tokens += usage.prompt_tokens;
      sum.cached_tokens += usage.cached_tokens;
      sum.completion_tokens += usage.completion_tokens;
    }
    return usage_json(sum, std::nullopt);
  }

  void add_logprobs(Choice& choice, const SampledToken& sampled) const {
    const auto bytes_of = [&](int id) { return context_.token_bytes ? context_.token_bytes(id) : std::string(); };
    const std::string bytes = bytes_of(sampled.id);
    choice.tokens.push_back(token_text(bytes));
    choice.logprobs.push_back(finite_logprob(sampled.logprob->logprob));
    choice.offsets.push_back(choice.offset);
    choice.offset += num_characters(bytes);
    // The best first, and the chosen one though it may not be among them: evaluations compare the two.
    Json best = Json::object();
    for (const TokenLogprob& other : sampled.top) best.emplace(token_text(bytes_of(other.id)), finite_logprob(other.logprob));
    best.emplace(token_text(bytes), finite_logprob(sampled.logprob->logprob));
    choice.top.push_back(std::move(best));
  }

  Json entry_of(const Choice& choice, int index) const {
    Json json = {{"index", index}, {"text", choice.text}};
    if (wants_logprobs_)
      json["logprobs"] = {
          {"tokens", choice.tokens}, {"token_logprobs", choice.logprobs}, {"top_logprobs", choice.top}, {"text_offset", choice.offsets}};
    else
      json["logprobs"] = nullptr;
    json["finish_reason"] = nullptr;
    if (choice.reason) {
      const bool out_of_tokens = *choice.reason == FinishReason::kLength || *choice.reason == FinishReason::kContext;
      json["finish_reason"] = out_of_tokens ? "length" : "stop";
      json["stop_reason"] = choice.stops.stop_reason(*choice.reason);
    }
    return json;
  }

  // What is new in a choice, which is then no longer.
  Json entry(int index) {
    Choice& choice = choices_.at(static_cast<std::size_t>(index));
    Json json = entry_of(choice, index);
    choice.text.clear();
    for (Json* list : {&choice.tokens, &choice.logprobs, &choice.top, &choice.offsets}) *list = Json::array();
    return json;
  }

  ServerSentEvent chunk(Json choices, bool last_usage = false) const {
    Json json = head();
    json["choices"] = std::move(choices);
    if (last_usage || delivery_.usage_in_every_chunk)
      json["usage"] = usage();
    else if (delivery_.include_usage)
      json["usage"] = nullptr;
    return {"", json_text(json)};
  }

  ResponseContext context_;
  Delivery delivery_;
  int num_choices_;
  bool wants_logprobs_;
  std::size_t prompts_left_;
  std::vector<RequestUsage> usage_;  // by prompt
  std::vector<Choice> choices_;
  bool sent_ = false;
  std::optional<ApiError> failure_;
};

}  // namespace

std::unique_ptr<ResponseBuilder> completion_response(const CompletionRequest& request, ResponseContext context) {
  return std::make_unique<CompletionResponse>(request, std::move(context));
}

}  // namespace tetrad
