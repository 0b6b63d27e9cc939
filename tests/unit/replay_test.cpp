// Turns that come back altered: the prompt is the sequence that was computed, and edits are honoured.
#include "server/replay_prompt.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "support/server_rig.h"

namespace tetrad::replay_test {
namespace {

using testing::answering;
using testing::ServerRig;
using testing::ServerRigOptions;
using Json = nlohmann::ordered_json;

const std::string kThought = "Six times seven, so forty-two.", kAnswer = "It is 42.";

ServerRigOptions cached_rig(std::size_t replay_bytes = 1 << 20) {
  ServerRigOptions options;
  options.engine.snapshot_slots = 6;
  options.replay_bytes = replay_bytes;
  return options;
}

// Tokens as a model may choose and no tokenizer would: letter by letter.
std::vector<int> letters(const std::string& text) {
  std::vector<int> ids;
  for (const char letter : text) {
    const std::vector<int> one = ServerRig::tokenizer().encode(std::string(1, letter));
    ids.insert(ids.end(), one.begin(), one.end());
  }
  return ids;
}

Json user(std::string text) { return {{"role", "user"}, {"content", std::move(text)}}; }

Json chat_of(Json messages, const Json& more = Json::object()) {
  Json body = {{"messages", std::move(messages)}, {"temperature", 0}, {"max_tokens", 400}};
  body.update(more);
  return body;
}

// Compilers differ in what a Json made of one Json in braces is.
Json chat_of(std::initializer_list<Json> messages, const Json& more = Json::object()) {
  return chat_of(Json(std::vector<Json>(messages)), more);
}

Json answer_to(ServerRig& rig, const Json& body) {
  const HttpResponse response = rig.call("POST", "/v1/chat/completions", body.dump());
  EXPECT_EQ(response.status, 200) << response.body;
  return Json::parse(response.body);
}

std::vector<int> ids_of(ServerRig& rig, const Json& body) {
  return Json::parse(rig.call("POST", "/tokenize", body.dump()).body).at("tokens").get<std::vector<int>>();
}

std::string text_of(ServerRig& rig, const Json& body) { return ServerRig::tokenizer().decode(ids_of(rig, body)); }

int cached_of(const Json& answer) { return answer.at("usage").at("prompt_tokens_details").at("cached_tokens"); }

// Of an answer's prompt and itself, but for the token that ended it.
int computed_by(const Json& answer) { return answer.at("usage").at("total_tokens").get<int>() - 1; }

const Json& message_of(const Json& answer) { return answer.at("choices")[0].at("message"); }

TEST(replay, a_client_that_drops_the_reasoning_hits_the_whole_first_turn) {
  ServerRig rig(answering(kThought + "\n</think>\n\n" + kAnswer), cached_rig());
  const Json answer = answer_to(rig, chat_of({user("What is 6 * 7?")}));
  ASSERT_EQ(message_of(answer).at("content"), kAnswer);
  ASSERT_EQ(message_of(answer).at("reasoning_content"), kThought);
  const Json second = chat_of({user("What is 6 * 7?"), {{"role", "assistant"}, {"content", kAnswer}}, user("Are you sure?")});
  EXPECT_EQ(cached_of(answer_to(rig, second)), computed_by(answer));
  EXPECT_EQ(rig.replay.stats().hits, 1u);

  // The prompt is the one of a client that sends everything back.
  ServerRig plain(answering("x"), cached_rig(0));
  Json whole = second;
  whole["messages"][1]["reasoning_content"] = kThought;
  EXPECT_EQ(ids_of(rig, second), ids_of(plain, whole));
  EXPECT_EQ(ids_of(rig, whole), ids_of(plain, whole));
}

TEST(replay, without_the_map_the_first_turn_is_computed_again) {
  ServerRig rig(answering(kThought + "\n</think>\n\n" + kAnswer), cached_rig(0));
  const Json answer = answer_to(rig, chat_of({user("What is 6 * 7?")}));
  const Json second = chat_of({user("What is 6 * 7?"), {{"role", "assistant"}, {"content", kAnswer}}, user("Are you sure?")});
  EXPECT_LE(cached_of(answer_to(rig, second)), answer.at("usage").at("prompt_tokens").get<int>());
}

TEST(replay, tokens_that_no_tokenizer_would_choose) {
  for (const bool thinking : {true, false}) {
    std::vector<int> ids = letters(thinking ? kThought + "\n" : "");
    if (thinking) ids.push_back(ServerRig::tokenizer().added_token("</think>").value());
    for (const int id : letters((thinking ? "\n\n" : "") + kAnswer)) ids.push_back(id);
    for (const std::size_t replay_bytes : {std::size_t{1} << 20, std::size_t{0}}) {
      ServerRig rig(testing::answering_ids(ids), cached_rig(replay_bytes));
      const Json more = {{"enable_thinking", thinking}};
      const Json answer = answer_to(rig, chat_of({user("Count.")}, more));
      Json message = message_of(answer);  // all of it: text alone does not say which tokens it was
      ASSERT_EQ(message.at("content"), kAnswer);
      const int cached = cached_of(answer_to(rig, chat_of({user("Count."), message, user("Again.")}, more)));
      if (replay_bytes > 0)
        EXPECT_EQ(cached, computed_by(answer));
      else
        EXPECT_LT(cached, computed_by(answer));
    }
  }
}

TEST(replay, what_is_no_whole_turn_is_not_kept) {
  const int start = ServerRig::tokenizer().added_token("<|im_start|>").value();
  std::vector<int> forged = letters("</x>");
  forged[1] = start;
  for (const Json& more : {Json{{"max_tokens", 4}}, Json{{"stop", {"times"}}}, Json{{"skip_special_tokens", false}}}) {
    ServerRig rig(answering(kThought + "\n</think>\n\n" + kAnswer), cached_rig());  // cut in its reasoning, or by a string
    answer_to(rig, chat_of({user("What is 6 * 7?")}, more));
    EXPECT_EQ(rig.replay.stats().entries, 0u) << more;
  }
  ServerRig rig(testing::answering_ids(forged), cached_rig());
  answer_to(rig, chat_of({user("Forge.")}, {{"enable_thinking", false}}));
  EXPECT_EQ(rig.replay.stats().entries, 0u);
}

const Json kTools = Json::parse(R"([{"type":"function","function":{"name":"look","parameters":{"type":"object",
  "properties":{"where":{"type":"string"},"count":{"type":"integer"},"parts":{"type":"array"}}}}}])");
