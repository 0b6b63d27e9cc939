// Raw answers to reasoning, content and calls: what comes out, and that it does not depend on where the text was cut.
#include "server/answer_parser.h"

#include <gtest/gtest.h>

#include <ctime>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "support/sanitized.h"

namespace tetrad::answer_parser_test {
namespace {

using Json = nlohmann::ordered_json;

ToolSet offered() {
  ToolSet tools;
  const auto add = [&](const char* name, const char* schema) {
    tools.add(OfferedTool::from_schema(name, Json::parse(schema), "tools[0].function.parameters"));
  };
  add("write", R"({"type": "object", "properties": {"path": {"type": "string"}, "text": {"type": "string"}}})");
  add("add", R"({"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "integer"}, "tags": {"type": "array"}}})");
  add("now", R"({"type": "object", "properties": {}})");
  add("a.b-c", R"({"type": "object"})");
  return tools;
}

const ToolSet& tools() {
  static const ToolSet set = offered();
  return set;
}

AnswerParser parser_for(bool in_reasoning, const ToolSet* set, int max_calls) {
  return AnswerParser({in_reasoning, set, max_calls, [n = 0]() mutable { return fmt::format("id{}", n++); }});
}

// Events in one line, neighbours of a kind joined: R(easoning) C(ontent) [id name args end].
struct Transcript {
  std::string text;
  char open = 0;

  void put(char kind, const std::string& piece) {
    if (open != kind) text += fmt::format("{}{}:", text.empty() ? "" : "|", kind);
    open = kind;
    text += piece;
  }
  void add(const std::vector<AnswerEvent>& events) {
    for (const AnswerEvent& event : events) {
      if (const auto* reasoning = std::get_if<ReasoningDelta>(&event)) put('R', reasoning->text);
      if (const auto* content = std::get_if<ContentDelta>(&event)) put('C', content->text);
      if (const auto* begin = std::get_if<ToolCallBegin>(&event)) put('T', fmt::format("{} {} {} ", begin->index, begin->id, begin->name));
      if (const auto* delta = std::get_if<ToolCallDelta>(&event)) put('T', delta->arguments);
      if (const auto* end = std::get_if<ToolCallEnd>(&event)) {
        put('T', end->complete ? " done" : " cut");
        open = 0;
      }
    }
  }
};

struct Case {
  std::string answer;
  std::string events;
  bool in_reasoning = false;
  bool ended_by_model = true;
  int max_calls = 0;
};

std::string parsed(const Case& c, const std::vector<std::string>& pieces, const ToolSet* set = &tools()) {
  AnswerParser parser = parser_for(c.in_reasoning, set, c.max_calls);
  Transcript transcript;
  for (const std::string& piece : pieces) transcript.add(parser.feed(piece));
  transcript.add(parser.finish(c.ended_by_model));
  return transcript.text;
}

std::string call(const std::string& name, const std::string& parameters) {
  return "<tool_call>\n<function=" + name + ">\n" + parameters + "</function>\n</tool_call>";
}
std::string parameter(const std::string& key, const std::string& value) { return "<parameter=" + key + ">\n" + value + "\n</parameter>\n"; }

