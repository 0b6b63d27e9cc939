#include <optional>
#include <utility>

#include "server/chunk_text.h"
#include "server/logprob_text.h"
#include "server/response_parts.h"

namespace tetrad {

using Json = nlohmann::ordered_json;

namespace {

constexpr const char* kChunkObject = "chat.completion.chunk";

class ChatResponse : public ResponseBuilder {
 public:
  ChatResponse(const ChatRequest& request, ResponseContext context)
      : context_(std::move(context)),
        delivery_(request.delivery),
        tools_(request.tools),
        num_prompt_top_(request.engine.generation.prompt_logprobs),
        returns_prompt_text_(request.returns_prompt_text),
        hides_reasoning_(request.reasoning == ReasoningOutput::kOmit) {
    for (int i = 0; i < request.engine.num_choices; ++i) choices_.emplace_back(request, tools_, context_);
    if (!delivery_.usage_in_every_chunk && !delivery_.token_ids)
      chunk_text_.emplace(context_.id, kChunkObject, context_.created, context_.model, delivery_.include_usage);
  }
  ChatResponse(const ChatResponse&) = delete;  // the choices refer to tools_
  ChatResponse& operator=(const ChatResponse&) = delete;

  std::vector<ServerSentEvent> feed(const EngineEvent& event, int) override {
    std::vector<ServerSentEvent> out;
    if (finished_) return out;
    if (const auto* started = std::get_if<StartedEvent>(&event)) {
      usage_.prompt_tokens = started->prompt_tokens;
      usage_.cached_tokens = started->cached_tokens;
    } else if (const auto* scored = std::get_if<PromptScoredEvent>(&event)) {
      prompt_logprobs_.add(scored->tokens, num_prompt_top_, context_.token_bytes);
    } else if (const auto* token = std::get_if<TokenEvent>(&event)) {
      take(*token, out);
    } else if (const auto* end = std::get_if<ChoiceFinishedEvent>(&event)) {
      finish_choice(*end, out);
    } else if (const auto* done = std::get_if<FinishedEvent>(&event)) {
      usage_ = done->usage;
      timings_ = json_text(timings_json(done->usage, done->timings));
      finished_ = true;
      if (delivery_.stream) finish_stream(out);
    } else {
      const auto& failed = std::get<FailedEvent>(event);
      finished_ = true;
      failure_ = api_error(failed.kind, failed.message, context_.request_id);
      if (sent_) out.push_back(openai_error_event(*failure_));
    }
    if (!out.empty()) sent_ = true;
    return out;
  }

  std::string body() const override {
    Json json = head("chat.completion");
    Json& choices = json["choices"] = Json::array();
    for (std::size_t i = 0; i < choices_.size(); ++i) {
      const Choice& choice = choices_[i];
      Json entry = {{"index", i}, {"message", message_of(choice)}};
      if (!choice.logprobs.empty()) entry["logprobs"] = {{"content", choice.logprobs}};
      entry["finish_reason"] = finish_reason(choice);
      entry["stop_reason"] = choice.answer.stops().stop_reason(choice.answer.reason());
      if (delivery_.token_ids) entry["token_ids"] = choice.token_ids;
      choices.push_back(std::move(entry));
    }
    json["usage"] = usage();
    std::string text = json_text(json);
    if (num_prompt_top_ >= 0) add_member(text, "prompt_logprobs", prompt_logprobs_.text());
    add_prompt(text);
    add_member(text, "timings", timings_);
    return text;
  }

  bool finished() const override { return finished_; }
  bool enough() const override {
    for (const Choice& choice : choices_)
      if (!choice.answer.enough()) return false;
    return true;
  }
  std::optional<ServerSentEvent> ping() override { return std::nullopt; }
  const ApiError* failure() const override { return failure_ ? &*failure_ : nullptr; }

 private:
  struct Choice {
    Choice(const ChatRequest& request, const ToolSet& tools, const ResponseContext& context) : answer(request, tools, context) {}

    ChatChoice answer;
    bool has_role = false;
    std::vector<int> token_ids;  // for return_token_ids; streamed: since the last chunk, like the next
    Json logprobs = Json::array();
    // Not streamed: the answer so far.
    std::string content, reasoning;
    Json calls = Json::array();
  };

