// Routes that generate, over an engine that follows a script.
#include "server/generation_routes.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <nlohmann/json.hpp>
#include <thread>

#include "server/generation_reply.h"
#include "support/server_rig.h"

namespace tetrad::generation_routes_test {
namespace {

using testing::answering;
using testing::ServerRig;
using testing::ServerRigOptions;
using Json = nlohmann::ordered_json;

constexpr std::string_view kChat = R"({"messages":[{"role":"user","content":"Hi"}],"enable_thinking":false,"temperature":0)";

Json error_of(const HttpResponse& response) { return Json::parse(response.body).at("error"); }

std::vector<Json> events_of(std::string_view body, bool with_done = true) {
  std::vector<Json> events;
  bool done = false;
  while (!body.empty()) {
    const std::size_t end = body.find("\n\n");
    if (end == std::string_view::npos) {
      ADD_FAILURE() << "an event without an end: " << body;
      return events;
    }
    const std::string_view event = body.substr(0, end);
    body.remove_prefix(end + 2);
    EXPECT_FALSE(done) << "something after [DONE]: " << event;
    EXPECT_TRUE(event.starts_with("data: ")) << event;
    EXPECT_EQ(event.find('\n'), std::string_view::npos);
    done = event == "data: [DONE]";
    if (!done) events.push_back(Json::parse(event.substr(6)));
  }
  EXPECT_EQ(done, with_done);
  return events;
}

// Until the engine has seen this many requests, all of them to their end.
void wait_until_ended(const ServerRig& rig, std::uint64_t requests) {
  for (int i = 0; i < 4000; ++i) {
    const EngineStats stats = rig.engine->stats();
    if (stats.submitted == requests && stats.requests_running + stats.requests_waiting == 0) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  ADD_FAILURE() << "the requests did not end";
}

TEST(generation_routes, a_chat_is_answered_whole_and_in_a_stream) {
  ServerRig rig(answering("Hello there, caf\xC3\xA9."));
  const HttpResponse whole = rig.call("POST", "/v1/chat/completions", fmt::format("{}}}", kChat));
  ASSERT_EQ(whole.status, 200) << whole.body;
  const Json answer = Json::parse(whole.body);
  EXPECT_EQ(answer.at("model"), "test-model");
  EXPECT_TRUE(answer.at("id").get<std::string>().starts_with("chatcmpl-"));
  EXPECT_EQ(answer["choices"][0]["message"].at("content"), "Hello there, caf\xC3\xA9.");
  EXPECT_EQ(answer["choices"][0].at("finish_reason"), "stop");

  const HttpResponse streamed =
      rig.call("POST", "/v1/chat/completions", fmt::format(R"({},"model":"alias/with-slash","stream":true}})", kChat));
  EXPECT_EQ(streamed.status, 200);
  EXPECT_EQ(streamed.content_type, "text/event-stream; charset=utf-8");
  std::string content;
  const std::vector<Json> events = events_of(streamed.body);
  ASSERT_FALSE(events.empty());
  EXPECT_EQ(events.front()["choices"][0]["delta"].at("role"), "assistant");
  for (const Json& event : events) {
    EXPECT_EQ(event.at("model"), "alias/with-slash");
    content += event["choices"][0]["delta"].value("content", "");
  }
  EXPECT_EQ(content, "Hello there, caf\xC3\xA9.");
  EXPECT_NE(rig.call("GET", "/metrics").body.find("vllm:request_params_n_count{model_name=\"test-model\",engine=\"0\"} 2\n"),
            std::string::npos);
}

TEST(generation_routes, more_prompts_than_the_queue_holds_are_all_answered) {
  ServerRigOptions options;
  options.engine.max_waiting = 2;
  ServerRig rig(answering("ok"), options);
  Json prompts = Json::array();
  for (int i = 0; i < 40; ++i) prompts.push_back(fmt::format("prompt {}", i));
  const HttpResponse response = rig.call("POST", "/v1/completions", Json{{"prompt", prompts}, {"n", 2}, {"temperature", 0}}.dump());
  ASSERT_EQ(response.status, 200) << response.body;
  const Json answer = Json::parse(response.body);
  ASSERT_EQ(answer.at("choices").size(), 80u);
  for (std::size_t i = 0; i < 80; ++i) {
    EXPECT_EQ(answer["choices"][i].at("index"), i);
    EXPECT_EQ(answer["choices"][i].at("text"), "ok");
  }
  wait_until_ended(rig, 40);
}

TEST(generation_routes, prompts_are_scored_as_evaluations_read_it) {
  ServerRig rig(testing::hashed_script(63));
  const Json ask = {
      {"prompt", {{5, 6, 7, 8}, {9, 10}}}, {"max_tokens", 1}, {"temperature", 0}, {"logprobs", 1}, {"echo", true}, {"seed", 1234}};
  const HttpResponse response = rig.call("POST", "/v1/completions", ask.dump());
  ASSERT_EQ(response.status, 200) << response.body;
  const Json choices = Json::parse(response.body).at("choices");
  ASSERT_EQ(choices.size(), 2u);
  for (std::size_t i = 0; i < 2; ++i) {
    const Json& logprobs = choices[i].at("logprobs");
    const std::size_t tokens = i == 0 ? 5 : 3;  // of the prompt and one more
    for (const char* list : {"tokens", "token_logprobs", "top_logprobs", "text_offset"}) EXPECT_EQ(logprobs[list].size(), tokens) << list;
    EXPECT_TRUE(logprobs["token_logprobs"][0].is_null() && logprobs["top_logprobs"][0].is_null());
    for (std::size_t t = 1; t < tokens; ++t) {
      double best = -1e9;
      for (const auto& [token, logprob] : logprobs["top_logprobs"][t].items()) best = std::max(best, logprob.get<double>());
      const double chosen = logprobs["token_logprobs"][t].get<double>();
      EXPECT_LE(chosen, best);
      EXPECT_TRUE(t + 1 < tokens || chosen == best);  // the answer is greedy
    }
  }
  // To the bit what the engine says.
  EngineRequest direct;
  direct.generation.prompt_ids = {5, 6, 7, 8};
  direct.generation.prompt_only = true;
  direct.generation.prompt_logprobs = 1;
  auto events = std::make_shared<EventBuffer>(100);
  rig.engine->submit(direct, events);
  const testing::RecordingSink engine = testing::recorded(*events);
  ASSERT_EQ(engine.prompt_scores.size(), 3u);
  for (std::size_t t = 0; t < 3; ++t)
    EXPECT_EQ(choices[0]["logprobs"]["token_logprobs"][t + 1].get<double>(), static_cast<double>(engine.prompt_scores[t].logprob->logprob));

  Json alone = ask;
  alone["max_tokens"] = 0;
  const Json scored = Json::parse(rig.call("POST", "/v1/completions", alone.dump()).body);
  EXPECT_EQ(scored["usage"]["completion_tokens"], 0);
  for (std::size_t i = 0; i < 2; ++i) {
    Json expected = choices[i]["logprobs"]["token_logprobs"];
    expected.erase(expected.size() - 1);
    EXPECT_EQ(scored["choices"][i]["logprobs"]["token_logprobs"], expected);
    EXPECT_EQ(scored["choices"][i]["finish_reason"], "length");
  }
  const Json chat =
      Json::parse(rig.call("POST", "/v1/chat/completions", fmt::format(R"({},"prompt_logprobs":1,"max_tokens":0}})", kChat)).body);
  EXPECT_EQ(chat["prompt_logprobs"].size(), chat["usage"]["prompt_tokens"].get<std::size_t>());
}

TEST(generation_routes, scores_of_prompts_are_bounded) {
  ServerRig rig(testing::canned_script({}, 7));
  const Json ask = {{"prompt", Json::array()}, {"max_tokens", 0}, {"prompt_logprobs", 20}};
  Json many = ask;
  for (int i = 0; i < 60; ++i) many["prompt"].push_back(std::vector<int>(2000, 5));
  const HttpResponse refused = rig.call("POST", "/v1/completions", many.dump());
  EXPECT_EQ(refused.status, 400);
  EXPECT_EQ(error_of(refused).at("param"), "prompt_logprobs");
}

TEST(generation_routes, refusals_keep_their_status_when_a_stream_was_asked_for) {
  ServerRigOptions options;
  options.sizes.max_positions = 64;
  ServerRig rig(answering("ok"), options);
  const auto refused = [&](const std::string& body) { return rig.call("POST", "/v1/completions", body); };
  const HttpResponse long_prompt = refused(Json{{"prompt", std::vector<int>(64, 5)}, {"stream", true}}.dump());
  EXPECT_EQ(long_prompt.status, 400);
  EXPECT_EQ(error_of(long_prompt).at("code"), "context_length_exceeded");
  EXPECT_TRUE(error_of(long_prompt).at("message").get<std::string>().starts_with("This model's maximum context length is 64 tokens"));
  // The field that is at fault: of this route, not of another. Text that could never fit is refused before it is encoded.
  for (const std::size_t words : {std::size_t{100}, std::size_t{1} << 20}) {
    std::string text;
    for (std::size_t i = 0; i < words; ++i) text += "word ";
    const std::pair<const char*, Json> bodies[] = {
        {"prompt", {{"prompt", text}}},
        {"prompt[1]", {{"prompt", Json::array({"a", text})}}},
        {"messages", {{"messages", Json::array({Json{{"role", "user"}, {"content", text}}})}}},
        {"input", {{"input", text}}},
    };
    const char* const paths[] = {"/v1/completions", "/v1/completions", "/v1/chat/completions", "/v1/responses"};
    for (std::size_t i = 0; i < std::size(bodies); ++i) {
      const HttpResponse response = rig.call("POST", paths[i], bodies[i].second.dump());
      EXPECT_EQ(response.status, 400) << paths[i];
      EXPECT_EQ(error_of(response).at("code"), "context_length_exceeded") << paths[i];
      EXPECT_EQ(error_of(response).at("param"), bodies[i].first) << paths[i];
    }
  }
  EXPECT_EQ(refused(Json{{"prompt", std::vector<int>(60, 5)}, {"max_tokens", 4}, {"temperature", 0}}.dump()).status, 200);
  EXPECT_EQ(refused(Json{{"prompt", std::vector<int>(60, 5)}, {"max_tokens", 5}, {"temperature", 0}}.dump()).status, 400);
  const HttpResponse model = refused(R"({"prompt":"a","model":"other","stream":true})");
  EXPECT_EQ(model.status, 404);
  EXPECT_EQ(error_of(model).at("param"), "model");
  EXPECT_EQ(error_of(refused(R"({"prompt":"a","temperature":-1,"stream":true})")).at("param"), "temperature");
  EXPECT_EQ(error_of(refused(R"({"prompt":""})")).at("param"), "prompt");
  EXPECT_EQ(error_of(refused(R"({"prompt":["a",""]})")).at("param"), "prompt[1]");
}

TEST(generation_routes, a_full_queue_is_503_and_529) {
  ServerRigOptions options;
  options.engine.max_waiting = 1;
  options.sizes.num_slots = 1;
  ServerRig rig(testing::canned_script({}, 7), options);
  // The second step lasts until it is let go: whatever the speed of the machine, one request runs and the next one waits.
  std::promise<void> begun, let_go;
  rig.backend.before_step = [&begun, step = 0, held = let_go.get_future().share()](const StepBatch&) mutable {
    if (++step < 2) return;
    if (step == 2) begun.set_value();
    held.wait();
  };
  std::vector<Reply> running;
  const std::string endless = R"({"prompt":"a","max_tokens":4000,"ignore_eos":true,"temperature":0})";
  running.push_back(rig.start("POST", "/v1/completions", endless));
  begun.get_future().wait();
  running.push_back(rig.start("POST", "/v1/completions", endless));
  for (const Reply& reply : running) ASSERT_FALSE(std::holds_alternative<HttpResponse>(reply));
  const HttpResponse refused = rig.call("POST", "/v1/completions", endless);
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(error_of(refused).at("code"), "queue_full");
  const HttpResponse anthropic =
      rig.call("POST", "/v1/messages", R"({"messages":[{"role":"user","content":"Hi"}],"max_tokens":5,"model":"test-model"})");
  EXPECT_EQ(anthropic.status, 529) << anthropic.body;
  EXPECT_EQ(error_of(anthropic).at("type"), "overloaded_error");
  running.clear();  // whoever drops a reply cancels it
  let_go.set_value();
  wait_until_ended(rig, 2);
}

// While the step lasts that a request was started in; the next one comes during it and waits.
TEST(generation_routes, a_request_runs_from_the_beginning_of_its_first_step) {
  ServerRigOptions options;
  options.engine.max_waiting = 1;
  ServerRig rig(testing::canned_script({}, 7), options);
  std::promise<void> begun, let_go;
  rig.backend.before_step = [&begun, step = 0, held = let_go.get_future().share()](const StepBatch&) mutable {
    if (++step == 1) begun.set_value();
    held.wait();
  };
  const std::string endless = R"({"prompt":"a","max_tokens":4000,"ignore_eos":true,"temperature":0})";
  const auto counts = [&] {
    const Json load = Json::parse(rig.call("GET", "/v1/loads").body)["loads"][0];
    return std::pair(load["num_running_reqs"].get<int>(), load["num_waiting_reqs"].get<int>());
  };
  std::vector<Reply> running;
  running.push_back(rig.start("POST", "/v1/completions", endless));
  begun.get_future().wait();
  EXPECT_EQ(counts(), std::pair(1, 0));
  running.push_back(rig.start("POST", "/v1/completions", endless));
  EXPECT_EQ(counts(), std::pair(1, 1));
  EXPECT_NE(rig.call("GET", "/metrics").body.find("vllm:num_requests_running{model_name=\"test-model\",engine=\"0\"} 1\n"),
            std::string::npos);
  EXPECT_EQ(rig.call("POST", "/v1/completions", endless).status, 503);
  running.clear();
  let_go.set_value();
  wait_until_ended(rig, 2);
}

TEST(generation_routes, an_abandoned_reply_frees_its_place) {
  ServerRig rig(testing::canned_script({}, 7));
  std::uint64_t requests = 0;
  for (const bool stream : {false, true}) {
    Reply reply = rig.start("POST", "/v1/completions",
                            Json{{"prompt", "a"}, {"max_tokens", 4000}, {"ignore_eos", true}, {"stream", stream}, {"n", 3}}.dump());
    auto* pending = std::get_if<std::unique_ptr<PendingReply>>(&reply);
    ASSERT_NE(pending, nullptr);
    (*pending)->abandon();
    wait_until_ended(rig, ++requests);
  }
}

TEST(generation_routes, a_client_that_does_not_read_loses_its_request) {
  ServerRig rig(testing::canned_script({}, 7));
  Reply reply = rig.start("POST", "/v1/completions", R"({"prompt":"a","max_tokens":4000,"ignore_eos":true,"stream":true})");
  wait_until_ended(rig, 1);  // nothing is read: the engine gives the request up
  const HttpResponse response = ServerRig::finish(std::move(reply));
  const std::vector<Json> events = events_of(response.body, false);
  ASSERT_FALSE(events.empty());
  EXPECT_EQ(events.back().at("error").at("code"), "slow_consumer");
  EXPECT_EQ(rig.engine->stats().failed[static_cast<std::size_t>(EngineErrorKind::kSlowConsumer)], 1u);
}

TEST(generation_routes, a_fault_before_the_first_token_is_told_in_either_form) {
  ServerRig rig(answering("ok"));
  rig.backend.fault_token = 9;
  const HttpResponse whole = rig.call("POST", "/v1/completions", R"({"prompt":[5,9],"temperature":0})");
  EXPECT_EQ(whole.status, 500);
  EXPECT_NE(error_of(whole).at("message").get<std::string>().find("req-test"), std::string::npos) << whole.body;
  const HttpResponse streamed = rig.call("POST", "/v1/completions", R"({"prompt":[5,9],"temperature":0,"stream":true})");
  EXPECT_EQ(streamed.status, 200);  // the head is sent before the first step
  const std::vector<Json> events = events_of(streamed.body, false);
  ASSERT_EQ(events.size(), 1u) << streamed.body;
  EXPECT_EQ(events[0].at("error").at("type"), "server_error");
  EXPECT_EQ(rig.logged.size(), 2u);
  EXPECT_EQ(rig.call("POST", "/v1/completions", R"({"prompt":[5,8],"temperature":0})").status, 200);
}

TEST(generation_routes, messages_speak_anthropic) {
  ServerRig rig(answering("Hello."));
  const std::string body =
      R"({"model":"test-model","max_tokens":50,"temperature":0,"messages":[{"role":"user","content":"Hi"}],"thinking":{"type":"disabled"})";
  const HttpResponse whole = rig.call("POST", "/v1/messages", body + "}");
  ASSERT_EQ(whole.status, 200) << whole.body;
  const Json answer = Json::parse(whole.body);
  EXPECT_EQ(answer.at("type"), "message");
  EXPECT_EQ(answer["content"][0].at("text"), "Hello.");
  EXPECT_EQ(answer.at("stop_reason"), "end_turn");
  Reply reply = rig.start("POST", "/v1/messages", body + R"(,"stream":true})");
  EXPECT_EQ(std::get<std::unique_ptr<PendingReply>>(reply)->keepalive(), "event: ping\ndata: {\"type\":\"ping\"}\n\n");
  const std::string stream = ServerRig::finish(std::move(reply)).body;
  EXPECT_TRUE(stream.starts_with("event: message_start\ndata: ")) << stream;
  EXPECT_NE(stream.find("event: message_stop\n"), std::string::npos) << stream;
  const Json counted = Json::parse(rig.call("POST", "/v1/messages/count_tokens", body + "}").body);
  EXPECT_EQ(counted.at("input_tokens"), answer["usage"]["input_tokens"]);
}

constexpr std::string_view kThinkChat = R"({"messages":[{"role":"user","content":"Hi"}],"temperature":0)";

TEST(generation_routes, thinking_ends_with_its_budget) {
  // A model that never ends its thinking by itself: "a " for ever, but for an answer behind the tag.
  const Tokenizer& tokenizer = ServerRig::tokenizer();
  const int end_think = tokenizer.added_token("</think>").value(), end = tokenizer.added_token("<|im_end|>").value();
  const int word = tokenizer.encode("a").front(), answer = tokenizer.encode("7").front();
  ServerRig rig([=](std::span<const int> history, std::span<float> logits) {
    const auto closed = std::find(history.rbegin(), history.rend(), end_think) - history.rbegin();
    const bool thinks = closed == static_cast<std::ptrdiff_t>(history.size());
    logits[static_cast<std::size_t>(thinks ? word : history.back() == answer ? end : answer)] = 10.0f;
  });
  const std::string phrase(kThinkingSpent);
  for (const int budget : {0, 1, 64}) {
    const Json answer_body =
        Json::parse(rig.call("POST", "/v1/chat/completions", fmt::format(R"({},"thinking_token_budget":{}}})", kThinkChat, budget)).body);
    const Json& message = answer_body["choices"][0]["message"];
    EXPECT_EQ(message.at("content"), "7");
    std::string expected = std::string(static_cast<std::size_t>(budget), 'a') + phrase;
    if (budget == 0) expected.erase(0, expected.find_first_not_of('\n'));
    EXPECT_EQ(message.at("reasoning_content"), expected);
    EXPECT_EQ(answer_body["choices"][0].at("finish_reason"), "stop");
    EXPECT_GE(answer_body["usage"]["completion_tokens_details"]["reasoning_tokens"], budget);
  }
  const Json cut = Json::parse(
      rig.call("POST", "/v1/chat/completions", fmt::format(R"({},"thinking_token_budget":64,"max_tokens":10}})", kThinkChat)).body);
  EXPECT_EQ(cut["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(cut["choices"][0]["message"]["reasoning"], std::string(10, 'a'));
  const Json anthropic = Json::parse(
      rig.call(
             "POST", "/v1/messages",
             R"({"model":"test-model","max_tokens":90,"temperature":0,"messages":[{"role":"user","content":"Hi"}],"thinking":{"type":"enabled","budget_tokens":5}})")
          .body);
  EXPECT_EQ(anthropic["content"][0]["thinking"], "aaaaa" + phrase);
  EXPECT_EQ(anthropic["content"][1]["text"], "7");
}

TEST(generation_routes, min_tokens_holds_the_end_back) {
  ServerRig rig(answering("ok"));
  for (const int least : {0, 9}) {
    const Json answer =
        Json::parse(rig.call("POST", "/v1/chat/completions", fmt::format(R"({},"min_tokens":{},"max_tokens":12}})", kChat, least)).body);
    EXPECT_GE(answer["usage"]["completion_tokens"], std::max(least, 2));
  }
}

TEST(generation_routes, token_ids_prompt_text_and_the_clients_id_come_back) {
  ServerRig rig(answering("ok then"));
  const std::string ask = fmt::format(R"({},"return_token_ids":true,"return_prompt_text":true,"request_id":"mine-7")", kChat);
  const Json whole = Json::parse(rig.call("POST", "/v1/chat/completions", ask + "}").body);
  EXPECT_EQ(whole["id"], "chatcmpl-mine-7");
  const std::string prompt = whole["prompt_text"];
  EXPECT_TRUE(prompt.starts_with("<|im_start|>") && prompt.ends_with("</think>\n\n")) << prompt;
  EXPECT_EQ(whole["prompt_token_ids"].get<std::vector<int>>(), ServerRig::tokenizer().encode(prompt));
  std::vector<int> ids = ServerRig::tokenizer().encode("ok then");
  ids.push_back(ServerRig::tokenizer().added_token("<|im_end|>").value());
  EXPECT_EQ(whole["choices"][0]["token_ids"].get<std::vector<int>>(), ids);
  EXPECT_EQ(whole["timings"]["predicted_n"], ids.size());
  EXPECT_EQ(whole["timings"]["prompt_n"], whole["usage"]["prompt_tokens"]);

  std::vector<int> streamed;
  const std::vector<Json> events = events_of(rig.call("POST", "/v1/chat/completions", ask + R"(,"stream":true})").body);
  for (std::size_t i = 0; i < events.size(); ++i) {
    for (const Json& id : events[i]["choices"][0]["token_ids"]) streamed.push_back(id);
    EXPECT_EQ(events[i].contains("prompt_token_ids"), i == 0);
    EXPECT_EQ(events[i].contains("timings"), i + 1 == events.size());
  }
  EXPECT_EQ(events[0]["prompt_token_ids"], whole["prompt_token_ids"]);
  EXPECT_EQ(streamed, ids);
  EXPECT_EQ(events.back()["choices"][0]["finish_reason"], "stop");

  const Json completion =
      Json::parse(rig.call("POST", "/v1/completions", R"({"prompt":[[5,6]],"temperature":0,"max_tokens":2,"return_token_ids":true})").body);
  EXPECT_EQ(completion["choices"][0]["prompt_token_ids"].dump(), "[5,6]");
  EXPECT_EQ(completion["choices"][0]["token_ids"].size(), 2u);
}

TEST(generation_routes, a_last_message_is_continued) {
  ServerRig rig(answering("there, friend"));
  const std::string messages =
      R"("messages":[{"role":"user","content":"Hi"},{"role":"assistant","content":" Hello there,"}],"temperature":0)";
  const std::string continued =
      "{" + messages + R"(,"continue_final_message":true,"add_generation_prompt":false,"return_prompt_text":true})";
  const Json answer = Json::parse(rig.call("POST", "/v1/chat/completions", continued).body);
  EXPECT_TRUE(answer["prompt_text"].get<std::string>().ends_with("</think>\n\nHello there,")) << answer;
  EXPECT_EQ(answer["choices"][0]["message"].count("reasoning"), 0u);
  const auto refused = [&](const std::string& body) { return error_of(rig.call("POST", "/v1/chat/completions", body)).value("param", ""); };
  EXPECT_EQ(refused("{" + messages + R"(,"continue_final_message":true,"add_generation_prompt":true})"), "continue_final_message");
  EXPECT_EQ(refused(R"({"messages":[{"role":"user","content":"Hi"}],"continue_final_message":true})"), "continue_final_message");
  const std::string open = R"({"messages":[{"role":"user","content":"Hi"},{"role":"assistant","content":"<think>\nWell"}],"temperature":0)";
  const Json thinking =
      Json::parse(rig.call("POST", "/v1/chat/completions", open + R"(,"continue_final_message":true,"max_tokens":3})").body);
  EXPECT_EQ(thinking["choices"][0]["message"]["content"], "");
  EXPECT_NE(thinking["choices"][0]["message"]["reasoning"], "");
  const Json counted = Json::parse(rig.call("POST", "/tokenize", continued).body);
  EXPECT_EQ(counted["tokens"].size(), answer["usage"]["prompt_tokens"].get<std::size_t>());
}

TEST(generation_routes, unknown_fields_are_told_once) {
  ServerRig rig(answering("ok"));
  for (int i = 0; i < 2; ++i)
    EXPECT_EQ(rig.call("POST", "/v1/completions", R"({"prompt":"a","temperature":0,"no_such_field_here":1})").status, 200);
  ASSERT_EQ(rig.logged.size(), 1u);
  EXPECT_NE(rig.logged[0].find("no_such_field_here"), std::string::npos);
}

}  // namespace
}  // namespace tetrad::generation_routes_test