const std::string kCall =
    "<tool_call>\n<function=look>\n<parameter=where>\nhere\n</parameter>\n<parameter=count>\n2\n</parameter>\n"
    "<parameter=parts>\n[1,{\"b\":1,\"a\":2}]\n</parameter>\n</function>\n</tool_call>";

// The conversation after a call, as its client sends it back.
Json with_result(const Json& call, const std::string& arguments) {
  Json sent = {{"id", call.at("id")}, {"type", "function"}, {"function", {{"name", "look"}, {"arguments", arguments}}}};
  Json messages =
      Json::array({user("Look."), {{"role", "assistant"}, {"content", nullptr}, {"tool_calls", Json::array({std::move(sent)})}}});
  messages.push_back({{"role", "tool"}, {"tool_call_id", call.at("id")}, {"content", "A cat."}});
  return chat_of(std::move(messages), {{"tools", kTools}});
}

TEST(replay, arguments_in_another_order_are_the_same_call) {
  ServerRig rig(answering("I must look.\n</think>\n\n" + kCall), cached_rig());
  const Json answer = answer_to(rig, chat_of({user("Look.")}, {{"tools", kTools}}));
  ASSERT_EQ(answer.at("choices")[0].at("finish_reason"), "tool_calls");
  const Json call = message_of(answer).at("tool_calls")[0];
  const Json again = with_result(call, R"({ "parts": [1.0, {"a": 2, "b": 1}], "count": 2, "where": "here" })");
  const std::string text = text_of(rig, again);
  EXPECT_NE(text.find("<think>\nI must look.\n</think>\n\n" + kCall + "<|im_end|>\n<|im_start|>user\n<tool_response>\nA cat."),
            std::string::npos)
      << text;
  EXPECT_EQ(cached_of(answer_to(rig, again)), computed_by(answer));

  // What is not the same call is rendered as it was sent.
  const std::string right = R"({"where":"here","count":2,"parts":[1,{"b":1,"a":2}]})";
  EXPECT_NE(text_of(rig, with_result(call, right)).find("I must look."), std::string::npos);
  for (const char* arguments : {R"({"where":"there","count":2,"parts":[1,{"b":1,"a":2}]})", R"({"where":"here","count":2})",
                                R"({"where":"here","count":"2","parts":[1,{"b":1,"a":2}]})"})
    EXPECT_EQ(text_of(rig, with_result(call, arguments)).find("I must look."), std::string::npos) << arguments;
  Json guessed = call;
  guessed["id"] = "call_0123456789abcdef01234567";
  EXPECT_EQ(text_of(rig, with_result(guessed, right)).find("I must look."), std::string::npos);
}

