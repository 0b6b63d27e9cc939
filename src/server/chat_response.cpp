#include <utility>

#include "server/response_parts.h"

namespace tetrad {

using Json = nlohmann::ordered_json;

namespace {

// The token as text and as bytes: bytes are exact where the text of one token is not whole.
Json token_logprob(const TokenLogprob& token, const std::function<std::string(int)>& token_bytes) {
  const std::string bytes = token_bytes ? token_bytes(token.id) : std::string();
  Json numbers = Json::array();
  for (const char byte : bytes) numbers.push_back(static_cast<unsigned>(static_cast<unsigned char>(byte)));
  return {{"token", bytes}, {"logprob", finite_logprob(token.logprob)}, {"bytes", std::move(numbers)}};
}

Json token_logprobs(const SampledToken& sampled, const std::function<std::string(int)>& token_bytes) {
  Json entry = token_logprob(*sampled.logprob, token_bytes);
  Json& top = entry["top_logprobs"] = Json::array();
  for (const TokenLogprob& other : sampled.top) top.push_back(token_logprob(other, token_bytes));
  return entry;
}

class ChatResponse : public ResponseBuilder {
 public:
  ChatResponse(const ChatRequest& request, ResponseContext context)
      : context_(std::move(context)),
        delivery_(request.delivery),
        tools_(request.tools),
        hides_reasoning_(request.reasoning == ReasoningOutput::kOmit) {
    for (int i = 0; i < request.engine.num_choices; ++i) choices_.emplace_back(request, tools_, context_);
  }
  ChatResponse(const ChatResponse&) = delete;  // the choices refer to tools_
  ChatResponse& operator=(const ChatResponse&) = delete;

  std::vector<ServerSentEvent> feed(const EngineEvent& event, int) override {
    std::vector<ServerSentEvent> out;
    if (finished_) return out;
    if (const auto* started = std::get_if<StartedEvent>(&event)) {
      usage_.prompt_tokens = started->prompt_tokens;
      usage_.cached_tokens = started->cached_tokens;
    } else if (const auto* token = std::get_if<TokenEvent>(&event)) {
      take(*token, out);
    } else if (const auto* end = std::get_if<ChoiceFinishedEvent>(&event)) {
      finish_choice(*end, out);
    } else if (const auto* done = std::get_if<FinishedEvent>(&event)) {
      usage_ = done->usage;
      finished_ = true;
      finish_stream(out);
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
      choices.push_back(std::move(entry));
    }
    json["usage"] = usage();
    return json_text(json);
  }

  bool finished() const override { return finished_; }
  bool enough() const override {
    for (const Choice& choice : choices_)
      if (!choice.answer.enough()) return false;
    return true;
  }
  const ApiError* failure() const override { return failure_ ? &*failure_ : nullptr; }

 private:
  struct Choice {
    Choice(const ChatRequest& request, const ToolSet& tools, const ResponseContext& context) : answer(request, tools, context) {}

    ChatChoice answer;
    bool has_role = false;
    Json logprobs = Json::array();  // streamed: since the last chunk
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
  ServerSentEvent chunk(Json choices, bool last_usage = false) const {
    Json json = head("chat.completion.chunk");
    json["choices"] = std::move(choices);
    if (last_usage || delivery_.usage_in_every_chunk)
      json["usage"] = usage();
    else if (delivery_.include_usage)
      json["usage"] = nullptr;
    return {"", json_text(json)};
  }

  void take(const TokenEvent& token, std::vector<ServerSentEvent>& out) {
    ++usage_.completion_tokens;
    Choice& choice = choices_.at(static_cast<std::size_t>(token.choice));
    const bool hidden = hides_reasoning_ && choice.answer.in_reasoning();
    if (token.sampled.logprob && !hidden) choice.logprobs.push_back(token_logprobs(token.sampled, context_.token_bytes));
    pass_on(token.choice, choice.answer.feed(token), out);
  }

  void finish_choice(const ChoiceFinishedEvent& end, std::vector<ServerSentEvent>& out) {
    Choice& choice = choices_.at(static_cast<std::size_t>(end.choice));
    pass_on(end.choice, choice.answer.finish(end), out);
    if (!delivery_.stream) return;
    Json entry = delta_entry(end.choice, Json::object());
    entry["finish_reason"] = finish_reason(choice);
    entry["stop_reason"] = choice.answer.stops().stop_reason(end.reason);
    out.push_back(chunk(Json::array({std::move(entry)})));
  }

  void finish_stream(std::vector<ServerSentEvent>& out) const {
    if (!delivery_.stream) return;
    if (delivery_.include_usage) out.push_back(chunk(Json::array(), true));
    out.push_back({"", "[DONE]"});
  }

  void pass_on(int index, const std::vector<AnswerEvent>& events, std::vector<ServerSentEvent>& out) {
    for (const AnswerEvent& event : events) {
      if (!delivery_.stream) {
        collect(choices_.at(static_cast<std::size_t>(index)), event);
      } else if (Json delta = delta_of(event); !delta.empty()) {
        out.push_back(chunk(Json::array({delta_entry(index, std::move(delta))})));
      }
    }
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
  bool hides_reasoning_;
  std::vector<Choice> choices_;
  RequestUsage usage_;
  bool sent_ = false, finished_ = false;
  std::optional<ApiError> failure_;
};

}  // namespace

std::unique_ptr<ResponseBuilder> chat_response(const ChatRequest& request, ResponseContext context) {
  return std::make_unique<ChatResponse>(request, std::move(context));
}

}  // namespace tetrad