std::vector<Case> cases() {
  const std::string spaces(200, ' ');
  const std::string two = call("now", "") + "\n" + call("add", parameter("a", "1.5") + parameter("b", "2"));
  std::vector<Case> all = {
      // Reasoning.
      {"thought\n</think>\n\nanswer", "R:thought|C:answer", true},
      {"thought</think>answer", "R:thought|C:answer", true},
      {"thought without end", "R:thought without end", true},
      {"cut </thin", "R:cut </thin", true, false},
      {"</think>answer", "C:answer", true},
      {"\n\n</think>\n\n", "", true},
      {"a\n</think>\n\n    code", "R:a|C:    code", true},
      {"answer", "C:answer"},
      {"answer\n", "C:answer\n"},
      {"", ""},
      {"<think>\nthought\n</think>\n\nanswer", "R:thought|C:answer"},
      {"<think>\nthought\n</think>\n\nanswer", "R:thought|C:answer", true},
      {"</think>\n\nanswer", "C:answer"},
      {"a < b <think and </think b", "C:a < b <think and </think b"},
      {"say <think> and </think> inline", "C:say <think> and </think> inline"},
      {"one\n<think>\ntwo\n</think>\nthree", "C:one|R:two|C:three"},
      {"a</think>b</think>c", "R:a|C:b</think>c", true},
      {"a </thinking> b</think>c", "R:a </thinking> b|C:c", true},
      {"a" + spaces + "b" + spaces + "</think>" + spaces + "c", "", true},
      {"\xF0\x9F\x98\x80 \xC3\xA9\n</think>\n\n\xEF\xBF\xBD\xE4\xBD\xA0", "R:\xF0\x9F\x98\x80 \xC3\xA9|C:\xEF\xBF\xBD\xE4\xBD\xA0", true},
      // Calls inside reasoning are reasoning.
      {"plan " + call("now", "") + "\n</think>\n\nok", "R:plan " + call("now", "") + "|C:ok", true},
      {"plan " + call("now", ""), "R:plan " + call("now", ""), true},
      {"t\n</think>\n\n" + call("now", "") + "\n", "R:t|T:0 id0 now {} done", true},
      // Calls.
      {call("now", ""), "T:0 id0 now {} done"},
      {"text\n\n" + call("write", parameter("path", "a.txt") + parameter("text", "x\ny")),
       R"(C:text|T:0 id0 write {"path": "a.txt", "text": "x\ny"} done)"},
      {two, R"(T:0 id0 now {} done|T:1 id1 add {"a": 1.5, "b": 2} done)"},
      {"one\n" + call("now", "") + "\ntwo\n" + call("now", "") + "\nthree", "C:one|T:0 id0 now {} done|C:two|T:1 id1 now {} done|C:three"},
      {"<tool_call><function=now></function></tool_call>", "T:0 id0 now {} done"},
      {"<tool_call><function=add><parameter=a>1</parameter><parameter=b> 2 </parameter></function></tool_call>",
       R"(T:0 id0 add {"a": 1, "b": 2} done)"},
      {call("add", parameter("tags", "[1, {\"k\": \"</parameter>\"}]")), R"(T:0 id0 add {"tags": [1, {"k": "</parameter>"}]} done)"},
      {call("a.b-c", parameter("any", "{\"x\": 1}") + parameter("s", "plain")), R"(T:0 id0 a.b-c {"any": {"x": 1}, "s": "plain"} done)"},
      {"Let me see.\n<function=now>\n</function>\n</tool_call>\n", "C:Let me see.|T:0 id0 now {} done"},
      {"Let me see.\n<function=now>\n</function>", "C:Let me see.|T:0 id0 now {} done"},
      // Values.
      {call("write", parameter("text", "")), R"(T:0 id0 write {"text": ""} done)"},
      {call("write", "<parameter=text>\n</parameter>\n"), R"(T:0 id0 write {"text": ""} done)"},
      {call("write", parameter("text", "\n\nx\n\n")), R"(T:0 id0 write {"text": "\n\nx\n\n"} done)"},
      {call("write", parameter("text", "a </parameter> b\n</parameter>\nc </function> d <parameter=text> e </tool_call> $ \"q\" \\ \x01")),
       R"(T:0 id0 write {"text": "a </parameter> b\n</parameter>\nc </function> d <parameter=text> e </tool_call> $ \"q\" \\ \u0001"} done)"},
      {call("write", parameter("text", "<a>\n  <b/>\n</a>") + parameter("path", "42")),
       R"(T:0 id0 write {"text": "<a>\n  <b/>\n</a>", "path": "42"} done)"},
      {call("write", parameter("mode", "17") + parameter("text", "x")), R"(T:0 id0 write {"mode": "17", "text": "x"} done)"},
      {call("write", parameter("t\"\\", "x")), R"(T:0 id0 write {"t\"\\": "x"} done)"},
      {"<tool_call>\n<function=write>\n<parameter=text>\nx\n</function>\n</tool_call> after",
       R"(T:0 id0 write {"text": "x"} done|C: after)"},
      // What a form with mistakes holds is not lost.
      {"<tool_call>\n<function=write>\njunk  and more\n<parameter=text>\nx\n</parameter>\n</function>\n</tool_call>",
       R"(T:0 id0 write {"text": "x"} done|C:junk  and more)"},
      {"<tool_call>\n<function=now>\n</tool_call>\n<tool_call>\n<function=now>\n<function=now>\n</function>",
       "T:0 id0 now {} done|T:1 id1 now {} done|T:2 id2 now {} done"},
      {"<tool_call>\n<function=write>\n<parameter=>\nx</parameter></function>", "T:0 id0 write {} done|C:<parameter=>\nx</parameter>"},
      {"<tool_call>\n<function=write>\n<parameter=a\nb>x</function>", "T:0 id0 write {} done|C:<parameter=a\nb>x"},
      {"<tool_call>\n<function=write>\n<parameter=" + std::string(300, 'k') + ">x</function>",
       "T:0 id0 write {} done|C:<parameter=" + std::string(300, 'k') + ">x"},
      // What is no call is text.
      {call("gone", parameter("x", call("now", "").substr(12))) + "\nafter",
       "C:" + call("gone", parameter("x", call("now", "").substr(12))) + "\nafter"},
      {call("gone", parameter("x", "1")) + "\n" + call("now", "") + " end",
       "C:" + call("gone", parameter("x", "1")) + "|T:0 id0 now {} done|C: end"},
      {"<tool_call>\n<function=nowhere>", "C:<tool_call>\n<function=nowhere>"},
      {"<tool_call>\n<function=nowhere>\n" + call("now", ""), "C:<tool_call>\n<function=nowhere>\n|T:0 id0 now {} done"},
      {"Write <tool_call> to begin, </tool_call> to end.", "C:Write <tool_call> to begin, </tool_call> to end."},
      {"`<function=nope>` and <function=no", "C:`<function=nope>` and <function=no"},
      {"<tool_call>" + spaces + "<function=now></function>", "C:<tool_call>" + spaces.substr(0, 192) + "|T:0 id0 now {} done"},
      {"<tool_call>\n{\"name\": \"now\"}\n</tool_call>", "C:<tool_call>\n{\"name\": \"now\"}\n</tool_call>"},
      {"text <tool_ca", "C:text <tool_ca", false, false},
      {"<<<tool_call>>><", "C:<<<tool_call>>><"},
      // Cut off.
      {"<tool_call>\n<function=write>\n<parameter=text>\nhello <", R"(T:0 id0 write {"text": "hello < cut)", false, false},
      {"<tool_call>\n<function=write>\n<parameter=text>\nhello\n", R"(T:0 id0 write {"text": "hello\n cut)"},
      {"<tool_call>\n<function=write>\n<parameter=text>\nhello\n</parameter>\n",
       R"(T:0 id0 write {"text": "hello" done)" + std::string(1, '}'), false, true},
      {"<tool_call>\n<function=write>\n<parameter=text>\nhello\n</parameter>\n", R"(T:0 id0 write {"text": "hello" cut)", false, false},
      {"<tool_call>\n<function=add>\n<parameter=tags>\n[1, 2", R"(T:0 id0 add {"tags": [1, 2 cut)", false, false},
      {"<tool_call>\n<function=now>\n", "T:0 id0 now  cut", false, false},
      // One call at most.
      {two + " and more", "T:0 id0 now {} done", false, true, 1},
      {"a " + two, R"(C:a|T:0 id0 now {} done|T:1 id1 add {"a": 1.5, "b": 2} done)", false, true, 2},
  };
  for (Case& c : all)
    if (c.events.ends_with(" done}")) c.events = c.events.substr(0, c.events.size() - 6) + "} done";
  return all;
}

