// /v1/completions and /v1/messages as values.
#include "server/completion_request.h"

#include <gtest/gtest.h>

#include <string>

#include "server/anthropic_request.h"
#include "server/api_error.h"

namespace tetrad::api_requests_test {
namespace {

using Json = nlohmann::ordered_json;

RequestContext context() {
  RequestContext c;
  c.stop_ids = {9};
  c.vocab_size = 4096;
  return c;
}

template <class Parse>
std::string param_of(Parse parse) {
  try {
    parse();
  } catch (const RequestError& error) {
    EXPECT_EQ(error.error().status, 400);
    return error.error().param;
  }
  return "accepted";
}

CompletionRequest completion(const std::string& prompt, const std::string& fields = "") {
  return parse_completion_request(R"({"model": "m", "prompt": )" + prompt + fields + "}", context());
}
std::string refused(const std::string& prompt, const std::string& fields = "") {
  return param_of([&] { completion(prompt, fields); });
}

TEST(completion_request, prompts_have_four_shapes) {
  EXPECT_EQ(completion("\"a\"").prompts, (std::vector<CompletionPrompt>{"a"}));
  EXPECT_EQ(completion(R"(["a", "b"])").prompts, (std::vector<CompletionPrompt>{"a", "b"}));
  EXPECT_EQ(completion("[1, 2.0, 4095]").prompts, (std::vector<CompletionPrompt>{std::vector<int>{1, 2, 4095}}));
  EXPECT_EQ(completion("[[1], [2, 3]]").prompts, (std::vector<CompletionPrompt>{std::vector<int>{1}, std::vector<int>{2, 3}}));
}

TEST(completion_request, malformed_prompts_name_index_and_value) {
  for (const char* prompt : {"null", "5", "{}", "[]", "true"}) EXPECT_EQ(refused(prompt), "prompt") << prompt;
  for (const char* id : {"-1", "4096", "2147483648", "4294967297", "1.5", "\"5\"", "null", "[1]", "1e300"})
    EXPECT_EQ(refused(fmt::format("[0, {}]", id)), "prompt[1]") << id;
  for (const char* id : {"-1", "4096", "4294967297", "\"5\"", "null", "[1]"})
    EXPECT_EQ(refused(fmt::format("[[0], [1, {}]]", id)), "prompt[1][1]") << id;
  EXPECT_EQ(refused("[[1], []]"), "prompt[1]");
  EXPECT_EQ(refused(R"(["a", 1])"), "prompt[1]");
  EXPECT_EQ(refused(R"([[1], "a"])"), "prompt[1]");
  EXPECT_EQ(refused("[null]"), "prompt[0]");
  std::string many = "\"a\"";
  for (std::size_t i = 0; i < kMaxPrompts; ++i) many += ",\"a\"";
  EXPECT_EQ(refused("[" + many + "]"), "prompt");
  try {
    completion("[0, 4294967297]");
    ADD_FAILURE();
  } catch (const RequestError& error) {
    EXPECT_STREQ(error.what(), "prompt[1]: must be between 0 and 4095, got 4294967297");
  }
}

TEST(completion_request, fields) {
  const CompletionRequest r =
      completion("\"a\"", R"(, "logprobs": 5, "echo": false, "n": 2, "stop": "x", "stream": true, "max_tokens": 7, "x": 1)");
  EXPECT_EQ(r.engine.generation.sampling.logprobs, 5);
  EXPECT_EQ(r.engine.num_choices, 2);
  EXPECT_EQ(r.engine.generation.max_tokens, 7);
  EXPECT_TRUE(r.delivery.stream);
  EXPECT_EQ(r.unknown_fields, (std::vector<std::string>{"x"}));
  EXPECT_TRUE(completion("\"a\"", R"(, "echo": true)").echo);
  EXPECT_EQ(refused("\"a\"", R"(, "suffix": "s")"), "suffix");
  EXPECT_EQ(refused("\"a\"", R"(, "best_of": 3)"), "best_of");
  EXPECT_EQ(refused("\"a\"", R"(, "logprobs": 21)"), "logprobs");
  EXPECT_EQ(refused("\"a\"", R"(, "logprobs": true)"), "logprobs");
  EXPECT_EQ(refused("\"a\"", R"(, "max_tokens": -1)"), "max_tokens");
  EXPECT_EQ(completion("\"a\"", R"(, "response_format": {"type": "json_object"})").form.kind, OutputForm::Kind::kJsonObject);
  EXPECT_EQ(completion("\"a\"", R"(, "guided_regex": "x")").form.regex, "x");
  EXPECT_EQ(refused("\"a\"", R"(, "grammar": "x")"), "grammar");
}

TEST(completion_request, scores_of_prompts) {
  const auto of = [](const std::string& fields) { return completion("[1]", fields); };
  EXPECT_EQ(of(R"(, "echo": true)").engine.generation.prompt_logprobs, -1);
  EXPECT_EQ(of(R"(, "logprobs": 1)").engine.generation.prompt_logprobs, -1);
  const CompletionRequest echo = of(R"(, "echo": true, "logprobs": 1, "max_tokens": 1)");
  EXPECT_EQ(echo.engine.generation.prompt_logprobs, 1);
  EXPECT_FALSE(echo.prompt_logprobs);
  EXPECT_FALSE(echo.engine.generation.prompt_only);
  const CompletionRequest both = of(R"(, "echo": true, "logprobs": 1, "prompt_logprobs": 4, "max_tokens": 0)");
  EXPECT_EQ(both.engine.generation.prompt_logprobs, 4);
  EXPECT_EQ(both.prompt_logprobs, 4);
  EXPECT_TRUE(both.engine.generation.prompt_only);
  EXPECT_TRUE(of(R"(, "max_tokens": 0)").engine.generation.prompt_only);
  EXPECT_EQ(of(R"(, "echo": true, "logprobs": 5, "prompt_logprobs": 0, "stream": false)").engine.generation.prompt_logprobs, 5);
  EXPECT_TRUE(of(R"(, "echo": true, "logprobs": 5, "stream": true)").delivery.stream);
  EXPECT_EQ(refused("[1]", R"(, "prompt_logprobs": 5, "stream": true)"), "prompt_logprobs");
}

ChatRequest anthropic(const std::string& fields, const std::string& messages = R"([{"role": "user", "content": "q"}])") {
  return parse_anthropic_request(R"({"model": "m", "max_tokens": 10000, "messages": )" + messages + fields + "}", context());
}
std::string anthropic_refused(const std::string& fields, const std::string& messages = R"([{"role": "user", "content": "q"}])") {
  return param_of([&] { anthropic(fields, messages); });
}

TEST(anthropic_request, fields) {
  const ChatRequest r = anthropic(
      R"(, "temperature": 0.5, "top_k": 3, "top_p": 0.9, "stop_sequences": ["a"], "stream": true, "metadata": {"user_id": "u"}, "betas": [])");
  EXPECT_EQ(r.engine.generation.max_tokens, 10000);
  EXPECT_EQ(r.engine.generation.sampling.temperature, 0.5);
  EXPECT_EQ(r.engine.generation.sampling.top_k, 3);
  EXPECT_EQ(r.engine.generation.stop_strings, (std::vector<std::string>{"a"}));
  EXPECT_EQ(r.engine.generation.stop_ids, (std::vector<int>{9}));
  EXPECT_TRUE(r.delivery.stream);
  EXPECT_EQ(r.unknown_fields, (std::vector<std::string>{"betas"}));
  EXPECT_EQ(r.variables.dump(), R"({"messages":[{"role":"user","content":"q"}],"add_generation_prompt":true})");
  EXPECT_EQ(param_of([] { parse_anthropic_request(R"({"messages": [{"role": "user", "content": "q"}]})", context()); }), "max_tokens");
  EXPECT_NO_THROW(parse_anthropic_count_request(R"({"messages": [{"role": "user", "content": "q"}]})", context()));
  EXPECT_EQ(anthropic_refused(R"(, "stop_sequences": "a")"), "stop_sequences");
  EXPECT_EQ(anthropic_refused(R"(, "max_tokens": 5)"), "");  // given twice
  EXPECT_EQ(anthropic_refused(R"(, "mcp_servers": [{}])"), "mcp_servers");
}

TEST(anthropic_request, caches_are_kept_apart_and_foreign_fields_refused) {
  const ChatRequest salted = anthropic(R"(, "cache_salt": "tenant", "cache_prompt": false)");
  EXPECT_EQ(salted.engine.cache_salt, "tenant");
  EXPECT_FALSE(salted.engine.reuse_prefix);
  EXPECT_TRUE(anthropic("").engine.reuse_prefix);
  for (const char* field : {"response_format", "structured_outputs", "regex", "n", "stop", "text", "format", "ebnf", "response_schema"})
    EXPECT_EQ(anthropic_refused(fmt::format(R"(, "{}": {{"a": 1}})", field)), field);
  EXPECT_EQ(anthropic_refused(R"(, "output_config": {"json_schema": {"type": "null"}})"), "output_config.json_schema");
  EXPECT_EQ(anthropic(R"(, "output_config": {"task_budget": 1})").unknown_fields, std::vector<std::string>{"output_config.task_budget"});
}

TEST(anthropic_request, a_last_message_of_the_assistant_is_continued) {
  const auto of = [](const std::string& last) { return anthropic("", R"([{"role": "user", "content": "q"}, )" + last + "]"); };
  const ChatRequest r = of(R"({"role": "assistant", "content": "The answer is"})");
  EXPECT_TRUE(r.continues_last);
  EXPECT_EQ(r.variables["add_generation_prompt"], false);
  EXPECT_FALSE(of(R"({"role": "user", "content": "q"})").continues_last);
  EXPECT_FALSE(of(R"({"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "f", "input": {}}]})").continues_last);
}

