// The shape of conversations, and bounded reading of JSON.
#include <gtest/gtest.h>

#include <string>

#include "text/chat_template.h"
#include "text/json_bounded.h"

namespace tetrad::conversation_test {
namespace {

using Json = nlohmann::ordered_json;

Json variables(const std::string& text) { return conversation_variables(parse_json_bounded(text, "test")); }

std::string error_of(const std::string& text, int max_depth = 64) {
  try {
    conversation_variables(parse_json_bounded(text, "test", max_depth));
  } catch (const InputError& error) {
    return error.what();
  }
  return "accepted";
}

std::string with_message(const std::string& message) { return R"({"messages": [{"role": "user", "content": "q"}, )" + message + "]}"; }

std::string with_arguments(const std::string& arguments) {
  return with_message(R"({"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f", "arguments": )" + arguments +
                      "}}]}");
}

Json arguments_of(const std::string& arguments) {
  return variables(with_arguments(arguments))["messages"][1]["tool_calls"][0]["function"]["arguments"];
}

TEST(Conversation, FlagsBecomeVariables) {
  const Json v = variables(R"({"messages": [], "tools": [{"name": "f"}], "flags": {"enable_thinking": false, "x": null}})");
  EXPECT_EQ(v.dump(), R"({"messages":[],"tools":[{"name":"f"}],"enable_thinking":false,"x":null})");
  EXPECT_EQ(variables(R"({"messages": [], "tools": null, "flags": null})").dump(), R"({"messages":[],"tools":null})");
}

TEST(Conversation, TheTopLevelIsChecked) {
  EXPECT_EQ(error_of("[]"), "conversation: expected an object with \"messages\", got array");
  EXPECT_EQ(error_of("{}"), "messages: missing: a conversation has a list of messages");
  EXPECT_EQ(error_of(R"({"messages": {}})"), "messages: expected a list, got object");
  EXPECT_EQ(error_of(R"({"messages": [], "message": 1})"), "message: unknown key; a conversation has messages, tools and flags");
  EXPECT_EQ(error_of(R"({"messages": [], "flags": []})"), "flags: expected an object, got array");
  EXPECT_EQ(error_of(R"({"messages": [], "flags": {"tools": []}})"), "flags.tools: this variable is given at the top level");
}

TEST(Conversation, MessagesAreChecked) {
  EXPECT_EQ(error_of(with_message("5")), "messages[1]: expected an object, got number");
  EXPECT_EQ(error_of(with_message("{}")), "messages[1].role: missing: every message has a role");
  EXPECT_EQ(error_of(with_message(R"({"role": null})")), "messages[1].role: expected a string, got null");
  EXPECT_EQ(error_of(with_message(R"({"role": "user", "content": 5})")),
            "messages[1].content: expected a string, null or a list of parts, got number");
  EXPECT_EQ(error_of(with_message(R"({"role": "user", "content": {"text": "a"}})")),
            "messages[1].content: expected a string, null or a list of parts, got object");
  EXPECT_EQ(error_of(with_message(R"({"role": "user", "content": [{"text": "a"}, "b"]})")),
            "messages[1].content[1]: expected an object, got string");
  EXPECT_EQ(error_of(with_message(R"({"role": "user", "content": [{"text": 5}]})")),
            "messages[1].content[0].text: expected a string, got number");
  EXPECT_EQ(error_of(with_message(R"({"role": "assistant", "reasoning_content": []})")),
            "messages[1].reasoning_content: expected a string, got array");
  for (const char* content : {"\"a\"", "null", "[]", R"([{"type": "image"}])"}) {
    EXPECT_EQ(error_of(with_message(std::string(R"({"role": "tool", "reasoning_content": null, "content": )") + content + "}")),
              "accepted");
  }
  EXPECT_EQ(error_of(with_message(R"({"role": "assistant"})")), "accepted");
}

TEST(Conversation, ArgumentsBecomeObjects) {
  EXPECT_EQ(arguments_of(R"({"a": 1})").dump(), R"({"a":1})");
  EXPECT_EQ(arguments_of(R"("{\"b\": [1, {\"c\": null}], \"a\": 1}")").dump(), R"({"b":[1,{"c":null}],"a":1})");
  EXPECT_EQ(arguments_of(R"("")").dump(), "{}");
  EXPECT_EQ(arguments_of(R"(" \n")").dump(), "{}");
  EXPECT_EQ(arguments_of(R"("{}")").dump(), "{}");
  EXPECT_EQ(arguments_of("null").dump(), "null");
}

TEST(Conversation, BadArgumentsNameTheirPath) {
  const std::string path = "messages[1].tool_calls[0].function.arguments: ";
  EXPECT_EQ(error_of(with_arguments(R"("[1]")")), path + "expected the JSON text of an object, got array");
  EXPECT_EQ(error_of(with_arguments(R"("5")")), path + "expected the JSON text of an object, got number");
  EXPECT_EQ(error_of(with_arguments("[1]")), path + "expected an object or the JSON text of one, got array");
  EXPECT_EQ(error_of(with_arguments(R"("{\"a\": ")")).find(path + "not valid JSON at byte 7"), 0u);
  EXPECT_EQ(error_of(with_arguments("\"" + std::string(100000, '[') + "\"")), path + "the JSON nests more than 64 deep");
}

TEST(Conversation, ToolCallsAndToolsAreChecked) {
  const auto calls = [](const std::string& value) {
    return error_of(with_message(R"({"role": "assistant", "tool_calls": )" + value + "}"));
  };
  EXPECT_EQ(calls("null"), "accepted");
  EXPECT_EQ(calls("{}"), "messages[1].tool_calls: expected a list of tool calls, got object");
  EXPECT_EQ(calls("[5]"), "messages[1].tool_calls[0]: expected an object, got number");
  EXPECT_EQ(calls("[{}]"), "messages[1].tool_calls[0].name: missing: a tool call names its function");
  EXPECT_EQ(calls(R"([{"function": null}])"), "messages[1].tool_calls[0].function: expected an object, got null");
  EXPECT_EQ(calls(R"([{"function": {"name": 1}}])"), "messages[1].tool_calls[0].function.name: expected a string, got number");
  const auto tools = [](const std::string& value) { return error_of(R"({"messages": [], "tools": )" + value + "}"); };
  EXPECT_EQ(tools("[]"), "accepted");
  EXPECT_EQ(tools("{}"), "tools: expected a list or null, got object");
  EXPECT_EQ(tools("[5]"), "tools[0]: expected an object, got number");
  EXPECT_EQ(tools(R"([{"type": "function"}])"), "tools[0].name: missing: a tool has a name");
  EXPECT_EQ(tools(R"([{"function": {}}])"), "tools[0].function.name: missing: a tool has a name");
}

TEST(JsonBounded, NestingIsBounded) {
  const auto nested = [](int depth) {
    return std::string(static_cast<std::size_t>(depth), '[') + std::string(static_cast<std::size_t>(depth), ']');
  };
  EXPECT_NO_THROW(parse_json_bounded(nested(64), "t"));
  EXPECT_THROW(parse_json_bounded(nested(65), "t"), InputError);
  EXPECT_THROW(parse_json_bounded(nested(100000), "t"), InputError);
  EXPECT_THROW(parse_json_bounded(std::string(100000, '['), "t"), InputError);
  EXPECT_NO_THROW(parse_json_bounded(nested(3), "t", 3));
  EXPECT_THROW(parse_json_bounded(nested(4), "t", 3), InputError);
}

TEST(JsonBounded, KeepsOrderAndTakesTheLastOfEqualKeys) {
  EXPECT_EQ(parse_json_bounded(R"({"b": 1, "a": 2, "b": 3})", "t").dump(), R"({"b":3,"a":2})");
  std::string many = "{";
  for (int i = 0; i < 200000; ++i) many += "\"k" + std::to_string(i % 100000) + "\":" + std::to_string(i) + ",";
  const Json parsed = parse_json_bounded(many + "\"z\":{}}", "t");
  ASSERT_EQ(parsed.size(), 100001u);
  EXPECT_EQ(parsed.begin().key(), "k0");
  EXPECT_EQ(parsed.begin().value(), 100000);
  EXPECT_EQ((--parsed.end()).key(), "z");
}

TEST(JsonBounded, EqualKeysCanBeRefused) {
  const auto parse = [](const std::string& text) { return parse_json_bounded(text, "t", 64, EqualKeys::kRefused); };
  EXPECT_EQ(parse(R"({"a": {"b": 1}, "b": {"a": 2}})").size(), 2u);
  EXPECT_THROW(parse(R"({"a": 1, "\u0061": 2})"), InputError);
  EXPECT_THROW(parse(R"([{"x": {"a": null, "b": 1, "a": null}}])"), InputError);
  std::string many = "{";
  for (int i = 0; i < 100; ++i) many += "\"k" + std::to_string(i) + "\":0,";
  EXPECT_EQ(parse(many + "\"k\":0}").size(), 101u);
  EXPECT_THROW(parse(many + "\"k50\":0}"), InputError);
}

TEST(JsonBounded, RefusesWhatItCannotKeep) {
  const auto error = [](const char* text) {
    try {
      parse_json_bounded(text, "file.json");
    } catch (const InputError& e) {
      return std::string(e.what());
    }
    return std::string("accepted");
  };
  EXPECT_EQ(error("18446744073709551615"), "accepted");
  EXPECT_EQ(error("[18446744073709551616]"), "file.json: the integer 18446744073709551616 is out of range");
  EXPECT_EQ(error("-9223372036854775809"), "file.json: the integer -9223372036854775809 is out of range");
  EXPECT_EQ(error("{\"a\": 1} x").find("file.json: not valid JSON at byte"), 0u);
  EXPECT_EQ(error("").find("file.json: not valid JSON at byte"), 0u);
  EXPECT_EQ(error("\"\xff\"").find("file.json: not valid JSON at byte"), 0u);
  EXPECT_EQ(error("\"\\ud800\"").find("file.json: not valid JSON at byte"), 0u);
  EXPECT_EQ(error("1e999").find("file.json: not valid JSON at byte"), 0u);
}

}  // namespace
}  // namespace tetrad::conversation_test
