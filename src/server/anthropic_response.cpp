#include <utility>

#include "server/response_parts.h"
#include "text/json_bounded.h"

namespace tetrad {

using Json = nlohmann::ordered_json;

namespace {

// Clients keep the signature of a thinking block and send it back; nothing is verified by it here, but some drop blocks without one.
constexpr std::string_view kSignature = "tetrad";
constexpr int kMaxInputNesting = 128;  // beyond what arguments can have

class AnthropicResponse : public ResponseBuilder {
 public:
  AnthropicResponse(const ChatRequest& request, ResponseContext context)
      : context_(std::move(context)), stream_(request.delivery.stream), tools_(request.tools), answer_(request, tools_, context_) {}
  AnthropicResponse(const AnthropicResponse&) = delete;  // the answer refers to tools_
  AnthropicResponse& operator=(const AnthropicResponse&) = delete;

  std::vector<ServerSentEvent> feed(const EngineEvent& event, int) override {
    out_.clear();
    if (finished_) return {};
    if (const auto* started = std::get_if<StartedEvent>(&event)) {
      usage_.prompt_tokens = started->prompt_tokens;
      usage_.cached_tokens = started->cached_tokens;
      Json message = head();
      message["content"] = Json::array();
      message["stop_reason"] = nullptr;
      message["stop_sequence"] = nullptr;
      message["usage"] = usage();
      send("message_start", {{"message", std::move(message)}});
    } else if (const auto* token = std::get_if<TokenEvent>(&event)) {
      ++usage_.completion_tokens;
      take(answer_.feed(*token));
    } else if (const auto* end = std::get_if<ChoiceFinishedEvent>(&event)) {
      take(answer_.finish(*end));
      end_block();
    } else if (const auto* done = std::get_if<FinishedEvent>(&event)) {
      usage_ = done->usage;
      finished_ = true;
      send("message_delta", {{"delta", {{"stop_reason", stop_reason()}, {"stop_sequence", stop_sequence()}}}, {"usage", usage()}});
      send("message_stop", Json::object());
    } else {
      const auto& failed = std::get<FailedEvent>(event);
      finished_ = true;
      failure_ = api_error(failed.kind, failed.message, context_.request_id);
      if (sent_) out_.push_back(anthropic_error_event(*failure_));
    }
    if (!out_.empty()) sent_ = true;
    return std::move(out_);
  }

  std::string body() const override {
    Json message = head();
    Json& content = message["content"] = Json::array();
    for (const Block& block : blocks_) {
      Json json = block.start;
      if (block.kind == Block::kText) json["text"] = block.text;
      if (block.kind == Block::kThinking) {
        json["thinking"] = block.text;
        json["signature"] = kSignature;
      }
      // A call that was cut off has no input: what there is of it must not be mistaken for one.
      if (block.kind == Block::kCall) {
        if (!block.complete) continue;
        json["input"] = parse_json_bounded(block.text, "arguments", kMaxInputNesting);
      }
      content.push_back(std::move(json));
    }
    message["stop_reason"] = stop_reason();
    message["stop_sequence"] = stop_sequence();
    message["usage"] = usage();
    return json_text(message);
  }

  bool finished() const override { return finished_; }
  bool enough() const override { return answer_.enough(); }
  std::optional<ServerSentEvent> ping() override { return ServerSentEvent{"ping", R"({"type":"ping"})"}; }
  const ApiError* failure() const override { return failure_ ? &*failure_ : nullptr; }

 private:
  struct Block {
    enum Kind { kText, kThinking, kCall };
    Kind kind = kText;
    Json start;
    std::string text;  // not streamed: of the block so far
    bool complete = false;
  };

  Json head() const { return {{"id", context_.id}, {"type", "message"}, {"role", "assistant"}, {"model", context_.model}}; }

  Json usage() const {
    return {{"input_tokens", usage_.prompt_tokens - usage_.cached_tokens},
            {"cache_creation_input_tokens", 0},
            {"cache_read_input_tokens", usage_.cached_tokens},
            {"output_tokens", usage_.completion_tokens}};
  }

  const char* stop_reason() const {
    if (answer_.cut()) return answer_.reason() == FinishReason::kContext ? "model_context_window_exceeded" : "max_tokens";
    if (answer_.called_tools()) return "tool_use";
    return answer_.stops().matched_string() != nullptr ? "stop_sequence" : "end_turn";
  }

  Json stop_sequence() const {
    const std::string* matched = answer_.stops().matched_string();
    return matched == nullptr || stop_reason() != std::string_view("stop_sequence") ? Json(nullptr) : Json(*matched);
  }

  void send(const char* type, Json fields) {
    if (!stream_) return;
    Json json = {{"type", type}};
    json.update(fields);
    out_.push_back({type, json_text(json)});
  }

  void take(const std::vector<AnswerEvent>& events) {
    for (const AnswerEvent& event : events) {
      if (const auto* reasoning = std::get_if<ReasoningDelta>(&event)) {
        need_block(Block::kThinking);
        add(reasoning->text, {{"type", "thinking_delta"}, {"thinking", reasoning->text}});
      } else if (const auto* content = std::get_if<ContentDelta>(&event)) {
        need_block(Block::kText);
        add(content->text, {{"type", "text_delta"}, {"text", content->text}});
      } else if (const auto* begin = std::get_if<ToolCallBegin>(&event)) {
        begin_block(Block::kCall, {{"type", "tool_use"}, {"id", begin->id}, {"name", begin->name}, {"input", Json::object()}});
      } else if (const auto* more = std::get_if<ToolCallDelta>(&event)) {
        add(more->arguments, {{"type", "input_json_delta"}, {"partial_json", more->arguments}});
      } else {
        blocks_.back().complete = std::get<ToolCallEnd>(event).complete;
        end_block();
      }
    }
  }

  void need_block(Block::Kind kind) {
    if (open_ && blocks_.back().kind == kind) return;
    begin_block(kind, kind == Block::kText ? Json{{"type", "text"}, {"text", ""}}
                                           : Json{{"type", "thinking"}, {"thinking", ""}, {"signature", ""}});
  }

  void begin_block(Block::Kind kind, Json start) {
    end_block();
    open_ = true;
    blocks_.push_back({kind, start, {}, false});
    send("content_block_start", {{"index", blocks_.size() - 1}, {"content_block", std::move(start)}});
  }

  void add(const std::string& text, Json delta) {
    if (stream_)
      send("content_block_delta", {{"index", blocks_.size() - 1}, {"delta", std::move(delta)}});
    else
      blocks_.back().text += text;
  }

  void end_block() {
    if (!std::exchange(open_, false)) return;
    const std::size_t index = blocks_.size() - 1;
    if (blocks_.back().kind == Block::kThinking)
      send("content_block_delta", {{"index", index}, {"delta", {{"type", "signature_delta"}, {"signature", kSignature}}}});
    send("content_block_stop", {{"index", index}});
  }

  ResponseContext context_;
  bool stream_;
  ToolSet tools_;
  ChatChoice answer_;
  std::vector<Block> blocks_;
  bool open_ = false;  // the last block
  RequestUsage usage_;
  std::vector<ServerSentEvent> out_;
  bool sent_ = false, finished_ = false;
  std::optional<ApiError> failure_;
};

}  // namespace

std::unique_ptr<ResponseBuilder> anthropic_response(const ChatRequest& request, ResponseContext context) {
  return std::make_unique<AnthropicResponse>(request, std::move(context));
}

}  // namespace tetrad