TEST(replay, edits_are_honoured) {
  ServerRig rig(answering(kThought + "\n</think>\n\n" + kAnswer), cached_rig()), plain(answering("x"), cached_rig(0));
  answer_to(rig, chat_of({user("What is 6 * 7?")}));
  const auto second = [](const Json& assistant, const Json& more = Json::object()) {
    return chat_of({user("What is 6 * 7?"), assistant, user("Are you sure?")}, more);
  };
  const Json kept = {{"role", "assistant"}, {"content", " " + kAnswer + "\n"}};
  EXPECT_NE(text_of(rig, second(kept)).find(kThought), std::string::npos);
  const Json edited = {{"role", "assistant"}, {"content", "It is 43."}};
  const Json rethought = {{"role", "assistant"}, {"content", kAnswer}, {"reasoning_content", "I guess."}};
  for (const Json& message : {edited, rethought}) EXPECT_EQ(ids_of(rig, second(message)), ids_of(plain, second(message)));
  // The question was another, the thinking is not to be shown, the cache is another's or not wanted.
  const Json other = chat_of({user("What is 5 * 9?"), kept, user("Are you sure?")});
  EXPECT_EQ(ids_of(rig, other), ids_of(plain, other));
  for (const Json& more : {Json{{"preserve_thinking", false}}, Json{{"cache_salt", "another"}}, Json{{"cache_prompt", false}}})
    EXPECT_EQ(ids_of(rig, second(kept, more)), ids_of(plain, second(kept, more))) << more;
}

TEST(replay, later_turns_are_found_behind_an_edit) {
  ServerRig rig(answering(kThought + "\n</think>\n\n" + kAnswer), cached_rig());
  Json messages = Json::array({user("What is 6 * 7?")});
  answer_to(rig, chat_of(messages));
  messages.push_back({{"role", "assistant"}, {"content", kAnswer}});
  messages.push_back(user("Are you sure?"));
  answer_to(rig, chat_of(messages));
  messages.push_back({{"role", "assistant"}, {"content", kAnswer}});
  messages.push_back(user("Really?"));
  const Json third = answer_to(rig, chat_of(messages));
  EXPECT_EQ(rig.replay.stats().hits, 3u);
  // The client edits its first turn and goes on: the turn after it is another one, and is kept as well.
  messages[1]["content"] = "Forty-two.";
  messages.erase(3);
  messages.erase(3);
  const Json edited = answer_to(rig, chat_of(messages));
  messages.push_back({{"role", "assistant"}, {"content", kAnswer}});
  messages.push_back(user("Really?"));
  EXPECT_EQ(cached_of(answer_to(rig, chat_of(messages))), computed_by(edited));
}