TEST(anthropic_request, blocks_become_messages) {
  const ChatRequest r = anthropic(
      R"(, "system": [{"type": "text", "text": "s1", "cache_control": {"type": "ephemeral"}}, {"type": "text", "text": "s2"}])", R"([
      {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
      {"role": "assistant", "content": [{"type": "thinking", "thinking": "t", "signature": "x"}, {"type": "redacted_thinking", "data": "z"},
        {"type": "text", "text": "c"}, {"type": "tool_use", "id": "1", "name": "f", "input": {"x": [1]}}, {"type": "tool_use", "id": "2", "name": "g", "input": {}}]},
      {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "2", "content": "r2", "is_error": true},
        {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "r1"}]}, {"type": "text", "text": "next"}]}])");
  EXPECT_EQ(
      r.variables["messages"].dump(),
      R"([{"role":"system","content":"s1\n\ns2"},{"role":"user","content":"a\n\nb"},)"
      R"({"role":"assistant","content":"c","reasoning_content":"t","tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":{"x":[1]}}},)"
      R"({"id":"2","type":"function","function":{"name":"g","arguments":{}}}]},)"
      R"({"role":"tool","content":"r1","tool_call_id":"1"},{"role":"tool","content":"Error: r2","tool_call_id":"2"},{"role":"user","content":"next"}])");
  EXPECT_FALSE(r.merged_system_messages);
}

