// Engine events to chunks and bodies: the streaming contract, and that a stream and a body say the same.
#include "server/response_json.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "server/anthropic_request.h"

namespace tetrad::response_json_test {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kEnd = 900, kAskedStop = 901;

RequestContext request_context() {
  RequestContext c;
  c.vocab_size = 4096;
  c.stop_ids = {kEnd};
  return c;
}

ResponseContext response_context(bool in_reasoning) {
  ResponseContext c;
  c.id = "resp-1";
  c.created = 123;
  c.model = "tiny";
  c.request_id = "req-1";
  c.starts_in_reasoning = in_reasoning;
  c.make_id = [n = 0]() mutable { return fmt::format("call_{}", n++); };
  c.token_bytes = [](int id) { return id < 256 ? std::string(1, static_cast<char>(id)) : std::string(); };
  c.prompt_text = [](int p) { return fmt::format("P{}\xC3\xA9", p); };
  return c;
}

const char* kTools =
    R"("tools": [{"type": "function", "function": {"name": "f", "parameters": {"properties": {"s": {"type": "string"}, "i": {"type": "integer"}}}}}])";

ChatRequest chat(const std::string& fields) {
  return parse_chat_request(R"({"messages": [{"role": "user", "content": "q"}])" + (fields.empty() ? "" : ", " + fields) + "}",
                            request_context());
}
ChatRequest messages(const std::string& fields) {
  return parse_anthropic_request(
      R"({"max_tokens": 100, "messages": [{"role": "user", "content": "q"}])" + (fields.empty() ? "" : ", " + fields) + "}",
      request_context());
}

// An answer of single bytes and a stop id, as the engine reports it.
std::vector<EngineEvent> answer(const std::string& text, FinishReason reason = FinishReason::kStop, int choice = 0, bool logprobs = false) {
  std::vector<EngineEvent> events;
  for (const char byte : text) {
    TokenEvent token{
        .choice = choice, .sampled = {.id = static_cast<unsigned char>(byte), .logprob = {}, .top = {}}, .text = std::string(1, byte)};
    if (logprobs) {
      token.sampled.logprob = TokenLogprob{token.sampled.id, -0.5f};
      token.sampled.top = {{'z', -0.25f}, {'y', -std::numeric_limits<float>::infinity()}};
    }
    events.emplace_back(token);
  }
  if (reason == FinishReason::kStop)
    events.emplace_back(TokenEvent{.choice = choice, .sampled = {.id = kEnd, .logprob = {}, .top = {}}, .text = {}});
  events.emplace_back(ChoiceFinishedEvent{.choice = choice, .reason = reason, .text = {}, .num_tokens = 0});
  return events;
}

FinishedEvent finished(int completion_tokens) {
  FinishedEvent event;
  event.usage = {.prompt_tokens = 10, .cached_tokens = 4, .completion_tokens = completion_tokens};
  return event;
}

std::vector<ServerSentEvent> run(ResponseBuilder& builder, const std::vector<EngineEvent>& events, int completion_tokens = 7) {
  std::vector<ServerSentEvent> sent;
  const auto add = [&](const EngineEvent& event) {
    for (ServerSentEvent& out : builder.feed(event)) sent.push_back(std::move(out));
  };
  add(StartedEvent{.queue_seconds = 0, .prompt_tokens = 10, .cached_tokens = 4});
  for (const EngineEvent& event : events) add(event);
  EXPECT_FALSE(builder.finished());
  add(finished(completion_tokens));
  EXPECT_TRUE(builder.finished());
  return sent;
}

std::vector<Json> chunks(const std::vector<ServerSentEvent>& sent) {
  std::vector<Json> list;
  for (const ServerSentEvent& event : sent)
    if (event.data != "[DONE]") list.push_back(Json::parse(event.data));
  return list;
}

// A stream put together the way clients do it, in the form of a body's choices.
Json assembled(const std::vector<Json>& stream) {
  Json choices = Json::object();
  for (const Json& chunk : stream) {
    for (const Json& entry : chunk["choices"]) {
      Json& choice = choices[std::to_string(entry["index"].get<int>())];
      Json& message = choice["message"];
      for (const auto& [key, value] : entry["delta"].items()) {
        if (key == "tool_calls") {
          for (const Json& call : value) {
            Json& calls = message["tool_calls"];
            const auto index = call["index"].get<std::size_t>();
            if (index == calls.size()) {
              EXPECT_TRUE(call.contains("id") && call["function"].contains("name") && call["function"]["arguments"] == "");
              calls.push_back({{"id", call["id"]}, {"type", call["type"]}, {"function", call["function"]}});
            } else {
              EXPECT_FALSE(call.contains("id") || call["function"].contains("name"));
              calls[index]["function"]["arguments"] =
                  calls[index]["function"]["arguments"].get<std::string>() + call["function"]["arguments"].get<std::string>();
            }
          }
        } else {
          message[key] = message.contains(key) ? Json(message[key].get<std::string>() + value.get<std::string>()) : value;
        }
      }
      if (entry.contains("logprobs"))
        for (const Json& token : entry["logprobs"]["content"]) choice["logprobs"].push_back(token);
      if (!entry["finish_reason"].is_null()) {
        EXPECT_FALSE(choice.contains("finish_reason"));
        choice["finish_reason"] = entry["finish_reason"];
        choice["stop_reason"] = entry["stop_reason"];
      }
    }
  }
  return choices;
}

struct ChatRun {
  Json body;  // not streamed
  std::vector<Json> stream;
  Json streamed;  // assembled
};

ChatRun run_chat(const std::string& fields, const std::vector<EngineEvent>& events, bool in_reasoning = false) {
  ChatRun result;
  const auto whole = chat_response(chat(fields), response_context(in_reasoning));
  EXPECT_TRUE(run(*whole, events).empty());
  result.body = Json::parse(whole->body());
  const std::string more = (fields.empty() ? "" : fields + ", ") + R"("stream": true, "stream_options": {"include_usage": true})";
  const auto streamed = chat_response(chat(more), response_context(in_reasoning));
  const std::vector<ServerSentEvent> sent = run(*streamed, events);
  EXPECT_EQ(sent.back().data, "[DONE]");
  result.stream = chunks(sent);
  result.streamed = assembled(result.stream);
  for (const Json& choice : result.body["choices"]) {
    const Json& other = result.streamed[std::to_string(choice["index"].get<int>())];
    EXPECT_EQ(other["finish_reason"], choice["finish_reason"]);
    EXPECT_EQ(other["stop_reason"], choice["stop_reason"]);
    EXPECT_EQ(other["message"].value("role", ""), "assistant");
    for (const auto& [key, value] : choice["message"].items()) {
      const bool no_text = key == "content" && (value.is_null() || value == "");
      EXPECT_EQ(other["message"].value(key, Json("")), no_text ? Json("") : value) << key;
    }
    for (const auto& [key, value] : other["message"].items()) EXPECT_TRUE(choice["message"].contains(key)) << key;
    if (choice.contains("logprobs")) {
      EXPECT_EQ(other["logprobs"], choice["logprobs"]["content"]);
    }
  }
  EXPECT_EQ(result.stream.back()["usage"], result.body["usage"]);
  return result;
}

const std::string kCall =
    "<tool_call>\n<function=f>\n<parameter=s>\na \"b\"\n</parameter>\n<parameter=i>\n5\n</parameter>\n</function>\n</tool_call>";

TEST(chat_response, plain_answer) {
  ChatRun r = run_chat("", answer("hi there"));
  EXPECT_EQ(r.stream.back()["timings"], r.body["timings"]);
  r.body.erase("timings");
  EXPECT_EQ(
      r.body.dump(),
      R"({"id":"resp-1","object":"chat.completion","created":123,"model":"tiny","choices":[{"index":0,"message":{"role":"assistant","content":"hi there"},)"
      R"("finish_reason":"stop","stop_reason":null}],"usage":{"prompt_tokens":10,"completion_tokens":7,"total_tokens":17,)"
      R"("prompt_tokens_details":{"cached_tokens":4},"completion_tokens_details":{"reasoning_tokens":0}}})");
  EXPECT_EQ(
      r.stream[0].dump(),
      R"({"id":"resp-1","object":"chat.completion.chunk","created":123,"model":"tiny","choices":[{"index":0,"delta":{"role":"assistant","content":"h"},)"
      R"("finish_reason":null}],"usage":null})");
  EXPECT_EQ(r.stream.back()["choices"].dump(), "[]");
  for (std::size_t i = 1; i + 1 < r.stream.size(); ++i) {
    EXPECT_FALSE(r.stream[i]["choices"][0]["delta"].contains("role"));
    EXPECT_TRUE(r.stream[i]["usage"].is_null());
  }
}

TEST(chat_response, nothing_precedes_the_first_token) {
  const auto builder = chat_response(chat(R"("stream": true)"), response_context(true));
  EXPECT_TRUE(builder->feed(StartedEvent{}).empty());
  EXPECT_TRUE(builder->feed(TokenEvent{}).empty());
}

TEST(chat_response, reasoning_goes_to_both_fields) {
  const ChatRun r = run_chat("", answer("why\n</think>\n\nok"), true);
  EXPECT_EQ(r.body["choices"][0]["message"].dump(), R"({"role":"assistant","content":"ok","reasoning_content":"why","reasoning":"why"})");
  EXPECT_EQ(r.body["usage"]["completion_tokens_details"]["reasoning_tokens"], 12);
  EXPECT_EQ(r.stream[0]["choices"][0]["delta"].dump(), R"({"role":"assistant","reasoning_content":"w","reasoning":"w"})");

  ResponseContext one = response_context(true);
  one.reasoning_fields = ReasoningFields::kReasoning;
  const auto builder = chat_response(chat(""), one);
  run(*builder, answer("why"));
  EXPECT_EQ(Json::parse(builder->body())["choices"][0]["message"].dump(), R"({"role":"assistant","content":"","reasoning":"why"})");
}

TEST(chat_response, reasoning_can_be_left_out_or_inline) {
  EXPECT_EQ(run_chat(R"("include_reasoning": false)", answer("why</think>ok"), true).body["choices"][0]["message"].dump(),
            R"({"role":"assistant","content":"ok"})");
  EXPECT_EQ(run_chat(R"("separate_reasoning": false)", answer("why</think>ok"), true).body["choices"][0]["message"].dump(),
            R"({"role":"assistant","content":"<think>\nwhy\n</think>\n\nok"})");
  EXPECT_EQ(run_chat(R"("separate_reasoning": false)", answer("why"), true).body["choices"][0]["message"]["content"], "<think>\nwhy");
  const ChatRun hidden =
      run_chat(R"("include_reasoning": false, "logprobs": true)", answer("why</think>ok", FinishReason::kStop, 0, true), true);
  EXPECT_EQ(hidden.body["choices"][0]["logprobs"]["content"].size(), 2u);
}

TEST(chat_response, tool_calls) {
  const ChatRun r = run_chat(kTools, answer("look\n" + kCall + "\n" + kCall));
  EXPECT_EQ(
      r.body["choices"][0].dump(),
      R"x({"index":0,"message":{"role":"assistant","content":"look","tool_calls":[{"id":"call_0","type":"function","function":{"name":"f","arguments":"{\"s\": \"a \\\"b\\\"\", \"i\": 5}"}},)x"
      R"x({"id":"call_1","type":"function","function":{"name":"f","arguments":"{\"s\": \"a \\\"b\\\"\", \"i\": 5}"}}]},"finish_reason":"tool_calls","stop_reason":null})x");
  EXPECT_TRUE(run_chat(kTools, answer(kCall)).body["choices"][0]["message"]["content"].is_null());
  EXPECT_EQ(run_chat("", answer("hi")).body["choices"][0]["message"].count("tool_calls"), 0u);
}