TEST(answer_parser, answers_become_events) {
  for (const Case& c : cases()) {
    if (!c.events.empty() || c.answer.size() < 100) {
      EXPECT_EQ(parsed(c, {c.answer}), c.events) << c.answer;
    }
  }
}

TEST(answer_parser, no_cut_changes_what_comes_out) {
  for (const Case& c : cases()) {
    const std::string whole = parsed(c, {c.answer});
    for (std::size_t cut = 0; cut <= c.answer.size(); ++cut)
      ASSERT_EQ(parsed(c, {c.answer.substr(0, cut), c.answer.substr(cut)}), whole) << c.answer << "\ncut at " << cut;
    std::vector<std::string> bytes;
    for (const char byte : c.answer) bytes.emplace_back(1, byte);
    ASSERT_EQ(parsed(c, bytes), whole) << c.answer;
  }
}

TEST(answer_parser, without_tools_nothing_is_a_call) {
  const ToolSet none;
  for (const ToolSet* set : {static_cast<const ToolSet*>(nullptr), &none})
    EXPECT_EQ(parsed({call("now", "") + "\nx", ""}, {call("now", "") + "\nx"}, set), "C:" + call("now", "") + "\nx");
}

struct BoundCase {
  std::string answer;
  std::optional<std::size_t> content_at;
  std::string events;
  ContentRule rule = ContentRule::kVerbatim;
};