  Json head(const char* object) const {
    return {{"id", context_.id}, {"object", object}, {"created", context_.created}, {"model", context_.model}};
  }

  Json usage() const {
    int reasoning_tokens = 0;
    for (const Choice& choice : choices_) reasoning_tokens += choice.answer.reasoning_tokens();
    return usage_json(usage_, reasoning_tokens);
  }

  // A chunk of one choice, or of none.
  ServerSentEvent chunk(Json choices, bool last_usage = false) {
    Json json = head(kChunkObject);
    json["choices"] = std::move(choices);
    if (last_usage || delivery_.usage_in_every_chunk)
      json["usage"] = usage();
    else if (delivery_.include_usage)
      json["usage"] = nullptr;
    std::string text = json_text(json);
    if (!std::exchange(told_prompt_, true)) add_prompt(text);
    return {"", std::move(text)};
  }

  void take(const TokenEvent& token, std::vector<ServerSentEvent>& out) {
    ++usage_.completion_tokens;
    Choice& choice = choices_.at(static_cast<std::size_t>(token.choice));
    if (delivery_.token_ids) choice.token_ids.push_back(token.sampled.id);
    const bool hidden = hides_reasoning_ && choice.answer.in_reasoning();
    if (token.sampled.logprob && !hidden) choice.logprobs.push_back(token_logprobs(token.sampled, context_.token_bytes));
    pass_on(token.choice, choice.answer.feed(token), out);
  }

  void finish_choice(const ChoiceFinishedEvent& end, std::vector<ServerSentEvent>& out) {
    Choice& choice = choices_.at(static_cast<std::size_t>(end.choice));
    pass_on(end.choice, choice.answer.finish(end), out);
    ++choices_finished_;
    if (!delivery_.stream) return;
    Json entry = delta_entry(end.choice, Json::object());
    entry["finish_reason"] = finish_reason(choice);
    entry["stop_reason"] = choice.answer.stops().stop_reason(end.reason);
    ServerSentEvent last = chunk(Json::array({std::move(entry)}));
    // The timings belong into the last chunk with something in it, and are not known before the end of the request.
    if (choices_finished_ == choices_.size() && !delivery_.include_usage)
      held_ = std::move(last);
    else
      out.push_back(std::move(last));
  }

  void finish_stream(std::vector<ServerSentEvent>& out) {
    ServerSentEvent last = delivery_.include_usage ? chunk(Json::array(), true) : std::move(held_);
    add_member(last.data, "timings", timings_);
    out.push_back(std::move(last));
    out.push_back({"", "[DONE]"});
  }

  // What the request wants to know of its prompt.
  void add_prompt(std::string& object) const {
    if (delivery_.token_ids) add_member(object, "prompt_token_ids", ids_text(context_.prompt_ids(0)));
    if (returns_prompt_text_) add_member(object, "prompt_text", json_text(context_.prompt_text(0)));
  }

  void pass_on(int index, const std::vector<AnswerEvent>& events, std::vector<ServerSentEvent>& out) {
    for (const AnswerEvent& event : events) {
      if (!delivery_.stream) {
        collect(choices_.at(static_cast<std::size_t>(index)), event);
      } else if (std::string text = plain_chunk(index, event); !text.empty()) {
        out.push_back({"", std::move(text)});
      } else if (Json delta = delta_of(event); !delta.empty()) {
        out.push_back(chunk(Json::array({delta_entry(index, std::move(delta))})));
      }
    }
  }

  // The same as chunk(delta_entry(delta_of(event))), where that is text and nothing else; empty where it is not.
  std::string plain_chunk(int index, const AnswerEvent& event) const {
    const Choice& choice = choices_[static_cast<std::size_t>(index)];
    if (!chunk_text_ || !choice.has_role || !told_prompt_ || !choice.logprobs.empty()) return {};
    if (const auto* content = std::get_if<ContentDelta>(&event)) return chunk_text_->delta(index, content->text, "content");
    const auto* reasoning = std::get_if<ReasoningDelta>(&event);
    if (reasoning == nullptr) return {};
    switch (context_.reasoning_fields) {
      case ReasoningFields::kReasoning: return chunk_text_->delta(index, reasoning->text, "reasoning");
      case ReasoningFields::kReasoningContent: return chunk_text_->delta(index, reasoning->text, "reasoning_content");
      case ReasoningFields::kBoth: break;
    }
    return chunk_text_->delta(index, reasoning->text, "reasoning_content", "reasoning");
  }

