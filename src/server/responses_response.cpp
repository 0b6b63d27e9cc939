#include <utility>

#include "server/logprob_text.h"
#include "server/response_parts.h"
#include "server/responses_request.h"
#include "text/json_bounded.h"

namespace tetrad {

using Json = nlohmann::ordered_json;

namespace {

constexpr int kMaxInputDepth = 128;  // beyond what arguments can have

// One item of the output. The whole of it is kept, streamed or not: the last event repeats it.
struct OutputItem {
  enum Kind { kReasoning, kMessage, kCall, kCustomCall };
  Kind kind = kMessage;
  std::string id, call_id, text;  // a call's text is its arguments
  ClientTool tool = {};
  Json logprobs = Json::array();  // of a message
  bool complete = true;

  // The parts of a reasoning or a message: none as long as it has no text.
  const char* part_type() const { return kind == kReasoning ? "reasoning_text" : "output_text"; }
  bool has_parts() const { return kind == kReasoning || kind == kMessage; }
  bool is_call() const { return !has_parts(); }

  Json part(bool with_text) const {
    Json part = {{"type", part_type()}, {"text", with_text ? text : ""}};
    if (kind == kMessage) {
      part["annotations"] = Json::array();
      part["logprobs"] = with_text ? logprobs : Json::array();
    }
    return part;
  }

  // What the client's tool takes: a custom one its text, which the model wrote as the one argument.
  std::string custom_input() const {
    if (!complete) return {};
    const Json arguments = parse_json_bounded(text, "arguments", kMaxInputDepth);
    const auto input = arguments.find(std::string(kCustomInput));
    if (input == arguments.end()) return {};
    return input->is_string() ? input->get<std::string>() : json_text(*input);
  }

  Json json(const char* status) const {
    const bool begins = status == std::string_view("in_progress");
    Json item = {{"id", id}, {"type", ""}, {"status", status}};
    if (kind == kReasoning) {
      item["type"] = "reasoning";
      item["summary"] = Json::array();
      item["content"] = begins ? Json::array() : Json::array({part(true)});
      item["encrypted_content"] = nullptr;
    } else if (kind == kMessage) {
      item["type"] = "message";
      item["role"] = "assistant";
      item["content"] = begins ? Json::array() : Json::array({part(true)});
    } else {
      item["type"] = kind == kCall ? "function_call" : "custom_tool_call";
      item["call_id"] = call_id;
      item["name"] = tool.name;
      if (!tool.name_space.empty()) item["namespace"] = tool.name_space;
      if (kind == kCall)
        item["arguments"] = begins ? "" : text;
      else
        item["input"] = begins ? "" : custom_input();
    }
    return item;
  }
};

class ResponsesResponse : public ResponseBuilder {
 public:
  ResponsesResponse(const ResponsesRequest& request, ResponseContext context)
      : context_(std::move(context)),
        stream_(request.chat.delivery.stream),
        echo_(request.echo),
        client_tools_(request.tools),
        tools_(request.chat.tools),
        answer_(request.chat, tools_, context_) {}
  ResponsesResponse(const ResponsesResponse&) = delete;  // the answer refers to tools_
  ResponsesResponse& operator=(const ResponsesResponse&) = delete;

  std::vector<ServerSentEvent> feed(const EngineEvent& event, int) override {
    out_.clear();
    if (finished_) return {};
    if (const auto* started = std::get_if<StartedEvent>(&event)) {
      usage_.prompt_tokens = started->prompt_tokens;
      usage_.cached_tokens = started->cached_tokens;
      begin();
    } else if (const auto* token = std::get_if<TokenEvent>(&event)) {
      ++usage_.completion_tokens;
      if (token->sampled.logprob && !answer_.in_reasoning()) logprobs_.push_back(token_logprobs(token->sampled, context_.token_bytes));
      take(answer_.feed(*token));
    } else if (const auto* end = std::get_if<ChoiceFinishedEvent>(&event)) {
      take(answer_.finish(*end));
      end_item(!answer_.cut());
    } else if (const auto* done = std::get_if<FinishedEvent>(&event)) {
      usage_ = done->usage;
      finished_ = true;
      send(answer_.cut() ? "response.incomplete" : "response.completed", {{"response", response(status(), true)}});
    } else if (const auto* failed = std::get_if<FailedEvent>(&event)) {
      finished_ = true;
      failure_ = api_error(failed->kind, failed->message, context_.request_id);
      begin();
      end_item(false);
      send("response.failed", {{"response", response("failed", false)}});
    }
    return std::move(out_);
  }