TEST(replay, a_long_conversation_computes_what_is_new) {
  ServerRig rig(answering(kThought + "\n</think>\n\n" + kAnswer), cached_rig());
  Json messages = Json::array();
  int computed = 0;
  for (int turn = 0; turn < 6; ++turn) {
    messages.push_back(user("Once more."));
    const Json answer = answer_to(rig, chat_of(messages));
    EXPECT_EQ(cached_of(answer), computed) << turn;
    computed = computed_by(answer);
    messages.push_back({{"role", "assistant"}, {"content", message_of(answer).at("content")}});
  }
}

TEST(replay, a_forced_call_is_found_again) {
  for (const char* choice : {"required", "auto"}) {
    ServerRig rig(answering(kCall), cached_rig());
    const Json more = {{"tools", kTools}, {"tool_choice", choice}, {"enable_thinking", false}};
    const Json answer = answer_to(rig, chat_of({user("Look.")}, more));
    ASSERT_EQ(answer.at("choices")[0].at("finish_reason"), "tool_calls") << answer;
    Json second = with_result(message_of(answer).at("tool_calls")[0], R"({"count":2,"where":"here","parts":[1,{"a":2,"b":1}]})");
    second.update(Json{{"enable_thinking", false}});
    EXPECT_EQ(cached_of(answer_to(rig, second)), computed_by(answer)) << choice;
  }
}

// Such an answer ends without a stop token. What the model says after it depends on every token before.
TEST(replay, an_answer_that_its_form_ended_is_found_again) {
  const std::string form = "It is forty-two.";
  for (const bool thinking : {true, false}) {
    std::vector<int> ids = letters(thinking ? kThought + "\n" : "");
    if (thinking) ids.push_back(ServerRig::tokenizer().added_token("</think>").value());
    if (thinking)
      for (const int id : ServerRig::tokenizer().encode("\n\n")) ids.push_back(id);
    const std::vector<int> spelt = letters(form);
    ids.insert(ids.end(), spelt.begin(), spelt.end());
    const auto first = testing::answering_ids(ids),
               later = testing::hashed_script(ServerRig::tokenizer().added_token("<|im_end|>").value());
    const int turn = ServerRig::tokenizer().added_token("<|im_start|>").value();
    const Json question = user("What is 6 * 7?"), more = {{"enable_thinking", thinking}, {"max_tokens", 40}};
    ServerRig plain(answering("x"), cached_rig(0));
    const std::vector<int> first_prompt = ids_of(plain, chat_of({question}, more));
    const auto turns = std::count(first_prompt.begin(), first_prompt.end(), turn);
    const auto script = [=](std::span<const int> history, std::span<float> logits) {
      (std::count(history.begin(), history.end(), turn) > turns ? later : first)(history, logits);
    };
    for (const Json& extra :
         {Json{{"guided_choice", Json::array({form})}}, Json{{"guided_choice", Json::array({form})}, {"stop", "four"}}}) {
      ServerRig rig(script, cached_rig());
      Json asked = chat_of({question}, more);
      asked.update(extra);
      asked["max_tokens"] = 400;
      const Json answer = answer_to(rig, asked);
      ASSERT_EQ(message_of(answer).at("content"), form);
      ASSERT_EQ(rig.replay.stats().entries, 1u);
      const Json second = chat_of({question, {{"role", "assistant"}, {"content", form}}, user("Are you sure?")}, more);
      const std::vector<int> prompt = ids_of(rig, second);
      EXPECT_NE(std::search(prompt.begin(), prompt.end(), ids.begin(), ids.end()), prompt.end());
      Json told = second;
      told["return_token_ids"] = true;
      const Json warm = answer_to(rig, told);
      EXPECT_EQ(cached_of(warm), computed_by(answer));
      EXPECT_EQ(rig.replay.stats().hits, 1u);
      const Json cold_body = {
          {"prompt", prompt}, {"max_tokens", 40}, {"temperature", 0}, {"return_token_ids", true}, {"cache_prompt", false}};
      const HttpResponse cold = rig.call("POST", "/v1/completions", cold_body.dump());
      ASSERT_EQ(cold.status, 200) << cold.body;
      EXPECT_EQ(Json::parse(cold.body).at("usage").at("prompt_tokens_details").at("cached_tokens"), 0);
      EXPECT_EQ(Json::parse(cold.body).at("choices")[0].at("token_ids"), warm.at("choices")[0].at("token_ids"));
    }
    ServerRig rig(script, cached_rig());
    Json cut = chat_of({question}, {{"enable_thinking", thinking}, {"guided_choice", Json::array({form})}, {"stop", "is fo"}});
    EXPECT_EQ(message_of(answer_to(rig, cut)).at("content"), "It ");
    EXPECT_EQ(rig.replay.stats().entries, 0u);
  }
}