  // The role comes with the first token: clients take the first chunk for the first token.
  Json delta_entry(int index, Json delta) {
    Choice& choice = choices_.at(static_cast<std::size_t>(index));
    Json with_role = Json::object();
    if (!std::exchange(choice.has_role, true)) with_role["role"] = "assistant";
    with_role.update(delta);
    Json entry = {{"index", index}, {"delta", std::move(with_role)}};
    if (!choice.logprobs.empty()) entry["logprobs"] = {{"content", std::exchange(choice.logprobs, Json::array())}};
    entry["finish_reason"] = nullptr;
    if (delivery_.token_ids) entry["token_ids"] = std::exchange(choice.token_ids, {});
    return entry;
  }

  void put_reasoning(Json& where, const std::string& text) const {
    if (context_.reasoning_fields != ReasoningFields::kReasoning) where["reasoning_content"] = text;
    if (context_.reasoning_fields != ReasoningFields::kReasoningContent) where["reasoning"] = text;
  }

  Json delta_of(const AnswerEvent& event) const {
    Json delta = Json::object();
    if (const auto* reasoning = std::get_if<ReasoningDelta>(&event)) put_reasoning(delta, reasoning->text);
    if (const auto* content = std::get_if<ContentDelta>(&event)) delta["content"] = content->text;
    if (const auto* begin = std::get_if<ToolCallBegin>(&event)) {
      delta["tool_calls"] = Json::array(
          {{{"index", begin->index}, {"id", begin->id}, {"type", "function"}, {"function", {{"name", begin->name}, {"arguments", ""}}}}});
    }
    if (const auto* more = std::get_if<ToolCallDelta>(&event))
      delta["tool_calls"] = Json::array({{{"index", more->index}, {"function", {{"arguments", more->arguments}}}}});
    return delta;
  }

  static void collect(Choice& choice, const AnswerEvent& event) {
    if (const auto* reasoning = std::get_if<ReasoningDelta>(&event)) choice.reasoning += reasoning->text;
    if (const auto* content = std::get_if<ContentDelta>(&event)) choice.content += content->text;
    if (const auto* begin = std::get_if<ToolCallBegin>(&event))
      choice.calls.push_back({{"id", begin->id}, {"type", "function"}, {"function", {{"name", begin->name}, {"arguments", ""}}}});
    if (const auto* more = std::get_if<ToolCallDelta>(&event))
      choice.calls.back()["function"]["arguments"].get_ref<std::string&>() += more->arguments;
  }

  Json message_of(const Choice& choice) const {
    Json message = {{"role", "assistant"}};
    message["content"] = choice.content.empty() && !choice.calls.empty() ? Json(nullptr) : Json(choice.content);
    if (!choice.reasoning.empty()) put_reasoning(message, choice.reasoning);
    if (!choice.calls.empty()) message["tool_calls"] = choice.calls;
    return message;
  }

  static const char* finish_reason(const Choice& choice) {
    if (choice.answer.cut()) return "length";
    return choice.answer.called_tools() ? "tool_calls" : "stop";
  }

  ResponseContext context_;
  Delivery delivery_;
  ToolSet tools_;
  int num_prompt_top_;  // -1: no log probabilities of the prompt
  PromptLogprobs prompt_logprobs_;
  bool returns_prompt_text_, hides_reasoning_;
  bool told_prompt_ = false;             // in a chunk
  std::optional<ChunkText> chunk_text_;  // where a chunk can be text alone
  std::vector<Choice> choices_;
  std::size_t choices_finished_ = 0;
  ServerSentEvent held_;  // the chunk that ends the last choice
  std::string timings_;   // at the end
  RequestUsage usage_;
  bool sent_ = false, finished_ = false;
  std::optional<ApiError> failure_;
};

}  // namespace

std::unique_ptr<ResponseBuilder> chat_response(const ChatRequest& request, ResponseContext context) {
  return std::make_unique<ChatResponse>(request, std::move(context));
}

}  // namespace tetrad
