#include <utility>

#include "server/logprob_text.h"
#include "server/response_parts.h"

namespace tetrad {

using Json = nlohmann::ordered_json;

namespace {

class CompletionResponse : public ResponseBuilder {
 public:
  CompletionResponse(const CompletionRequest& request, ResponseContext context)
      : context_(std::move(context)),
        delivery_(request.delivery),
        num_choices_(request.engine.num_choices),
        num_top_(request.engine.generation.sampling.logprobs),
        num_prompt_top_(request.prompt_logprobs),
        prompts_left_(request.prompts.size()),
        usage_(request.prompts.size()),
        prompt_logprobs_(request.prompts.size()) {
    const auto echo_scores = request.echo && num_top_;
    for (std::size_t p = 0; p < request.prompts.size(); ++p) {
      const std::string echo = request.echo && context_.prompt_text ? context_.prompt_text(static_cast<int>(p)) : std::string();
      for (int c = 0; c < num_choices_; ++c) {
        Choice& choice = choices_.emplace_back(StopFinder(request.engine.generation, request.asked_stop_ids, context_.token_bytes));
        choice.text = echo;
        choice.echoes_scores = echo_scores;
        if (echo_scores)
          choice.logprobs.add_unscored(context_.prompt_ids(static_cast<int>(p)).front(), context_.token_bytes);
        else
          choice.logprobs.skip_text(num_characters(echo));
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
    } else if (const auto* scored = std::get_if<PromptScoredEvent>(&event)) {
      add_prompt_scores(*scored, prompt);
    } else if (const auto* token = std::get_if<TokenEvent>(&event)) {
      ++usage.completion_tokens;
      const int index = prompt * num_choices_ + token->choice;
      Choice& choice = choices_.at(static_cast<std::size_t>(index));
      choice.stops.add(token->sampled.id);
      if (delivery_.token_ids) choice.token_ids.push_back(token->sampled.id);
      choice.text += token->text;
      if (token->sampled.logprob) choice.logprobs.add(token->sampled, num_top_.value_or(0), context_.token_bytes);
      if (delivery_.stream && !token->text.empty()) out.push_back(chunk(entry(index)));
    } else if (const auto* end = std::get_if<ChoiceFinishedEvent>(&event)) {
      const int index = prompt * num_choices_ + end->choice;
      Choice& choice = choices_.at(static_cast<std::size_t>(index));
      choice.text += end->text;
      choice.reason = end->reason;
      ++choices_finished_;
      if (delivery_.stream) pass_on_end(chunk(entry(index)), out);
    } else if (const auto* done = std::get_if<FinishedEvent>(&event)) {
      usage = done->usage;
      --prompts_left_;
      if (usage_.size() == 1) timings_ = json_text(timings_json(done->usage, done->timings));
      if (delivery_.stream && prompts_left_ == 0) finish_stream(out);
    } else {
      const auto& failed = std::get<FailedEvent>(event);
      failure_ = api_error(failed.kind, failed.message, context_.request_id);
      if (sent_) out.push_back(openai_error_event(*failure_));
    }
    if (!out.empty()) sent_ = true;
    return out;
  }

  std::string body() const override {
    std::string choices;
    for (std::size_t i = 0; i < choices_.size(); ++i) {
      if (i > 0) choices += ',';
      choices += entry_of(choices_[i], static_cast<int>(i));
    }
    std::string json = json_text(head());
    add_member(json, "choices", "[" + choices + "]");
    add_member(json, "usage", json_text(usage()));
    if (!timings_.empty()) add_member(json, "timings", timings_);
    return json;
  }

  bool finished() const override { return prompts_left_ == 0 || failure_.has_value(); }
  bool enough() const override { return false; }
  std::optional<ServerSentEvent> ping() override { return std::nullopt; }
  const ApiError* failure() const override { return failure_ ? &*failure_ : nullptr; }

 private:
  struct Choice {
    explicit Choice(StopFinder finder) : stops(std::move(finder)) {}

    StopFinder stops;
    std::string text;             // streamed: since the last chunk, like the next
    CompletionLogprobs logprobs;  // echoed ones of the prompt come first
    std::vector<int> token_ids;   // for return_token_ids
    bool echoes_scores = false, sent = false;
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

  void add_prompt_scores(const PromptScoredEvent& scored, int prompt) {
    const auto first = choices_.begin() + prompt * num_choices_;
    for (auto choice = first; choice != first + num_choices_; ++choice) {
      if (!choice->echoes_scores) break;
      for (const SampledToken& token : scored.tokens) choice->logprobs.add(token, *num_top_, context_.token_bytes);
    }
    if (num_prompt_top_) prompt_logprobs_.at(static_cast<std::size_t>(prompt)).add(scored.tokens, *num_prompt_top_, context_.token_bytes);
  }

  std::string entry_of(const Choice& choice, int index) const {
    std::string json = json_text({{"index", index}, {"text", choice.text}});
    add_member(json, "logprobs", num_top_ ? choice.logprobs.text() : "null");
    if (choice.reason) {
      const bool out_of_tokens = *choice.reason == FinishReason::kLength || *choice.reason == FinishReason::kContext;
      add_member(json, "finish_reason", out_of_tokens ? R"("length")" : R"("stop")");
      add_member(json, "stop_reason", json_text(choice.stops.stop_reason(*choice.reason)));
    } else {
      add_member(json, "finish_reason", "null");
    }
    const int prompt = index / num_choices_;
    if (num_prompt_top_) add_member(json, "prompt_logprobs", prompt_logprobs_.at(static_cast<std::size_t>(prompt)).text());
    if (delivery_.token_ids) {
      if (!choice.sent) add_member(json, "prompt_token_ids", ids_text(context_.prompt_ids(prompt)));
      add_member(json, "token_ids", ids_text(choice.token_ids));
    }
    return json;
  }

  // What is new in a choice, which is then no longer.
  std::string entry(int index) {
    Choice& choice = choices_.at(static_cast<std::size_t>(index));
    std::string json = entry_of(choice, index);
    choice.text.clear();
    choice.logprobs.clear();
    choice.token_ids.clear();
    choice.sent = true;
    return json;
  }

  // The timings belong into the last chunk with something in it, and are not known before the end of the request.
  void pass_on_end(ServerSentEvent chunk, std::vector<ServerSentEvent>& out) {
    if (choices_finished_ == choices_.size() && !delivery_.include_usage)
      held_ = std::move(chunk);
    else
      out.push_back(std::move(chunk));
  }

  void finish_stream(std::vector<ServerSentEvent>& out) {
    ServerSentEvent last = delivery_.include_usage ? chunk({}, true) : std::move(held_);
    if (!timings_.empty()) add_member(last.data, "timings", timings_);
    out.push_back(std::move(last));
    out.push_back({"", "[DONE]"});
  }

  ServerSentEvent chunk(const std::string& entry, bool last_usage = false) const {
    std::string json = json_text(head());
    add_member(json, "choices", "[" + entry + "]");
    if (last_usage || delivery_.usage_in_every_chunk)
      add_member(json, "usage", json_text(usage()));
    else if (delivery_.include_usage)
      add_member(json, "usage", "null");
    return {"", std::move(json)};
  }

  ResponseContext context_;
  Delivery delivery_;
  int num_choices_;
  std::optional<int> num_top_, num_prompt_top_;  // logprobs and prompt_logprobs as asked for
  std::size_t prompts_left_;
  std::vector<RequestUsage> usage_;              // by prompt
  std::vector<PromptLogprobs> prompt_logprobs_;  // by prompt
  std::vector<Choice> choices_;
  std::size_t choices_finished_ = 0;
  ServerSentEvent held_;  // the chunk that ends the last choice
  std::string timings_;   // of a request with one prompt, at its end
  bool sent_ = false;
  std::optional<ApiError> failure_;
};

}  // namespace

std::unique_ptr<ResponseBuilder> completion_response(const CompletionRequest& request, ResponseContext context) {
  return std::make_unique<CompletionResponse>(request, std::move(context));
}

}  // namespace tetrad
