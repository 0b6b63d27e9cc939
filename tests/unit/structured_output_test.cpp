// Answers bound to a form over HTTP, from a model that would rather say something else.
#include "server/structured_output.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "support/server_rig.h"

namespace tetrad::structured_output_test {
namespace {

using testing::answering;
using testing::ServerRig;
using Json = nlohmann::ordered_json;

constexpr const char* kWeather =
    R"({"type":"object","properties":{"city":{"type":"string","maxLength":20},"days":{"type":"integer","minimum":1,"maximum":9}},"required":["city","days"]})";

std::string tool(const std::string& name, bool strict, const std::string& schema = kWeather) {
  return fmt::format(R"({{"type":"function","function":{{"name":"{}","strict":{},"parameters":{}}}}})", name, strict, schema);
}

struct Answered {
  int status = 0;
  Json message, error;
  std::string finish;
};

// Chat completions of one request, whole and streamed, which must say the same.
Answered ask(ServerRig& rig, const std::string& fields) {
  const std::string body = R"({"messages":[{"role":"user","content":"Hi"}],"temperature":0,"max_tokens":300,)" + fields;
  const HttpResponse whole = rig.call("POST", "/v1/chat/completions", body + "}");
  Answered answered;
  answered.status = whole.status;
  const Json parsed = Json::parse(whole.body);
  if (whole.status != 200) {
    answered.error = parsed.at("error");
    return answered;
  }
  answered.message = parsed["choices"][0]["message"];
  answered.finish = parsed["choices"][0]["finish_reason"];
  std::string streamed = rig.call("POST", "/v1/chat/completions", body + R"(,"stream":true})").body, content, reasoning, arguments, finish;
  for (std::size_t at = streamed.find("data: {"); at != std::string::npos; at = streamed.find("data: {", at + 1)) {
    const Json event = Json::parse(streamed.substr(at + 6, streamed.find('\n', at) - at - 6));
    if (event.contains("error") || event["choices"].empty()) continue;
    const Json& delta = event["choices"][0]["delta"];
    if (delta.contains("content") && delta["content"].is_string()) content += delta["content"].get<std::string>();
    reasoning += delta.value("reasoning_content", "");
    if (delta.contains("tool_calls")) arguments += delta["tool_calls"][0]["function"].value("arguments", "");
    if (event["choices"][0]["finish_reason"].is_string()) finish = event["choices"][0]["finish_reason"];
  }
  EXPECT_EQ(content, answered.message["content"].is_string() ? answered.message["content"].get<std::string>() : "") << fields;
  EXPECT_EQ(reasoning, answered.message.value("reasoning_content", "")) << fields;
  EXPECT_EQ(finish, answered.finish) << fields;
  if (answered.message.contains("tool_calls") && answered.message["tool_calls"].size() == 1) {
    EXPECT_EQ(arguments, answered.message["tool_calls"][0]["function"]["arguments"]) << fields;
  }
  return answered;
}

constexpr std::string_view kNoThinking = R"("enable_thinking":false,)";

TEST(structured_output, forms_bind_a_model_that_prefers_prose) {
  ServerRig rig(answering("Sure, here it is: {\"city\": \"Rome\", \"days\": 12}"));
  const auto content = [&](const std::string& fields) {
    return ask(rig, std::string(kNoThinking) + fields).message["content"].get<std::string>();
  };
  EXPECT_EQ(content(R"("guided_choice":["No way","Surely"])"), "Surely");
  EXPECT_EQ(content(R"("regex":"[A-Z][a-z]{3}, [a-z]{4}")"), "Sure, here");
  const Answered object = ask(rig, std::string(kNoThinking) + R"("response_format":{"type":"json_object"})");
  EXPECT_EQ(object.status, 200);
  const Answered schema = ask(
      rig, fmt::format(R"({}"response_format":{{"type":"json_schema","json_schema":{{"name":"w","schema":{}}}}})", kNoThinking, kWeather));
  EXPECT_TRUE(schema.finish != "stop" || Json::accept(schema.message["content"].get<std::string>()));
  const HttpResponse completion =
      rig.call("POST", "/v1/completions", R"({"prompt":"a","temperature":0,"max_tokens":40,"guided_choice":["x","yz"]})");
  ASSERT_EQ(completion.status, 200) << completion.body;
  const std::string text = Json::parse(completion.body)["choices"][0]["text"];
  EXPECT_TRUE(text == "x" || text == "yz") << text;
}

TEST(structured_output, starts_after_thinking) {
  // The reasoning holds what looks like the answer and like a call.
  ServerRig rig(answering("I plan {\"city\": 1} <tool_call>\n<function=weather>\n</think>\n\n{\"city\":\"Rome\",\"days\":3}"));
  const std::string format =
      fmt::format(R"("response_format":{{"type":"json_schema","json_schema":{{"name":"w","schema":{}}}}})", kWeather);
  const Answered thought = ask(rig, R"("enable_thinking":true,)" + format);
  ASSERT_EQ(thought.status, 200) << thought.error;
  EXPECT_EQ(thought.message["content"], R"({"city":"Rome","days":3})");
  EXPECT_NE(thought.message.value("reasoning_content", "").find("<function=weather>"), std::string::npos);
  EXPECT_EQ(thought.finish, "stop");
  const Answered budget = ask(rig, R"("enable_thinking":true,"thinking_token_budget":3,)" + format);
  ASSERT_EQ(budget.status, 200) << budget.error;
  EXPECT_EQ(budget.message["content"].get<std::string>().substr(0, 1), "{");
}

// The texts of an answer's reasoning and content and the number of its calls, from any API's body or stream.
struct Read {
  std::string reasoning, content;
  int calls = 0;
  friend bool operator==(const Read&, const Read&) = default;
  friend void PrintTo(const Read& read, std::ostream* out) { *out << read.reasoning << " | " << read.content << " | " << read.calls; }
};

void read_whole(const Json& json, Read& read) {
  if (json.contains("choices")) {
    const Json& message = json["choices"][0]["message"];
    if (message["content"].is_string()) read.content = message["content"];
    read.reasoning = message.value("reasoning_content", "");
    read.calls = message.contains("tool_calls") ? static_cast<int>(message["tool_calls"].size()) : 0;
  }
  for (const Json& block : json.value("content", Json::array())) {
    read.content += block.value("text", "");
    read.reasoning += block.value("thinking", "");
    read.calls += block["type"] == "tool_use";
  }
  for (const Json& item : json.value("output", Json::array())) {
    read.calls += item["type"] == "function_call";
    for (const Json& part : item.value("content", Json::array()))
      (item["type"] == "reasoning" ? read.reasoning : read.content) += part.value("text", "");
  }
}

void read_event(const Json& event, Read& read) {
  if (event.contains("choices") && !event["choices"].empty()) {
    const Json& delta = event["choices"][0]["delta"];
    if (delta.contains("content") && delta["content"].is_string()) read.content += delta["content"].get<std::string>();
    read.reasoning += delta.value("reasoning_content", "");
    if (delta.contains("tool_calls")) read.calls += delta["tool_calls"][0].contains("id");
  }
  const std::string type = event.value("type", "");
  if (type == "content_block_delta") {
    read.content += event["delta"].value("text", "");
    read.reasoning += event["delta"].value("thinking", "");
  }
  if (type == "content_block_start") read.calls += event["content_block"]["type"] == "tool_use";
  if (type == "response.output_text.delta") read.content += event["delta"].get<std::string>();
  if (type == "response.reasoning_text.delta") read.reasoning += event["delta"].get<std::string>();
  if (type == "response.output_item.added") read.calls += event["item"]["type"] == "function_call";
}

// What a request is answered with, whole and streamed.
Read answer_of(ServerRig& rig, const std::string& path, Json body) {
  Read whole, streamed;
  const HttpResponse response = rig.call("POST", path, body.dump());
  EXPECT_EQ(response.status, 200) << response.body;
  if (response.status == 200) read_whole(Json::parse(response.body), whole);
  body["stream"] = true;
  const std::string events = rig.call("POST", path, body.dump()).body;
  for (std::size_t at = events.find("data: {"); at != std::string::npos; at = events.find("data: {", at + 1))
    read_event(Json::parse(events.substr(at + 6, events.find('\n', at) - at - 6)), streamed);
  EXPECT_EQ(streamed, whole) << path;
  return whole;
}

Json chat_of(const Json& more, bool thinking = false) {
  Json body = {{"messages", Json::array({Json{{"role", "user"}, {"content", "Hi"}}})}, {"temperature", 0}, {"max_tokens", 300}};
  body["enable_thinking"] = thinking;
  body.update(more);
  return body;
}

const std::string kQuotedCall = "<tool_call><function=weather></function></tool_call>";
const std::string kQuotes = R"({"type":"object","properties":{"q":{"const":")" + kQuotedCall + R"("}},"required":["q"]})";

TEST(structured_output, a_form_arrives_as_it_was_written) {
  ServerRig rig(answering("I would rather talk."));
  for (const std::string text : {"  \n lead", "trail \n", "<think>plan</think> yes", "a\n<think>\nb", "</think>no", "\n\n</think>\n\nx",
                                 "a\n</think>b", "   ", "<tool_call>\n<function=weather>\n</function>\n</tool_call>"}) {
    EXPECT_EQ(answer_of(rig, "/v1/chat/completions", chat_of({{"guided_choice", Json::array({text})}})), (Read{"", text, 0})) << text;
    const Json schema = {{"const", text}};
    const Json format = {{"format", Json{{"type", "json_schema"}, {"name", "t"}, {"schema", schema}}}};
    Json asked = {
        {"input", "Hi"}, {"max_output_tokens", 300}, {"temperature", 0}, {"reasoning", Json{{"effort", "none"}}}, {"text", format}};
    EXPECT_EQ(answer_of(rig, "/v1/responses", asked), (Read{"", Json(text).dump(), 0}));
    Json message = chat_of({{"output_config", format}});
    message["output_config"]["format"].erase("name");
    message.erase("enable_thinking");
    message["thinking"] = {{"type", "disabled"}};
    EXPECT_EQ(answer_of(rig, "/v1/messages", message), (Read{"", Json(text).dump(), 0}));
  }
  EXPECT_EQ(answer_of(rig, "/v1/chat/completions", chat_of({{"regex", "\\n {3}<think>"}})), (Read{"", "\n   <think>", 0}));
}

// JSON that quotes a whole call, beside the tool that it names; and the call itself.
TEST(structured_output, what_the_grammar_took_decides_whether_it_is_a_call) {
  const Json quotes = Json::parse(kQuotes), weather = Json::parse(tool("weather", false));
  Json function = weather["function"];
  function.erase("strict");
  function["type"] = "function";
  const Json format = {{"type", "json_schema"}, {"schema", quotes}};
  Json named = format;
  named["name"] = "quotes";
  const std::string call =
      "<tool_call>\n<function=weather>\n<parameter=city>\nRome\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>";
  for (const bool calls : {false, true}) {
    ServerRig rig(answering(calls ? call : R"({"q": ")" + kQuotedCall + "\"}"));
    const std::string quoted = Json{{"q", kQuotedCall}}.dump();
    const auto expect = [&](const Read& read) {
      EXPECT_EQ(read.calls, calls ? 1 : 0) << read.content;
      EXPECT_EQ(calls ? quoted : Json::parse(read.content, nullptr, false).dump(), quoted) << read.content;
      EXPECT_TRUE(!calls || read.content.empty()) << read.content;
    };
    expect(answer_of(rig, "/v1/chat/completions",
                     chat_of({{"tools", Json::array({weather})}, {"parallel_tool_calls", false}, {"response_format", format}})));
    expect(answer_of(rig, "/v1/responses",
                     {{"input", "Hi"},
                      {"max_output_tokens", 300},
                      {"temperature", 0},
                      {"tools", Json::array({function})},
                      {"reasoning", Json{{"effort", "none"}}},
                      {"text", Json{{"format", named}}}}));
    Json message = chat_of({{"output_config", Json{{"format", format}}}, {"thinking", Json{{"type", "disabled"}}}});
    message.erase("enable_thinking");
    message["tools"] = Json::array({Json{{"name", "weather"}, {"input_schema", function["parameters"]}}});
    expect(answer_of(rig, "/v1/messages", message));
  }
}

// Only the token ends the thinking; its text, spelt by other tokens, and calls behind it are thoughts.
TEST(structured_output, a_quoted_end_of_thinking_does_not_begin_the_form) {
  const auto letters = [](const std::string& text) {
    std::vector<int> ids;
    for (const char letter : text) ids.push_back(ServerRig::tokenizer().encode(std::string(1, letter)).at(0));
    return ids;
  };
  const std::string thought = "One says </think>\n\n </think> and <tool_call>\n<function=weather>\n</function>\n</tool_call>.";
  std::vector<int> ids = letters(thought + "\n");
  ids.push_back(ServerRig::tokenizer().added_token("</think>").value());
  for (const int id : ServerRig::tokenizer().encode("\n\n")) ids.push_back(id);
  std::vector<int> formed = ids;
  for (const int id : letters(" \n</think> x")) formed.push_back(id);
  for (const Json& stop : {Json(), Json(" \n</think> y")}) {  // text that is held back comes later than its tokens
    ServerRig rig(testing::answering_ids(formed));
    Json body = chat_of({{"regex", " \\n</think> x"}}, true);
    if (!stop.is_null()) body["stop"] = stop;
    EXPECT_EQ(answer_of(rig, "/v1/chat/completions", body), (Read{thought, " \n</think> x", 0}));
  }
  std::vector<int> called = ids;
  for (const int id : ServerRig::tokenizer().encode(
           "<tool_call>\n<function=weather>\n<parameter=city>\nRome\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n"
           "</tool_call>"))
    called.push_back(id);
  ServerRig rig(testing::answering_ids(called));
  EXPECT_EQ(answer_of(rig, "/v1/chat/completions",
                      chat_of({{"tools", Json::array({Json::parse(tool("weather", false))})}, {"tool_choice", "required"}}, true)),
            (Read{thought, "", 1}));
}

TEST(structured_output, required_and_named_calls) {
  const std::string call =
      "<tool_call>\n<function=weather>\n<parameter=city>\nRome\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>";
  ServerRig rig(answering(call));
  const std::string tools =
      fmt::format(R"("tools":[{},{}])", tool("weather", false), tool("other", false, R"({"type":"object","properties":{}})"));
  for (const char* choice : {R"("required")", R"({"type":"function","function":{"name":"weather"}})"}) {
    const Answered called = ask(rig, fmt::format(R"("enable_thinking":false,{},"tool_choice":{})", tools, choice));
    ASSERT_EQ(called.status, 200) << called.error;
    EXPECT_EQ(called.finish, "tool_calls");
    ASSERT_EQ(called.message["tool_calls"].size(), 1u) << called.message;
    EXPECT_EQ(Json::parse(called.message["tool_calls"][0]["function"]["arguments"].get<std::string>()),
              Json::parse(R"({"city":"Rome","days":3})"));
  }
  // Another function than the one that the model wants.
  const Answered other =
      ask(rig, fmt::format(R"("enable_thinking":false,{},"tool_choice":{{"type":"function","function":{{"name":"other"}}}})", tools));
  ASSERT_EQ(other.message["tool_calls"].size(), 1u) << other.message;
  EXPECT_EQ(other.message["tool_calls"][0]["function"]["name"], "other");
  EXPECT_EQ(other.message["tool_calls"][0]["function"]["arguments"], "{}");

  ServerRig thinker(answering("Let me <function=weather> see.\n</think>\n\n" + call));
  const Answered thought =
      ask(thinker, fmt::format(R"("enable_thinking":true,{},"tool_choice":{{"type":"function","function":{{"name":"weather"}}}})", tools));
  ASSERT_EQ(thought.status, 200) << thought.error;
  EXPECT_EQ(thought.finish, "tool_calls");
  ASSERT_EQ(thought.message["tool_calls"].size(), 1u) << thought.message;
  EXPECT_NE(thought.message.value("reasoning_content", "").find("<function=weather>"), std::string::npos);

  ServerRig talker(answering("I would rather talk about it."));
  const Answered forced =
      ask(talker, fmt::format(R"("enable_thinking":false,"parallel_tool_calls":false,{},"tool_choice":"required")", tools));
  ASSERT_EQ(forced.status, 200) << forced.error;
  EXPECT_EQ(forced.finish, "tool_calls");
  EXPECT_EQ(forced.message["tool_calls"].size(), 1u);
  EXPECT_TRUE(forced.message["content"].is_null() || forced.message["content"] == "") << forced.message;
}

TEST(structured_output, strict_arguments_without_properties_ask_for_no_more_than_an_object) {
  ServerRig rig(answering("No."));
  const auto status = [&](const char* schema) {
    return ask(rig, fmt::format(R"("enable_thinking":false,"tools":[{}])", tool("save", true, schema))).status;
  };
  for (const char* schema : {R"({"type":"object"})", R"({"type":"object","properties":{},"required":[],"additionalProperties":false})"})
    EXPECT_EQ(status(schema), 200) << schema;
  for (const char* schema :
       {R"({"type":"object","additionalProperties":{"type":"integer"}})", R"({"required":["zz"]})", R"({"const":{"a":1}})",
        R"({"type":"object","minProperties":1})", R"({"type":"object","maxProperties":0})", R"({"type":"string"})"})
    EXPECT_EQ(status(schema), 400) << schema;
}

TEST(structured_output, strict_tools_keep_to_their_schema_under_auto) {
  ServerRig rig(answering("Well.\n\n<tool_call>\n<function=weather>\n<parameter=days>\n40\n</parameter>\n</function>\n</tool_call>"));
  const auto arguments = [&](bool strict) {
    const Answered called =
        ask(rig, fmt::format(R"("enable_thinking":false,"parallel_tool_calls":false,"tools":[{}])", tool("weather", strict)));
    EXPECT_EQ(called.status, 200) << called.error;
    EXPECT_EQ(called.message["content"], "Well.");
    return called.message["tool_calls"][0]["function"]["arguments"].get<std::string>();
  };
  EXPECT_EQ(arguments(false), R"({"days": 40})");
  EXPECT_TRUE(arguments(true).starts_with(R"({"city": ")")) << arguments(true);
}

TEST(structured_output, what_cannot_be_compiled_is_a_400_with_its_place) {
  ServerRig rig(answering("ok"));
  const auto error = [&](const std::string& fields) {
    const Answered answered = ask(rig, std::string(kNoThinking) + fields);
    EXPECT_EQ(answered.status, 400) << fields;
    return (answered.error["param"].is_string() ? answered.error["param"].get<std::string>() : "") + " | " +
           answered.error.value("message", "");
  };
  EXPECT_EQ(error(R"("response_format":{"type":"json_schema","json_schema":{"schema":{"properties":{"a":{"not":{}}}}}})"),
            "response_format.json_schema.schema.properties.a | response_format.json_schema.schema.properties.a: not is not supported");
  EXPECT_TRUE(error(R"x("regex":"(?=a)")x").starts_with("regex | regex: expression: lookahead"));
  EXPECT_TRUE(error(R"("guided_choice":["a",""])").starts_with("guided_choice | guided_choice: choice 1 is empty"));
  EXPECT_TRUE(
      error(fmt::format(R"("tools":[{}])", tool("f", true, R"({"type":"object","properties":{"a":{"type":"array","uniqueItems":true}}})")))
          .starts_with("tools[0].function.parameters.properties.a | "));
  EXPECT_TRUE(error(fmt::format(R"("tools":[{}],"tool_choice":"required","response_format":{{"type":"json_object"}})", tool("f", false)))
                  .starts_with("response_format | "));
  EXPECT_TRUE(error(fmt::format(R"("tools":[{}],"regex":"a")", tool("f", false))).starts_with("regex | "));
  EXPECT_TRUE(
      error(R"("guided_json":{"type":"string","enum":[")" + std::string(std::size_t{1} << 21, 'x') + "\"]}").find("at most 1048576") !=
      std::string::npos);
  // A schema that nests past what a request may.
  std::string deep = "1";
  for (int i = 0; i < 100; ++i) deep = R"({"items":)" + deep + "}";
  EXPECT_NE(error(R"("guided_json":)" + deep).find("nests"), std::string::npos);
  // The same where it is text of its own.
  EXPECT_TRUE(error(R"("guided_json":)" + Json(deep).dump()).starts_with("guided_json | "));
  EXPECT_EQ(ask(rig, std::string(kNoThinking) + R"("guided_choice":["ok"])").message["content"], "ok");
}

// As in OpenAI's API: a client that names a stop string wants the answer to end there, and is told which one it was.
TEST(structured_output, a_stop_string_ends_a_form_and_says_so) {
  ServerRig rig(answering(R"({"city":"Rome","days":3})"));
  const auto choice_of = [&](const Json& more) {
    Json body = chat_of({{"response_format", Json{{"type", "json_schema"}, {"schema", Json::parse(kWeather)}}}});
    body.update(more);
    const HttpResponse response = rig.call("POST", "/v1/chat/completions", body.dump());
    EXPECT_EQ(response.status, 200) << response.body;
    EXPECT_EQ(answer_of(rig, "/v1/chat/completions", body).content, Json::parse(response.body)["choices"][0]["message"]["content"]);
    return Json::parse(response.body)["choices"][0];
  };
  const Json cut = choice_of({{"stop", "ome"}});
  EXPECT_EQ(cut["message"]["content"], R"({"city":"R)");
  EXPECT_EQ(cut["finish_reason"], "stop");
  EXPECT_EQ(cut["stop_reason"], "ome");
  const Json whole = choice_of({{"stop", Json::array({"<|im_end|>", "\n\n"})}});
  EXPECT_EQ(whole["message"]["content"], R"({"city":"Rome","days":3})");
  EXPECT_EQ(whole["finish_reason"], "stop");
  EXPECT_TRUE(whole["stop_reason"].is_null()) << whole["stop_reason"];
  // A stop token comes only where the form may end.
  const int wanted = ServerRig::tokenizer().encode("Rome").back();
  const Json kept = choice_of({{"stop_token_ids", Json::array({wanted})}});
  EXPECT_TRUE(Json::accept(kept["message"]["content"].get<std::string>())) << kept;
}

TEST(structured_output, grammars_are_kept_within_bounds) {
  OutputGrammars grammars(ServerRig::tokenizer(), 4096);
  OutputForm form;
  form.kind = OutputForm::Kind::kRegex;
  form.field = "regex";
  for (std::size_t i = 0; i < OutputGrammars::kMaxKept + 20; ++i) {
    form.regex = fmt::format("a{}", i);
    EXPECT_NE(grammars.constraint(form, {}, CallRule::kFree), nullptr);
    EXPECT_NE(grammars.constraint(form, {}, CallRule::kFree), nullptr);
  }
  EXPECT_EQ(grammars.kept(), OutputGrammars::kMaxKept);
  EXPECT_EQ(grammars.constraint({}, {}, CallRule::kFree), nullptr);
  EXPECT_EQ(grammars.constraint({}, {{"f", nullptr, false, "tools[0]"}}, CallRule::kFree), nullptr);
}

// Rows of the head behind the vocabulary, with the highest logits: never chosen.
TEST(structured_output, no_id_without_a_token) {
  ServerRig rig(
      [](std::span<const int>, std::span<float> logits) {
        for (std::size_t id = 0; id < logits.size(); ++id) logits[id] = static_cast<float>(id) * 0.01f;
      },
      {.sizes = {.vocab_size = 4160, .max_positions = 4096, .num_slots = 8, .num_pages = 1024, .max_rows = 64}});
  const Answered bound = ask(rig, std::string(kNoThinking) + R"("guided_regex":"[a-z]{1,30}")");
  ASSERT_EQ(bound.status, 200) << bound.error;
  const std::string text = bound.message["content"];
  EXPECT_FALSE(text.empty());
  EXPECT_EQ(text.find_first_not_of("abcdefghijklmnopqrstuvwxyz"), std::string::npos) << text;
}

}  // namespace
}  // namespace tetrad::structured_output_test