TEST(anthropic_request, malformed_messages_name_their_path) {
  EXPECT_EQ(anthropic_refused("", "[]"), "messages");
  EXPECT_EQ(anthropic_refused("", "{}"), "messages");
  EXPECT_EQ(anthropic_refused("", "[5]"), "messages[0]");
  EXPECT_EQ(anthropic_refused("", R"([{"role": "tool", "content": "x"}])"), "messages[0].role");
  EXPECT_EQ(anthropic_refused("", R"([{"role": "user"}])"), "messages[0].content");
  EXPECT_EQ(anthropic_refused("", R"([{"role": "user", "content": 5}])"), "messages[0].content");
  EXPECT_EQ(anthropic_refused("", R"([{"role": "user", "content": []}])"), "messages[0].content");
  EXPECT_EQ(anthropic_refused("", R"([{"role": "user", "content": [{}]}])"), "messages[0].content[0].type");
  EXPECT_EQ(anthropic_refused("", R"([{"role": "user", "content": [{"type": "image", "source": {}}]}])"), "messages[0].content[0].type");
  EXPECT_EQ(anthropic_refused("", R"([{"role": "user", "content": [{"type": "tool_result"}]}])"), "messages[0].content[0].tool_use_id");
  EXPECT_EQ(anthropic_refused(
                "", R"([{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": [{"type": "image"}]}]}])"),
            "messages[0].content[0].content[0].type");
  EXPECT_EQ(anthropic_refused("", R"([{"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "f", "input": "{}"}]}])"),
            "messages[0].content[0].input");
  EXPECT_EQ(anthropic_refused(R"(, "system": 5)"), "system");
  EXPECT_EQ(anthropic_refused(R"(, "system": [{"type": "image"}])"), "system[0].type");
}