TEST(answer_parser, bound_content_begins_where_it_is_told_and_stays_as_it_is) {
  const std::string quoted = "t </think>\n\n " + call("now", "") + "</think> u\n</think>\n\n";
  const std::string thought = "t </think>\n\n " + call("now", "") + "</think> u";
  const BoundCase all[] = {
      {quoted + "\n <think>x</think>\n", quoted.size(), "R:" + thought + "|C:\n <think>x</think>\n"},
      {quoted + call("now", ""), quoted.size(), "R:" + thought + "|C:" + call("now", "")},
      {quoted + call("now", ""), quoted.size(), "R:" + thought + "|T:0 id0 now {} done", ContentRule::kVerbatimOrCalls},
      {quoted + call("now", ""), quoted.size(), "R:" + thought + "|T:0 id0 now {} done", ContentRule::kFree},
      {quoted + "{\"" + call("now", "") + "\"}", quoted.size(), "R:" + thought + "|C:{\"" + call("now", "") + "\"}",
       ContentRule::kVerbatimOrCalls},
      {"</think>\n\n x", 10, "C: x"},
      {"</think>x", 8, "C:x"},
      {"t\n</think>\n\n\n\nx", 12, "R:t|C:\n\nx"},
      // Cut before the content.
      {"t\n</think>\n", std::nullopt, "R:t"},
      {"t\n</think>\n\n", 12, "R:t"},
      {"t </think> u", std::nullopt, "R:t </think> u"},
      {"t </thi", std::nullopt, "R:t </thi"},
  };
  for (const BoundCase& c : all) {
    for (const std::size_t piece : {std::size_t{1}, std::size_t{3}, std::size_t{1000}}) {
      AnswerParser parser({true, &tools(), 0, [n = 0]() mutable { return fmt::format("id{}", n++); }, c.rule, true});
      Transcript transcript;
      for (std::size_t at = 0; at < c.answer.size(); at += piece) {
        if (c.content_at && at <= *c.content_at && *c.content_at < at + piece) parser.content_begins_at(*c.content_at);
        transcript.add(parser.feed(c.answer.substr(at, piece)));
      }
      transcript.add(parser.finish(true));
      EXPECT_EQ(transcript.text, c.events) << piece << " " << c.answer;
    }
  }
  AnswerParser parser({false, nullptr, 0, {}, ContentRule::kVerbatim});
  const std::vector<AnswerEvent> events = parser.feed(" \n<");  // nothing is held back
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(std::get<ContentDelta>(events[0]).text, " \n<");
}