TEST(chat_response, a_call_cut_off_is_never_finished) {
  const std::string cut = kCall.substr(0, kCall.size() - 40);
  for (const FinishReason reason : {FinishReason::kLength, FinishReason::kContext, FinishReason::kStop})
    EXPECT_EQ(run_chat(kTools, answer(cut, reason)).body["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(run_chat(kTools, answer(kCall + "\n" + cut, FinishReason::kLength)).body["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(run_chat("", answer("hi", FinishReason::kLength)).body["choices"][0]["finish_reason"], "length");
}

TEST(chat_response, one_call_at_most) {
  const std::string fields = std::string(kTools) + R"(, "parallel_tool_calls": false)";
  const auto builder = chat_response(chat(fields), response_context(false));
  std::vector<EngineEvent> events = answer(kCall + "\n" + kCall, FinishReason::kCancelled);
  for (std::size_t i = 0; i + 1 < events.size(); ++i) {
    EXPECT_EQ(builder->enough(), i >= kCall.size() - 13) << i;  // "</tool_call>" is of no use any more
    builder->feed(events[i]);
  }
  builder->feed(events.back());
  builder->feed(finished(1));
  const Json choice = Json::parse(builder->body())["choices"][0];
  EXPECT_EQ(choice["message"]["tool_calls"].size(), 1u);
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  EXPECT_EQ(run_chat(fields, answer(kCall + kCall, FinishReason::kLength)).body["choices"][0]["finish_reason"], "tool_calls");
}

TEST(chat_response, forced_calls) {
  const std::string fields = std::string(kTools) + R"(, "tool_choice": {"type": "function", "function": {"name": "f"}})";
  const ChatRun r = run_chat(fields, answer("<tool_call>\n<function=f>\n<parameter=i>\n1\n</parameter>\n</function>\n</tool_call>"));
  EXPECT_EQ(r.body["choices"][0]["message"]["tool_calls"][0]["function"].dump(), R"x({"name":"f","arguments":"{\"i\": 1}"})x");
  const ChatRun required =
      run_chat(std::string(kTools) + R"(, "tool_choice": "required")", answer("<tool_call>\n<function=f>\n</function>\n</tool_call>"));
  EXPECT_EQ(required.body["choices"][0]["finish_reason"], "tool_calls");
  const ChatRun stray =
      run_chat(std::string(kTools) + R"(, "tool_choice": "required")", answer("<tool_call>\n<function=gone>\n</function>\n</tool_call>"));
  EXPECT_EQ(stray.body["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(stray.body["choices"][0]["message"]["content"], "<tool_call>\n<function=gone>\n</function>\n</tool_call>");
}

TEST(chat_response, choices_have_their_own_ends) {
  std::vector<EngineEvent> events;
  const std::vector<EngineEvent> one = answer("abc", FinishReason::kLength, 1), zero = answer("x", FinishReason::kStop, 0);
  events.insert(events.end(), {one[0], zero[0], zero[1], zero[2]});
  events.insert(events.end(), one.begin() + 1, one.end());
  const ChatRun r = run_chat(R"("n": 2)", events);
  EXPECT_EQ(r.body["choices"][0]["message"]["content"], "x");
  EXPECT_EQ(r.body["choices"][1]["message"]["content"], "abc");
  EXPECT_EQ(r.body["choices"][1]["finish_reason"], "length");
}

TEST(chat_response, stop_reasons) {
  // The engine leaves the stop string out of the text.
  std::vector<EngineEvent> events = answer("say sto", FinishReason::kStop);
  events.erase(events.end() - 2, events.end());
  for (const char byte : std::string("P!"))
    events.emplace_back(TokenEvent{.choice = 0, .sampled = {.id = byte, .logprob = {}, .top = {}}, .text = {}});
  events.emplace_back(ChoiceFinishedEvent{});
  const ChatRun r = run_chat(R"("stop": ["x", "stoP!"])", events);
  EXPECT_EQ(r.body["choices"][0]["stop_reason"], "stoP!");
  EXPECT_EQ(r.body["choices"][0]["finish_reason"], "stop");
  std::vector<EngineEvent> by_id = answer("a");
  std::get<TokenEvent>(by_id[1]).sampled.id = kAskedStop;
  EXPECT_EQ(run_chat(fmt::format(R"("stop_token_ids": [{}])", kAskedStop), by_id).body["choices"][0]["stop_reason"], kAskedStop);
  EXPECT_TRUE(run_chat(R"("stop": "q")", answer("a")).body["choices"][0]["stop_reason"].is_null());
}

TEST(chat_response, logprobs) {
  const ChatRun r = run_chat(R"("logprobs": true, "top_logprobs": 2)", answer("a\xFF", FinishReason::kStop, 0, true));
  EXPECT_EQ(
      r.body["choices"][0]["logprobs"].dump(-1, ' ', true),
      R"({"content":[{"token":"a","logprob":-0.5,"bytes":[97],"top_logprobs":[{"token":"z","logprob":-0.25,"bytes":[122]},{"token":"y","logprob":-9999.0,"bytes":[121]}]},)"
      R"({"token":"\ufffd","logprob":-0.5,"bytes":[255],"top_logprobs":[{"token":"z","logprob":-0.25,"bytes":[122]},{"token":"y","logprob":-9999.0,"bytes":[121]}]}]})");
}

TEST(chat_response, usage_in_every_chunk) {
  const auto builder = chat_response(chat(R"("stream": true, "stream_options": {"include_usage": true, "continuous_usage_stats": true})"),
                                     response_context(false));
  const std::vector<Json> stream = chunks(run(*builder, answer("abc")));
  EXPECT_EQ(stream[0]["usage"]["completion_tokens"], 1);
  EXPECT_EQ(stream[1]["usage"]["total_tokens"], 12);
  const auto silent = chat_response(chat(R"("stream": true)"), response_context(false));
  for (const Json& chunk : chunks(run(*silent, answer("abc")))) {
    EXPECT_FALSE(chunk.contains("usage"));
    EXPECT_FALSE(chunk["choices"].empty());
  }
}

TEST(chat_response, failures) {
  FailedEvent failed;
  failed.kind = EngineErrorKind::kQueueTimeout;
  failed.message = "waited too long";
  const auto early = chat_response(chat(R"("stream": true)"), response_context(false));
  EXPECT_TRUE(early->feed(failed).empty());
  ASSERT_NE(early->failure(), nullptr);
  EXPECT_EQ(early->failure()->status, 503);
  EXPECT_TRUE(early->finished());

  const auto late = chat_response(chat(R"("stream": true)"), response_context(false));
  late->feed(TokenEvent{.choice = 0, .sampled = {.id = 'a', .logprob = {}, .top = {}}, .text = "a"});
  const std::vector<ServerSentEvent> sent = late->feed(failed);
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(Json::parse(sent[0].data)["error"]["code"], "queue_timeout");
  EXPECT_TRUE(late->feed(finished(1)).empty());
}

TEST(chat_response, timings_come_with_the_last_chunk) {
  FinishedEvent end = finished(3);
  end.timings = {.queue = 1, .prefill = 0.5, .first_token = 1.5, .decode = 0.25, .total = 2};
  for (const char* usage : {"", R"(, "stream_options": {"include_usage": true})"}) {
    const auto builder = chat_response(chat(std::string(R"("stream": true, "n": 2)") + usage), response_context(false));
    std::vector<ServerSentEvent> sent;
    const auto add = [&](const EngineEvent& event) {
      for (ServerSentEvent& out : builder->feed(event)) sent.push_back(std::move(out));
    };
    for (const int choice : {1, 0})
      for (const EngineEvent& event : answer("a", FinishReason::kLength, choice)) add(event);
    add(end);
    const std::vector<Json> stream = chunks(sent);
    for (std::size_t i = 0; i + 1 < stream.size(); ++i) EXPECT_FALSE(stream[i].contains("timings"));
    EXPECT_EQ(stream.back()["timings"].dump(),
              R"({"cache_n":4,"prompt_n":6,"prompt_ms":500.0,"prompt_per_token_ms":83.33333333333333,"prompt_per_second":12.0,)"
              R"("predicted_n":3,"predicted_ms":250.0,"predicted_per_token_ms":125.0,"predicted_per_second":8.0})");
    EXPECT_EQ(assembled(stream)["0"]["finish_reason"], "length");
    EXPECT_EQ(assembled(stream)["1"]["finish_reason"], "length");
  }
}

TEST(completion_response, several_prompts_and_choices) {
  for (const bool stream : {false, true}) {
    const auto builder = completion_response(
        parse_completion_request(fmt::format(R"({{"prompt": ["a", "b"], "n": 2, "echo": true, "stream": {}}})", stream), request_context()),
        response_context(false));
    std::vector<std::string> texts(4);
    std::vector<ServerSentEvent> sent;
    const auto feed = [&](const EngineEvent& event, int prompt) {
      for (ServerSentEvent& out : builder->feed(event, prompt)) sent.push_back(std::move(out));
    };
    for (const int prompt : {1, 0}) {
      for (const int choice : {0, 1})
        for (const EngineEvent& event : answer(fmt::format("t{}{}", prompt, choice), FinishReason::kLength, choice)) feed(event, prompt);
      EXPECT_FALSE(builder->finished());
      feed(finished(6), prompt);
    }
    EXPECT_TRUE(builder->finished());
    Json usage;
    if (stream) {
      EXPECT_EQ(sent.back().data, "[DONE]");
      for (const Json& chunk : chunks(sent))
        texts[chunk["choices"][0]["index"].get<std::size_t>()] += chunk["choices"][0]["text"].get<std::string>();
    } else {
      EXPECT_TRUE(sent.empty());
      const Json body = Json::parse(builder->body());
      for (std::size_t i = 0; i < 4; ++i) {
        EXPECT_EQ(body["choices"][i]["index"], i);
        EXPECT_EQ(body["choices"][i]["finish_reason"], "length");
        texts[i] = body["choices"][i]["text"];
      }
      EXPECT_EQ(body["usage"]["total_tokens"], 32);
      EXPECT_EQ(body["object"], "text_completion");
    }
    EXPECT_EQ(texts, (std::vector<std::string>{"P0\xC3\xA9t00", "P0\xC3\xA9t01", "P1\xC3\xA9t10", "P1\xC3\xA9t11"}));
  }
}

TEST(completion_response, logprobs) {
  const auto builder =
      completion_response(parse_completion_request(R"({"prompt": "a", "logprobs": 2})", request_context()), response_context(false));
  run(*builder, answer("a\xC3\xA9z", FinishReason::kLength, 0, true));
  EXPECT_EQ(
      Json::parse(builder->body())["choices"][0]["logprobs"].dump(),
      R"({"tokens":["a","bytes:\\xc3","bytes:\\xa9","z"],"token_logprobs":[-0.5,-0.5,-0.5,-0.5],)"
      R"("top_logprobs":[{"z":-0.25,"y":-9999.0,"a":-0.5},{"z":-0.25,"y":-9999.0,"bytes:\\xc3":-0.5},{"z":-0.25,"y":-9999.0,"bytes:\\xa9":-0.5},{"z":-0.25,"y":-9999.0}],)"
      R"("text_offset":[0,1,2,2]})");
}

PromptScoredEvent scores(int first, const std::string& text, bool last) {
  PromptScoredEvent event{first, {}, last};
  for (const char byte : text) event.tokens.push_back({byte, TokenLogprob{byte, -0.1f}, {{'z', -0.05f}, {byte, -0.1f}, {'y', -3.0f}}});
  return event;
}

// The prompt "abc" in two pieces, then the answer "d".
std::vector<EngineEvent> scored_answer() {
  std::vector<EngineEvent> events = {scores(1, "b", false), scores(2, "c", true)};
  for (EngineEvent& event : answer("d", FinishReason::kLength, 0, true)) events.push_back(std::move(event));
  return events;
}

TEST(completion_response, echoed_log_probabilities_are_one_list_with_the_answers) {
  const std::string fields = R"({"prompt": [97, 98, 99], "echo": true, "logprobs": 1, "max_tokens": 1)";
  ResponseContext context = response_context(false);
  context.prompt_text = [](int) { return std::string("abc"); };
  context.prompt_ids = [](int) { return std::vector<int>{'a', 'b', 'c'}; };
  const auto whole = completion_response(parse_completion_request(fields + R"(, "prompt_logprobs": 2})", request_context()), context);
  run(*whole, scored_answer());
  const Json choice = Json::parse(whole->body())["choices"][0];
  EXPECT_EQ(choice["text"], "abcd");
  EXPECT_EQ(choice["logprobs"].dump(),
            R"({"tokens":["a","b","c","d"],"token_logprobs":[null,-0.10000000149011612,-0.10000000149011612,-0.5],)"
            R"("top_logprobs":[null,{"z":-0.05000000074505806,"b":-0.10000000149011612},)"
            R"({"z":-0.05000000074505806,"c":-0.10000000149011612},{"z":-0.25,"d":-0.5}],"text_offset":[0,1,2,3]})");
  EXPECT_EQ(choice["prompt_logprobs"].dump(), R"([null,{"98":{"logprob":-0.10000000149011612,"rank":2,"decoded_token":"b"},)"
                                              R"("122":{"logprob":-0.05000000074505806,"rank":1,"decoded_token":"z"}},)"
                                              R"({"99":{"logprob":-0.10000000149011612,"rank":2,"decoded_token":"c"},)"
                                              R"("122":{"logprob":-0.05000000074505806,"rank":1,"decoded_token":"z"}}])");

  const auto streamed = completion_response(parse_completion_request(fields + R"(, "stream": true})", request_context()), context);
  Json together;
  std::string text;
  for (const Json& chunk : chunks(run(*streamed, scored_answer()))) {
    const Json& entry = chunk["choices"][0];
    text += entry["text"].get<std::string>();
    for (const auto& [key, list] : entry["logprobs"].items())
      for (const Json& value : list) together[key].push_back(value);
  }
  EXPECT_EQ(text, "abcd");
  EXPECT_EQ(together, choice["logprobs"]);
}

TEST(completion_response, a_prompt_alone) {
  ResponseContext context = response_context(false);
  context.prompt_ids = [](int) { return std::vector<int>{'a'}; };
  const auto builder =
      completion_response(parse_completion_request(
                              R"({"prompt": [97], "logprobs": 0, "echo": true, "prompt_logprobs": 1, "max_tokens": 0})", request_context()),
                          context);
  run(*builder, {ChoiceFinishedEvent{.choice = 0, .reason = FinishReason::kLength, .text = {}, .num_tokens = 0}}, 0);
  const Json choice = Json::parse(builder->body())["choices"][0];
  EXPECT_EQ(choice.dump(-1, ' ', true),
            R"({"index":0,"text":"P0\u00e9","logprobs":{"tokens":["a"],"token_logprobs":[null],"top_logprobs":[null],"text_offset":[0]},)"
            R"("finish_reason":"length","stop_reason":null,"prompt_logprobs":[null]})");
}

TEST(chat_response, the_prompts_log_probabilities_stand_beside_the_choices) {
  const auto builder = chat_response(chat(R"("prompt_logprobs": 0, "max_tokens": 1)"), response_context(false));
  run(*builder, scored_answer());
  const Json body = Json::parse(builder->body());
  EXPECT_EQ(body["choices"][0]["message"]["content"], "d");
  EXPECT_EQ(body["prompt_logprobs"].dump(), R"([null,{"98":{"logprob":-0.10000000149011612,"rank":2,"decoded_token":"b"}},)"
                                            R"({"99":{"logprob":-0.10000000149011612,"rank":2,"decoded_token":"c"}}])");
}

std::string names(const std::vector<ServerSentEvent>& sent) {
  std::string list, last;
  for (const ServerSentEvent& event : sent) {
    EXPECT_EQ(Json::parse(event.data)["type"], event.name);
    std::string name = event.name;
    if (name == "content_block_delta") name = Json::parse(event.data)["delta"]["type"].get<std::string>();
    if (name != last) list += (list.empty() ? "" : " ") + name;
    last = name;
  }
  return list;
}

TEST(anthropic_response, the_order_of_events) {
  const std::string tools =
      R"("tools": [{"name": "f", "input_schema": {"properties": {"s": {"type": "string"}, "i": {"type": "integer"}}}}])";
  const std::string text = "why\n</think>\n\nlook\n" + kCall;
  const auto builder = anthropic_response(messages(tools + R"(, "stream": true)"), response_context(true));
  const std::vector<ServerSentEvent> sent = run(*builder, answer(text));
  EXPECT_EQ(names(sent),
            "message_start content_block_start thinking_delta signature_delta content_block_stop content_block_start text_delta "
            "content_block_stop "
            "content_block_start input_json_delta content_block_stop message_delta message_stop");
  EXPECT_EQ(
      Json::parse(sent[0].data).dump(),
      R"({"type":"message_start","message":{"id":"resp-1","type":"message","role":"assistant","model":"tiny","content":[],"stop_reason":null,"stop_sequence":null,)"
      R"("usage":{"input_tokens":6,"cache_creation_input_tokens":0,"cache_read_input_tokens":4,"output_tokens":0}}})");
  EXPECT_EQ(
      sent[sent.size() - 2].data,
      R"({"type":"message_delta","delta":{"stop_reason":"tool_use","stop_sequence":null},"usage":{"input_tokens":6,"cache_creation_input_tokens":0,"cache_read_input_tokens":4,"output_tokens":7}})");
  EXPECT_EQ(sse_text(sent.back()), "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n");
  std::string input;
  for (const ServerSentEvent& event : sent) {
    const Json json = Json::parse(event.data);
    if (json.contains("delta")) input += json["delta"].value("partial_json", "");
  }

  const auto whole = anthropic_response(messages(tools), response_context(true));
  EXPECT_TRUE(run(*whole, answer(text)).empty());
  EXPECT_EQ(
      Json::parse(whole->body()).dump(),
      R"({"id":"resp-1","type":"message","role":"assistant","model":"tiny","content":[{"type":"thinking","thinking":"why","signature":"tetrad"},{"type":"text","text":"look"},)"
      R"({"type":"tool_use","id":"call_0","name":"f","input":{"s":"a \"b\"","i":5}}],"stop_reason":"tool_use","stop_sequence":null,)"
      R"("usage":{"input_tokens":6,"cache_creation_input_tokens":0,"cache_read_input_tokens":4,"output_tokens":7}})");
  EXPECT_EQ(Json::parse(input).dump(), R"({"s":"a \"b\"","i":5})");

  const auto cut = anthropic_response(messages(tools), response_context(false));
  run(*cut, answer(kCall.substr(0, 50), FinishReason::kLength));
  EXPECT_EQ(Json::parse(cut->body())["content"].dump(), "[]");
  EXPECT_EQ(Json::parse(cut->body())["stop_reason"], "max_tokens");
}