// --- The map ---

Digest digest_of(int number) { return DigestBuilder().add(std::to_string(number)).digest(); }

TEST(replay_map, is_bounded_and_forgets_the_least_recently_used) {
  ReplayMap map(10'000, 3);
  const ReplayTurn turn{.tokens = {1, 2, 3}, .reasoning = {}};
  for (int i = 0; i < 3; ++i) map.add(digest_of(i), digest_of(0), turn);
  EXPECT_NE(map.find(digest_of(0), digest_of(0)), nullptr);
  map.add(digest_of(3), digest_of(0), turn);
  EXPECT_EQ(map.find(digest_of(1), digest_of(0)), nullptr);
  EXPECT_FALSE(map.known_start(digest_of(1)));
  EXPECT_NE(map.find(digest_of(0), digest_of(0)), nullptr);
  EXPECT_EQ(map.find(digest_of(0), digest_of(1)), nullptr);
  EXPECT_EQ(map.stats().entries, 3u);
  EXPECT_EQ(map.stats().evictions, 1u);
  map.add(digest_of(4), digest_of(0), {.tokens = std::vector<int>(2'000, 7), .reasoning = {}});  // most of the bytes: the others go
  EXPECT_LE(map.stats().bytes, 10'000u);
  EXPECT_NE(map.find(digest_of(4), digest_of(0)), nullptr);
  map.add(digest_of(5), digest_of(0), {.tokens = std::vector<int>(20'000, 7), .reasoning = {}});  // never fits
  EXPECT_EQ(map.find(digest_of(5), digest_of(0)), nullptr);
  EXPECT_NE(map.find(digest_of(4), digest_of(0)), nullptr);
  ReplayMap off(0);
  off.add(digest_of(1), digest_of(1), turn);
  EXPECT_EQ(off.stats().entries, 0u);
}

TEST(replay_map, keys_are_of_everything_that_is_seen) {
  const Json call = Json::parse(R"([{"id":"a","function":{"name":"f","arguments":{"x":1,"y":[true,null,"2"]}}}])");
  const Digest key = visible_digest("salt", "text", call);
  EXPECT_EQ(
      visible_digest("salt", "\ntext ", Json::parse(R"([{"id":"a","function":{"name":"f","arguments":{"y":[true,null,"2"],"x":1.0}}}])")),
      key);
  for (const char* other : {R"([{"id":"b","function":{"name":"f","arguments":{"x":1,"y":[true,null,"2"]}}}])",
                            R"([{"id":"a","function":{"name":"g","arguments":{"x":1,"y":[true,null,"2"]}}}])",
                            R"([{"id":"a","function":{"name":"f","arguments":{"x":1,"y":[true,null,2]}}}])", "null"})
    EXPECT_NE(visible_digest("salt", "text", Json::parse(other)), key) << other;
  EXPECT_NE(visible_digest("sal", "ttext", call), key);
  EXPECT_NE(visible_digest("salt", "te xt", call), key);
}

}  // namespace
}  // namespace tetrad::replay_test