TEST(anthropic_request, tools_and_choices) {
  const std::string tools =
      R"(, "tools": [{"name": "f", "description": "d", "input_schema": {"type": "object", "properties": {"z": {"type": "integer"}, "a": {}}}, "cache_control": {}}])";
  const ChatRequest r = anthropic(tools + R"(, "tool_choice": {"type": "auto", "disable_parallel_tool_use": true})");
  EXPECT_EQ(
      r.variables["tools"].dump(),
      R"([{"type":"function","function":{"name":"f","description":"d","parameters":{"type":"object","properties":{"z":{"type":"integer"},"a":{}}}}}])");
  EXPECT_EQ(r.tools.find("f")->types_of("z"), kIntegerType);
  EXPECT_EQ(r.max_tool_calls, 1);
  EXPECT_EQ(anthropic(tools + R"(, "tool_choice": {"type": "any"})").tool_choice, ToolChoice::kRequired);
  EXPECT_EQ(anthropic(tools + R"(, "tool_choice": {"type": "tool", "name": "f"})").named_tool, "f");
  EXPECT_TRUE(anthropic(tools + R"(, "tool_choice": {"type": "none"})").tools.empty());
  EXPECT_EQ(anthropic_refused(tools + R"(, "tool_choice": {"type": "tool", "name": "g"})"), "tool_choice");
  EXPECT_EQ(anthropic_refused(tools + R"(, "tool_choice": {"type": "required"})"), "tool_choice.type");
  EXPECT_EQ(anthropic_refused(tools + R"(, "tool_choice": "auto")"), "tool_choice");
  EXPECT_EQ(anthropic(R"(, "tools": [{"name": "f", "strict": true}])").tools.find("f")->strict, true);
  EXPECT_EQ(anthropic_refused(R"(, "tools": [{"type": "bash_20250124", "name": "bash"}])"), "tools[0].type");
  EXPECT_EQ(anthropic_refused(R"(, "tools": [{"input_schema": {}}])"), "tools[0].name");
  EXPECT_EQ(anthropic_refused(R"(, "tools": [{"name": "f", "input_schema": 5}])"), "tools[0].input_schema");
}

TEST(anthropic_request, thinking) {
  const auto variables = [](const std::string& fields) {
    Json v = anthropic(fields).variables;
    v.erase("messages");
    v.erase("add_generation_prompt");
    return v.dump();
  };
  EXPECT_EQ(variables(""), "{}");
  EXPECT_EQ(variables(R"(, "thinking": {"type": "disabled"})"), R"({"enable_thinking":false})");
  EXPECT_EQ(variables(R"(, "thinking": {"type": "adaptive"})"), R"({"enable_thinking":true})");
  EXPECT_EQ(variables(R"(, "thinking": {"type": "enabled", "budget_tokens": 1024})"),
            R"({"enable_thinking":true,"reasoning_effort":"low"})");
  EXPECT_EQ(variables(R"(, "thinking": {"type": "enabled", "budget_tokens": 2048})"),
            R"({"enable_thinking":true,"reasoning_effort":"medium"})");
  EXPECT_EQ(variables(R"(, "thinking": {"type": "enabled", "budget_tokens": 8192})"),
            R"({"enable_thinking":true,"reasoning_effort":"xhigh"})");
  EXPECT_EQ(variables(R"(, "thinking": {"type": "adaptive"}, "output_config": {"effort": "low"})"),
            R"({"enable_thinking":true,"reasoning_effort":"low"})");
  EXPECT_EQ(anthropic(R"(, "thinking": {"type": "enabled", "budget_tokens": 1024})").thinking_budget, 1024);
  EXPECT_EQ(anthropic_refused(R"(, "thinking": {"type": "enabled"})"), "thinking.budget_tokens");
  EXPECT_EQ(anthropic_refused(R"(, "thinking": {"type": "enabled", "budget_tokens": 10000})"), "thinking.budget_tokens");
  EXPECT_EQ(anthropic_refused(R"(, "thinking": {"type": "on"})"), "thinking.type");
  EXPECT_EQ(anthropic_refused(R"(, "thinking": true)"), "thinking");
  EXPECT_EQ(anthropic_refused(R"(, "output_config": {"format": {"type": "json_schema"}})"), "output_config.format.json_schema");
  EXPECT_EQ(anthropic(R"(, "output_config": {"format": {"type": "json_schema", "schema": {"type": "null"}}})").form.field,
            "output_config.format.schema");
  EXPECT_EQ(anthropic(R"(, "output_format": {"type": "json_schema", "schema": {"type": "null"}})").form.field, "output_format.schema");
}

}  // namespace
}  // namespace tetrad::api_requests_test