TEST(anthropic_response, reasons_and_errors) {
  const auto reason = [](const std::string& fields, const std::vector<EngineEvent>& events) {
    const auto builder = anthropic_response(messages(fields), response_context(false));
    run(*builder, events);
    const Json body = Json::parse(builder->body());
    return body["stop_reason"].get<std::string>() + " " + body["stop_sequence"].dump();
  };
  EXPECT_EQ(reason("", answer("a")), "end_turn null");
  EXPECT_EQ(reason("", answer("a", FinishReason::kLength)), "max_tokens null");
  EXPECT_EQ(reason("", answer("a", FinishReason::kContext)), "model_context_window_exceeded null");
  EXPECT_EQ(reason(R"("stop_sequences": ["b"])", answer("ab")), "stop_sequence \"b\"");

  FailedEvent failed;
  failed.kind = EngineErrorKind::kInternal;
  const auto builder = anthropic_response(messages(R"("stream": true)"), response_context(false));
  builder->feed(StartedEvent{});
  const std::vector<ServerSentEvent> sent = builder->feed(failed);
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].name, "error");
  EXPECT_EQ(Json::parse(sent[0].data)["error"]["type"], "api_error");
  EXPECT_EQ(anthropic_count_body(5), R"({"input_tokens":5})");
}

}  // namespace
}  // namespace tetrad::response_json_test