  std::string body() const override { return json_text(response(status(), true)); }
  bool finished() const override { return finished_; }
  bool enough() const override { return answer_.enough(); }
  // As OpenAI's own server does it. Before the first event clients expect no other.
  std::optional<ServerSentEvent> ping() override {
    if (!begun_ || finished_) return std::nullopt;
    return ServerSentEvent{"keepalive", json_text({{"type", "keepalive"}, {"sequence_number", sequence_++}})};
  }
  const ApiError* failure() const override { return failure_ ? &*failure_ : nullptr; }

 private:
  const char* status() const { return answer_.cut() ? "incomplete" : "completed"; }

  Json usage() const {
    return {{"input_tokens", usage_.prompt_tokens},
            {"input_tokens_details", {{"cached_tokens", usage_.cached_tokens}, {"cache_write_tokens", 0}}},
            {"output_tokens", usage_.completion_tokens},
            {"output_tokens_details", {{"reasoning_tokens", answer_.reasoning_tokens()}}},
            {"total_tokens", usage_.prompt_tokens + usage_.completion_tokens}};
  }

  Json response(const char* status, bool with_usage) const {
    Json json = {{"id", context_.id}, {"object", "response"}, {"created_at", context_.created}, {"status", status}};
    json["background"] = false;
    json["error"] = nullptr;
    // OpenAI's list of codes is closed, and clients with types hold on to it: this server's own code is beside it.
    if (failure_)
      json["error"] = {
          {"code", "server_error"}, {"message", failure_->message}, {"type", failure_->code.empty() ? failure_->type : failure_->code}};
    json["incomplete_details"] = nullptr;
    if (status == std::string_view("incomplete")) json["incomplete_details"] = {{"reason", "max_output_tokens"}};
    json["model"] = context_.model;
    Json& output = json["output"] = Json::array();
    for (const OutputItem& item : items_) output.push_back(item.json(item.complete ? "completed" : "incomplete"));
    json.update(echo_);
    json["usage"] = with_usage ? usage() : Json(nullptr);
    return json;
  }

  void send(const char* type, Json fields) {
    if (!stream_) return;
    Json json = {{"type", type}, {"sequence_number", sequence_++}};
    json.update(fields);
    out_.push_back({type, json_text(json)});
  }

  void begin() {
    if (std::exchange(begun_, true)) return;
    for (const char* type : {"response.created", "response.in_progress"}) send(type, {{"response", response("in_progress", false)}});
  }

  // What every event about the last item says.
  Json about_item() const { return {{"item_id", items_.back().id}, {"output_index", items_.size() - 1}}; }
  Json about_part() const {
    Json json = about_item();
    json["content_index"] = 0;
    return json;
  }
  static Json with(Json json, const char* field, Json value) {
    json[field] = std::move(value);
    return json;
  }

  void take(const std::vector<AnswerEvent>& events) {
    for (const AnswerEvent& event : events) {
      if (const auto* reasoning = std::get_if<ReasoningDelta>(&event)) {
        need_item(OutputItem::kReasoning);
        items_.back().text += reasoning->text;
        send("response.reasoning_text.delta", with(about_part(), "delta", reasoning->text));
      } else if (const auto* content = std::get_if<ContentDelta>(&event)) {
        add_text(content->text);
      } else if (const auto* call = std::get_if<ToolCallBegin>(&event)) {
        begin_call(*call);
      } else if (const auto* more = std::get_if<ToolCallDelta>(&event)) {
        items_.back().text += more->arguments;
        if (items_.back().kind == OutputItem::kCall)
          send("response.function_call_arguments.delta", with(about_item(), "delta", more->arguments));
      } else {
        end_item(std::get<ToolCallEnd>(event).complete);
      }
    }
  }