TEST(answer_parser, text_is_held_back_only_while_it_may_be_a_tag) {
  AnswerParser parser = parser_for(false, &tools(), 0);
  std::string fed, shown;
  const auto feed = [&](const std::string& piece) {
    fed += piece;
    for (const AnswerEvent& event : parser.feed(piece)) shown += std::get<ContentDelta>(event).text;
    return fed.size() - shown.size();
  };
  EXPECT_EQ(feed("hello"), 0u);
  EXPECT_EQ(feed(" "), 1u);
  EXPECT_EQ(feed("a <"), 2u);
  EXPECT_EQ(feed("b"), 0u);
  EXPECT_EQ(feed("<tool_call>\n<function=w"), 23u);
  EXPECT_EQ(feed("x"), 0u);  // no function is called w...x: text from here on
  EXPECT_EQ(feed("</tool_call>\n\n"), 2u);
  EXPECT_EQ(feed("<function=add"), 15u);
  EXPECT_EQ(feed("e"), 0u);
  EXPECT_EQ(feed(std::string(1000, ' ')), 1000 % kMaxTagSpace);
}

TEST(answer_parser, strings_are_passed_on_as_they_arrive) {
  AnswerParser parser = parser_for(false, &tools(), 0);
  parser.feed("<tool_call>\n<function=write>\n<parameter=text>\n");
  for (const std::string word : {"alpha", " beta", " gamma < delta"}) {
    const std::vector<AnswerEvent> events = parser.feed(word);
    ASSERT_EQ(events.size(), 1u);
    EXPECT_EQ(std::get<ToolCallDelta>(events[0]).arguments, word);
  }
  EXPECT_TRUE(parser.feed("\n</parameter>\n").empty());
  EXPECT_EQ(std::get<ToolCallDelta>(parser.feed("</function>")[0]).arguments, "\"}");
}

TEST(answer_parser, says_what_state_it_is_in) {
  AnswerParser parser = parser_for(true, &tools(), 1);
  EXPECT_TRUE(parser.in_reasoning());
  parser.feed("x</think>");
  EXPECT_FALSE(parser.in_reasoning());
  parser.feed(call("now", ""));
  EXPECT_TRUE(parser.enough());
  EXPECT_EQ(parser.complete_calls(), 1);
  EXPECT_TRUE(parser.feed("more").empty());
  EXPECT_TRUE(parser.finish(true).empty());
  EXPECT_FALSE(parser.has_incomplete_call());

  AnswerParser cut = parser_for(false, &tools(), 1);
  cut.feed("<tool_call>\n<function=now>\n");
  cut.finish(false);
  EXPECT_TRUE(cut.has_incomplete_call());
  EXPECT_FALSE(cut.enough());
  EXPECT_EQ(cut.complete_calls(), 0);
}

TEST(answer_parser, large_arguments_arrive_whole) {
  std::string value;
  for (int i = 0; i < 700; ++i) value += fmt::format("line {}: \"quoted\" \\ back\\slash <tag> $x\n", i);
  for (std::size_t chunk = 1; chunk <= 8; ++chunk) {
    const std::string answer = call("write", parameter("text", value));
    AnswerParser parser = parser_for(false, &tools(), 0);
    std::string arguments;
    const auto collect = [&](const std::vector<AnswerEvent>& events) {
      for (const AnswerEvent& event : events)
        if (const auto* delta = std::get_if<ToolCallDelta>(&event)) arguments += delta->arguments;
    };
    for (std::size_t at = 0; at < answer.size(); at += chunk) collect(parser.feed(answer.substr(at, chunk)));
    collect(parser.finish(true));
    EXPECT_EQ(Json::parse(arguments)["text"].get<std::string>(), value);
  }
}

TEST(answer_parser, hostile_answers_take_linear_time) {
  constexpr std::size_t kLength = testing::kSanitized ? 400'000 : 2'000'000;
  for (const std::string unit : {"<", "<tool_call>", "<function=", "<tool_call><function=write>", "</parameter>", " ", "\n", "<think>",
                                 "</think>", "<function=write><parameter=text>", "<parameter=", "</function>"}) {
    std::string answer;
    while (answer.size() < kLength) answer += unit;
    const std::clock_t start = std::clock();  // processor time: other work on the machine does not count
    AnswerParser parser = parser_for(false, &tools(), 0);
    parser.feed(answer);
    parser.finish(true);
    EXPECT_LT((std::clock() - start) / CLOCKS_PER_SEC, 30) << unit;  // quadratic time is many minutes
  }
}

}  // namespace
}  // namespace tetrad::answer_parser_test