  void add_text(const std::string& text) {
    need_item(OutputItem::kMessage);
    items_.back().text += text;
    Json logprobs = std::exchange(logprobs_, Json::array());
    for (const Json& token : logprobs) items_.back().logprobs.push_back(token);
    send("response.output_text.delta", with(with(about_part(), "delta", text), "logprobs", std::move(logprobs)));
  }

  void need_item(OutputItem::Kind kind) {
    if (open_ && items_.back().kind == kind) return;
    OutputItem item;
    item.kind = kind;
    begin_item(std::move(item));
  }

  void begin_call(const ToolCallBegin& call) {
    OutputItem item;
    const auto tool = client_tools_.find(call.name);
    item.tool = tool == client_tools_.end() ? ClientTool{call.name, {}, false} : tool->second;
    item.kind = item.tool.custom ? OutputItem::kCustomCall : OutputItem::kCall;
    item.call_id = call.id;
    begin_item(std::move(item));
  }

  void begin_item(OutputItem item) {
    end_item(true);
    static constexpr const char* kPrefixes[] = {"rs", "msg", "fc", "ctc"};
    const std::string_view own = std::string_view(context_.id).substr(context_.id.find('_') + 1);
    item.id = fmt::format("{}_{}_{}", kPrefixes[item.kind], own, items_.size());
    items_.push_back(std::move(item));
    open_ = true;
    send("response.output_item.added", {{"output_index", items_.size() - 1}, {"item", items_.back().json("in_progress")}});
    if (items_.back().has_parts()) send("response.content_part.added", with(about_part(), "part", items_.back().part(false)));
  }

  void end_item(bool complete) {
    if (!std::exchange(open_, false)) return;
    OutputItem& item = items_.back();
    item.complete = complete;
    if (item.kind != OutputItem::kReasoning) logprobs_ = Json::array();  // after reasoning they are of the text that comes
    if (item.has_parts()) {
      const bool reasoning = item.kind == OutputItem::kReasoning;
      Json done = with(about_part(), "text", item.text);
      if (!reasoning) done["logprobs"] = item.logprobs;
      send(reasoning ? "response.reasoning_text.done" : "response.output_text.done", std::move(done));
      send("response.content_part.done", with(about_part(), "part", item.part(true)));
    } else if (item.kind == OutputItem::kCall) {
      send("response.function_call_arguments.done", with(with(about_item(), "name", item.tool.name), "arguments", item.text));
    } else {
      const std::string input = item.custom_input();
      send("response.custom_tool_call_input.delta", with(about_item(), "delta", input));
      send("response.custom_tool_call_input.done", with(about_item(), "input", input));
    }
    const char* status = complete ? "completed" : "incomplete";
    send("response.output_item.done", {{"output_index", items_.size() - 1}, {"item", item.json(status)}});
  }

  ResponseContext context_;
  bool stream_;
  Json echo_;
  std::map<std::string, ClientTool, std::less<>> client_tools_;
  ToolSet tools_;
  ChatChoice answer_;
  std::vector<OutputItem> items_;
  bool open_ = false;              // the last item
  Json logprobs_ = Json::array();  // of tokens whose text has not come yet
  RequestUsage usage_;
  std::vector<ServerSentEvent> out_;
  int sequence_ = 0;
  bool begun_ = false, finished_ = false;
  std::optional<ApiError> failure_;
};

}  // namespace

std::unique_ptr<ResponseBuilder> responses_response(const ResponsesRequest& request, ResponseContext context) {
  return std::make_unique<ResponsesResponse>(request, std::move(context));
}

}  // namespace tetrad
