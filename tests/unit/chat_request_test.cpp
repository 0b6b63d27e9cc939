// Chat completions: what each field becomes, and what is refused in which words.
#include "server/chat_request.h"

#include <gtest/gtest.h>

#include <string>

#include "server/api_error.h"

namespace tetrad::chat_request_test {
namespace {

using Json = nlohmann::ordered_json;

RequestContext context() {
  RequestContext c;
  c.sampling.temperature = 0.7;
  c.sampling.top_k = 20;
  c.sampling.top_p = 0.95;
  c.stop_ids = {4034, 4032};
  c.vocab_size = 4096;
  c.fresh_seed = 77;
  return c;
}

std::string body(const std::string& fields) {
  return R"({"model": "m", "messages": [{"role": "user", "content": "q"}])" + (fields.empty() ? "" : ", " + fields) + "}";
}
ChatRequest parsed(const std::string& fields) { return parse_chat_request(body(fields), context()); }
Json messages_of(const std::string& messages) {
  return parse_chat_request(R"({"messages": )" + messages + "}", context()).variables["messages"];
}

// "param: message" of the refusal.
std::string refusal_of_body(const std::string& text, const RequestContext& c = context()) {
  try {
    parse_chat_request(text, c);
  } catch (const RequestError& error) {
    EXPECT_EQ(error.error().status, 400);
    EXPECT_EQ(error.error().type, "invalid_request_error");
    return error.error().param + " | " + error.what();
  }
  return "accepted";
}
std::string refusal(const std::string& fields) { return refusal_of_body(body(fields)); }
std::string refusal_of_messages(const std::string& messages) { return refusal_of_body(R"({"messages": )" + messages + "}"); }
std::string param(const std::string& refusal_text) { return refusal_text.substr(0, refusal_text.find(" | ")); }

const char* kTool =
    R"({"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"b": {"type": "integer"}, "a": {}}}}})";

TEST(chat_request, defaults_come_from_the_checkpoint) {
  const ChatRequest r = parsed("");
  EXPECT_EQ(r.model, "m");
  EXPECT_EQ(r.engine.generation.sampling.temperature, 0.7);
  EXPECT_EQ(r.engine.generation.sampling.top_k, 20);
  EXPECT_EQ(r.engine.generation.sampling.top_p, 0.95);
  EXPECT_EQ(r.engine.generation.sampling.seed, 77u);
  EXPECT_FALSE(r.engine.generation.sampling.logprobs);
  EXPECT_EQ(r.engine.generation.stop_ids, (std::vector<int>{4034, 4032}));
  EXPECT_EQ(r.engine.generation.max_tokens, 0);
  EXPECT_EQ(r.engine.num_choices, 1);
  EXPECT_TRUE(r.engine.reuse_prefix);
  EXPECT_FALSE(r.delivery.stream);
  EXPECT_EQ(r.reasoning, ReasoningOutput::kSeparate);
  EXPECT_EQ(r.variables.dump(), R"({"messages":[{"role":"user","content":"q"}],"add_generation_prompt":true})");
  EXPECT_TRUE(r.unknown_fields.empty());
  EXPECT_EQ(r.form.kind, OutputForm::Kind::kText);
}

TEST(chat_request, sampling_fields) {
  const ChatRequest r = parsed(
      R"("temperature": 0, "top_p": 0.5, "top_k": 5.0, "min_p": 0.1, "repetition_penalty": 1.2, "presence_penalty": -1, "frequency_penalty": 2,
         "logit_bias": {"5": -100, "7": 1.5}, "seed": -1, "logprobs": true, "top_logprobs": 20, "n": 3)");
  const SamplingParams& s = r.engine.generation.sampling;
  EXPECT_EQ(s.temperature, 0);
  EXPECT_EQ(s.top_p, 0.5);
  EXPECT_EQ(s.top_k, 5);
  EXPECT_EQ(s.min_p, 0.1);
  EXPECT_EQ(s.repetition_penalty, 1.2);
  EXPECT_EQ(s.presence_penalty, -1);
  EXPECT_EQ(s.frequency_penalty, 2);
  EXPECT_EQ(s.logit_bias, (std::vector<std::pair<int, double>>{{5, -100}, {7, 1.5}}));
  EXPECT_EQ(s.seed, ~std::uint64_t{0});
  EXPECT_EQ(s.logprobs, 20);
  EXPECT_EQ(r.engine.num_choices, 3);
  EXPECT_EQ(parsed(R"("seed": 18446744073709551615)").engine.generation.sampling.seed, ~std::uint64_t{0});
  EXPECT_EQ(parsed(R"("logprobs": true)").engine.generation.sampling.logprobs, 0);
  EXPECT_EQ(parsed(R"("temperature": null, "top_k": null, "stop": null, "tools": null)").engine.generation.sampling.temperature, 0.7);
  EXPECT_NO_THROW(validate(s, 4096));
}

TEST(chat_request, sampling_fields_out_of_range) {
  EXPECT_EQ(refusal(R"("temperature": -1)"), "temperature | temperature: must be between 0 and 100, got -1");
  EXPECT_EQ(refusal(R"("temperature": "hot")"), "temperature | temperature: expected a number, got \"hot\"");
  EXPECT_EQ(refusal(R"("temperature": 1e308)").substr(0, 13), "temperature |");
  EXPECT_EQ(refusal(R"("temperature": true)"), "temperature | temperature: expected a number, got true");
  EXPECT_EQ(refusal(R"("top_p": 0)"), "top_p | top_p: must be above 0 and at most 1, got 0");
  EXPECT_EQ(refusal(R"("top_k": -2)"), "top_k | top_k: must be between -1 and 2147483647, got -2");
  EXPECT_EQ(refusal(R"("top_k": 1.5)"), "top_k | top_k: expected a whole number, got 1.5");
  EXPECT_EQ(refusal(R"("top_k": 4294967297)"), "top_k | top_k: must be between -1 and 2147483647, got 4294967297");
  EXPECT_EQ(refusal(R"("n": 0)"), "n | n: must be between 1 and 16, got 0");
  EXPECT_EQ(refusal(R"("n": 1000)"), "n | n: must be between 1 and 16, got 1000");
  EXPECT_EQ(refusal(R"("top_logprobs": 21, "logprobs": true)"), "top_logprobs | top_logprobs: must be between 0 and 20, got 21");
  EXPECT_EQ(refusal(R"("top_logprobs": 2)"), "top_logprobs | top_logprobs: only with \"logprobs\": true");
  EXPECT_EQ(refusal(R"("seed": 1.5)"), "seed | seed: expected a whole number, got 1.5");
  EXPECT_EQ(refusal(R"("seed": 18446744073709551616)"), " | body: the integer 18446744073709551616 is out of range");
  for (const char* key : {"-1", "4096", "4294967296", "x", "", "1.0", "99999999999999999999"})
    EXPECT_EQ(param(refusal(fmt::format(R"("logit_bias": {{"{}": 1}})", key))), fmt::format("logit_bias[{}]", key));
  EXPECT_EQ(refusal(R"("logit_bias": {"1": 1000})"), "logit_bias[1] | logit_bias[1]: must be between -100 and 100, got 1000");
  EXPECT_EQ(refusal(R"("logit_bias": {"1": 1, "01": 1})"), "logit_bias[01] | logit_bias[01]: token id 1 is given twice");
  EXPECT_EQ(refusal(R"("logit_bias": [1])"), "logit_bias | logit_bias: expected an object, got a list");
}

TEST(chat_request, limits_of_the_answer) {
  EXPECT_EQ(parsed(R"("max_tokens": 5)").engine.generation.max_tokens, 5);
  EXPECT_EQ(parsed(R"("max_tokens": 5, "max_completion_tokens": 9)").engine.generation.max_tokens, 9);
  EXPECT_EQ(parsed(R"("max_tokens": 9223372036854775807)").engine.generation.max_tokens, 2147483647);
  EXPECT_EQ(parsed(R"("max_tokens": 1e300)").engine.generation.max_tokens, 2147483647);
  RequestContext capped = context();
  capped.default_max_tokens = 100;
  EXPECT_EQ(parse_chat_request(body(""), capped).engine.generation.max_tokens, 100);
  for (const char* value : {"0", "-1", "-9223372036854775808"})
    EXPECT_EQ(refusal(fmt::format(R"("max_tokens": {})", value)),
              fmt::format("max_tokens | max_tokens: must be at least 1, got {}", value));
  EXPECT_EQ(refusal(R"("max_tokens": "5")"), "max_tokens | max_tokens: expected a whole number, got \"5\"");
  EXPECT_EQ(refusal(R"("max_completion_tokens": 1.5)"), "max_completion_tokens | max_completion_tokens: expected a whole number, got 1.5");
}

TEST(chat_request, stops) {
  const ChatRequest r =
      parsed(R"("stop": ["a", "b"], "stop_token_ids": [7, 4032], "include_stop_str_in_output": true, "skip_special_tokens": false)");
  EXPECT_EQ(r.engine.generation.stop_strings, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(r.engine.generation.stop_ids, (std::vector<int>{4034, 4032, 7}));
  EXPECT_EQ(r.asked_stop_ids, (std::vector<int>{7}));
  EXPECT_TRUE(r.engine.generation.include_stop);
  EXPECT_FALSE(r.engine.generation.skip_special);
  EXPECT_EQ(parsed(R"("stop": "x")").engine.generation.stop_strings, (std::vector<std::string>{"x"}));
  EXPECT_TRUE(parsed(R"("stop": [])").engine.generation.stop_strings.empty());
  EXPECT_TRUE(parsed(R"("ignore_eos": true)").engine.generation.stop_ids.empty());
  EXPECT_EQ(param(refusal(R"("stop": "")")), "stop");
  EXPECT_EQ(param(refusal(R"("stop": ["a", ""])")), "stop[1]");
  EXPECT_EQ(param(refusal(R"("stop": [5])")), "stop[0]");
  EXPECT_EQ(param(refusal(R"("stop": 5)")), "stop");
  EXPECT_EQ(param(refusal(fmt::format(R"("stop": "{}")", std::string(4097, 'x')))), "stop");
  std::string many = "\"s\"";
  for (int i = 0; i < 64; ++i) many += ", \"s\"";
  EXPECT_EQ(refusal("\"stop\": [" + many + "]"), "stop | stop: at most 64 items, got 65");
  for (const char* id : {"-1", "4096", "4294967297", "1.5", "\"5\"", "null", "[]"})
    EXPECT_EQ(param(refusal(fmt::format(R"("stop_token_ids": [1, {}])", id))), "stop_token_ids[1]") << id;
}

TEST(chat_request, delivery) {
  const ChatRequest r = parsed(R"("stream": true, "stream_options": {"include_usage": true, "continuous_usage_stats": true})");
  EXPECT_TRUE(r.delivery.stream && r.delivery.include_usage && r.delivery.usage_in_every_chunk);
  EXPECT_EQ(param(refusal(R"("stream": 1)")), "stream");
  EXPECT_EQ(param(refusal(R"("stream_options": {})")), "stream_options");
  EXPECT_EQ(param(refusal(R"("stream": true, "stream_options": {"include_usage": "yes"})")), "stream_options.include_usage");
  EXPECT_EQ(param(refusal(R"("stream": true, "stream_options": {"x": 1})")), "stream_options.x");
  EXPECT_EQ(parsed(R"("cache_salt": "tenant", "cache_prompt": false)").engine.cache_salt, "tenant");
  EXPECT_FALSE(parsed(R"("cache_prompt": false)").engine.reuse_prefix);
  EXPECT_EQ(param(refusal(R"("cache_salt": 5)")), "cache_salt");
}

TEST(chat_request, prompts_may_be_scored_and_need_no_answer_then) {
  EXPECT_EQ(parsed("").engine.generation.prompt_logprobs, -1);
  const GenerationRequest scored = parsed(R"("prompt_logprobs": 3, "max_tokens": 0)").engine.generation;
  EXPECT_EQ(scored.prompt_logprobs, 3);
  EXPECT_EQ(scored.max_tokens, 0);
  EXPECT_TRUE(scored.prompt_only);
  EXPECT_FALSE(parsed(R"("prompt_logprobs": 0)").engine.generation.prompt_only);
  for (const char* value : {"-1", "21", "true", "1.5"})
    EXPECT_EQ(param(refusal(fmt::format(R"("prompt_logprobs": {})", value))), "prompt_logprobs");
  EXPECT_EQ(param(refusal(R"("prompt_logprobs": 1, "stream": true)")), "prompt_logprobs");
}

TEST(chat_request, budgets_of_thinking_have_several_names) {
  EXPECT_FALSE(parsed("").thinking_budget);
  for (const char* fields :
       {R"("thinking_token_budget": 7)", R"("thinking_budget": 7)", R"("reasoning": {"max_tokens": 7})",
        R"("thinking": {"type": "enabled", "budget_tokens": 7})", R"("thinking_budget": 9, "thinking_token_budget": 7)"})
    EXPECT_EQ(parsed(fields).thinking_budget, 7) << fields;
  EXPECT_EQ(parsed(R"("thinking_token_budget": 0)").thinking_budget, 0);
  EXPECT_EQ(parsed(R"("thinking_token_budget": -1)").thinking_budget, kNoThinkingBudget);
  EXPECT_EQ(parsed(R"("thinking_token_budget": 1e300)").thinking_budget, 2147483647);
  EXPECT_EQ(param(refusal(R"("thinking_token_budget": -2)")), "thinking_token_budget");
  EXPECT_EQ(param(refusal(R"("reasoning": {"max_tokens": "9"})")), "reasoning.max_tokens");
}

TEST(chat_request, shortest_answers_and_ids) {
  EXPECT_EQ(parsed(R"("min_tokens": 5)").engine.generation.min_tokens, 5);
  EXPECT_EQ(parsed(R"("min_tokens": 5, "max_tokens": 5)").engine.generation.min_tokens, 5);
  for (const char* fields : {R"("min_tokens": 6, "max_tokens": 5)", R"("min_tokens": -1)", R"("min_tokens": 1e300)",
                             R"("min_tokens": 1, "max_tokens": 0, "prompt_logprobs": 1)"})
    EXPECT_EQ(param(refusal(fields)), "min_tokens") << fields;
  EXPECT_EQ(parsed(R"("request_id": "a-1.b:c_")").request_id, "a-1.b:c_");
  EXPECT_EQ(parsed(R"("rid": "x")").request_id, "x");
  EXPECT_EQ(param(refusal(R"("request_id": "a b")")), "request_id");
  EXPECT_TRUE(parsed(R"("return_token_ids": true)").delivery.token_ids);
}

TEST(chat_request, what_cannot_be_done_is_refused_by_name) {
  for (const char* field : {R"("use_beam_search": true)",
                            R"("best_of": 2)",
                            R"("suffix": "x")",
                            R"("echo": true)",
                            R"("timings_per_token": true)",
                            R"("structured_outputs": {"regex": "a", "choice": ["a"]})",
                            R"("structured_outputs": {"disable_fallback": true})",
                            R"("guided_grammar": "a")",
                            R"("structural_tag": {"a": 1})",
                            R"("guided_json": "no schema")",
                            R"("guided_choice": [])",
                            R"("regex": ["a"])",
                            R"("ebnf": "a")",
                            R"("grammar": "a")",
                            R"("kv_transfer_params": {"a": 1})",
                            R"("bootstrap_host": "h")",
                            R"("functions": [{}])",
                            R"("function_call": "auto")",
                            R"("audio": {"a": 1})",
                            R"("modalities": ["text", "audio"])",
                            R"("web_search_options": {"a": 1})",
                            R"("prediction": {"a": 1})",
                            R"("chat_template": "x")",
                            R"("documents": [1])",
                            R"("bad_words": ["x"])",
                            R"("allowed_token_ids": [1])",
                            R"("priority": 1)",
                            R"("stream_reasoning": false)"}) {
    const std::string name = std::string(field).substr(1, std::string(field).find('"', 1) - 1);
    EXPECT_EQ(param(refusal(field)), name) << refusal(field);
  }
  for (const char* harmless : {R"("best_of": 1)", R"("min_tokens": 0)", R"("suffix": null)", R"("suffix": "")", R"("echo": false)",
                               R"("response_format": {"type": "text"})", R"("modalities": ["text"])", R"("functions": [])",
                               R"("user": "u")", R"("metadata": {"a": "b"})", R"("priority": 0)", R"("kv_transfer_params": null)"}) {
    EXPECT_EQ(refusal(harmless), "accepted") << harmless;
    EXPECT_TRUE(parsed(harmless).unknown_fields.empty()) << harmless;
  }
}

// Fields of other APIs that ask for a form: the answer would not have it.
TEST(chat_request, a_form_is_never_ignored) {
  for (const char* field : {"output_format", "output_config", "text", "format", "response_schema", "response_mime_type", "output_schema",
                            "guided_json_object", "guided_decoding", "json_object"}) {
    const std::string said = refusal(fmt::format(R"("{}": {{"type": "json_schema"}})", field));
    EXPECT_TRUE(said.starts_with(fmt::format("{0} | {0}: not supported: ", field))) << said;
    for (const char* nothing : {"null", "{}", "false", R"("")"})
      EXPECT_TRUE(parsed(fmt::format(R"("{}": {})", field, nothing)).unknown_fields.empty()) << field;
  }
  EXPECT_EQ(param(refusal(R"("response_format": {"type": "json_object", "response_schema": {}})")), "response_format.response_schema");
  EXPECT_EQ(param(refusal(R"("response_format": {"type": "text", "schema": {}})")), "response_format.schema");
  EXPECT_EQ(param(refusal(R"("response_format": {"type": "json_schema", "json_schema": {"schema": {}, "regex": "a"}})")),
            "response_format.json_schema.regex");
}

TEST(chat_request, unknown_fields_are_listed_or_refused) {
  EXPECT_EQ(parsed(R"("frobnicate": 1, "messages2": [])").unknown_fields, (std::vector<std::string>{"frobnicate", "messages2"}));
  EXPECT_EQ(
      parse_chat_request(
          std::string(R"({"messages": [{"role": "user", "content": "q", "name": "n"}, {"role": "user", "content": "q", "name": "n"}]})"),
          context())
          .unknown_fields,
      (std::vector<std::string>{"messages[].name"}));
  RequestContext strict = context();
  strict.strict_fields = true;
  EXPECT_EQ(refusal_of_body(body(R"("frobnicate": 1)"), strict), "frobnicate | frobnicate: unknown field");
  EXPECT_EQ(refusal_of_body(body(""), strict), "accepted");
}

TEST(chat_request, messages_become_what_templates_take) {
  EXPECT_EQ(
      messages_of(
          R"([{"role": "developer", "content": "d"}, {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}])")
          .dump(),
      R"([{"role":"system","content":"d"},{"role":"user","content":"ab"}])");
  EXPECT_EQ(messages_of(R"([{"role": "user", "content": ""}, {"role": "assistant", "content": null, "reasoning": "r", "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"b\": [1], \"a\": null}"}},
                {"function": {"name": "g", "arguments": ""}}]},
                {"role": "tool", "tool_call_id": "1", "name": "f", "content": [{"type": "text", "text": "t"}]}])")
                .dump(),
            R"([{"role":"user","content":""},{"role":"assistant","content":"","reasoning_content":"r","tool_calls":[)"
            R"({"id":"1","type":"function","function":{"name":"f","arguments":{"b":[1],"a":null}}},)"
            R"({"type":"function","function":{"name":"g","arguments":{}}}]},{"role":"tool","content":"t","tool_call_id":"1"}])");
  for (const char* name : {"reasoning", "reasoning_content", "thinking"})
    EXPECT_EQ(messages_of(fmt::format(R"([{{"role": "assistant", "content": "c", "{}": "r"}}])", name))[0]["reasoning_content"], "r");
  EXPECT_EQ(messages_of(R"([{"role": "assistant", "content": "<think>\nr\n</think>\n\nc"}])").dump(),
            R"([{"role":"assistant","content":"\n\nc","reasoning_content":"\nr\n"}])");
  EXPECT_EQ(
      messages_of(R"([{"role": "assistant", "content": [{"type": "thinking", "thinking": "r"}, {"type": "text", "text": "c"}]}])").dump(),
      R"([{"role":"assistant","content":"c","reasoning_content":"r"}])");
}

TEST(chat_request, arguments_in_the_history) {
  const auto with = [](const std::string& arguments) {
    return refusal_of_messages(
        R"([{"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": )" + arguments +
        "}}]}]");
  };
  for (const char* fine : {R"({"a": 1})", R"("{}")", R"("")", R"(null)", R"("{\"a\": {\"b\": [1, 2]}}")"})
    EXPECT_EQ(with(fine), "accepted");
  const std::string path = "messages[0].tool_calls[0].function.arguments";
  EXPECT_EQ(with(R"("[1]")"), path + " | " + path + ": expected the JSON text of an object, got a list");
  EXPECT_EQ(param(with(R"("{\"a\":1")")), path);
  EXPECT_EQ(param(with("5")), path);
  EXPECT_EQ(param(with("\"" + std::string(100000, '[') + "\"")), path);
}

TEST(chat_request, system_messages_are_merged_or_refused) {
  const std::string late =
      R"([{"role": "user", "content": "q"}, {"role": "system", "content": "one"}, {"role": "developer", "content": "two"}])";
  const ChatRequest merged = parse_chat_request(R"({"messages": )" + late + "}", context());
  EXPECT_EQ(merged.variables["messages"].dump(), R"([{"role":"system","content":"one\n\ntwo"},{"role":"user","content":"q"}])");
  EXPECT_TRUE(merged.merged_system_messages);
  EXPECT_FALSE(
      parse_chat_request(std::string(R"({"messages": [{"role": "developer", "content": "one"}]})"), context()).merged_system_messages);
  RequestContext strict = context();
  strict.merge_system_messages = false;
  EXPECT_EQ(refusal_of_body(R"({"messages": )" + late + "}", strict),
            "messages[1] | messages[1]: a system or developer message must be the first, and the only one");
}

TEST(chat_request, results_follow_the_order_of_their_calls) {
  const auto conversation = [](const char* first, const char* second) {
    return messages_of(fmt::format(
        R"([{{"role": "assistant", "tool_calls": [{{"id": "a", "function": {{"name": "f"}}}}, {{"id": "b", "function": {{"name": "f"}}}}]}},
        {{"role": "tool", "tool_call_id": "{}", "content": "1"}}, {{"role": "tool", "tool_call_id": "{}", "content": "2"}}])",
        first, second));
  };
  EXPECT_EQ(conversation("b", "a")[1]["content"], "2");
  EXPECT_EQ(conversation("a", "b")[1]["content"], "1");
  EXPECT_EQ(conversation("x", "a")[1]["content"], "1");
}

TEST(chat_request, malformed_messages_name_their_path) {
  EXPECT_EQ(refusal_of_body("{}"), "messages | messages: missing: a list of messages is required");
  EXPECT_EQ(refusal_of_messages("[]"), "messages | messages: empty: at least one message is required");
  EXPECT_EQ(refusal_of_messages("\"hi\""), "messages | messages: expected a list, got \"hi\"");
  EXPECT_EQ(refusal_of_messages("[5]"), "messages[0] | messages[0]: expected an object, got 5");
  EXPECT_EQ(refusal_of_messages("[{}]"), "messages[0].role | messages[0].role: missing: a string is required");
  EXPECT_EQ(param(refusal_of_messages(R"([{"role": "function", "content": "x"}])")), "messages[0].role");
  for (const char* content : {"null", "0", "{}", "[5]", "[{}]", R"([{"text": "a"}])", R"([{"type": 5}])"})
    EXPECT_EQ(param(refusal_of_messages(fmt::format(R"([{{"role": "user", "content": {}}}])", content))).find("messages[0].content"), 0u)
        << content;
  EXPECT_EQ(param(refusal_of_messages(R"([{"role": "user"}])")), "messages[0].content");
  EXPECT_EQ(refusal_of_messages(R"([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:x"}}]}])"),
            "messages[0].content[0].type | messages[0].content[0].type: parts of type \"image_url\" are not supported, only text");
  EXPECT_EQ(param(refusal_of_messages(R"([{"role": "assistant", "tool_calls": {}}])")), "messages[0].tool_calls");
  EXPECT_EQ(param(refusal_of_messages(R"([{"role": "assistant", "tool_calls": [{"function": {}}]}])")),
            "messages[0].tool_calls[0].function.name");
  EXPECT_EQ(param(refusal_of_messages(R"([{"role": "assistant", "function_call": {"name": "f"}}])")), "messages[0].function_call");
  EXPECT_EQ(param(refusal_of_messages(R"([{"role": "assistant", "reasoning_content": 5}])")), "messages[0].reasoning_content");
  std::string many = R"({"role": "user", "content": ""})";
  std::string all = "[" + many;
  for (std::size_t i = 0; i < kMaxMessages; ++i) all += "," + many;
  EXPECT_EQ(param(refusal_of_messages(all + "]")), "messages");
}

TEST(chat_request, tools_reach_template_and_parser) {
  const ChatRequest r = parsed(fmt::format(R"("tools": [{}], "tool_choice": "auto", "parallel_tool_calls": false)", kTool));
  EXPECT_EQ(r.variables["tools"].dump(), "[" + Json::parse(kTool).dump() + "]");
  ASSERT_NE(r.tools.find("f"), nullptr);
  EXPECT_EQ(r.tools.find("f")->types_of("b"), kIntegerType);
  EXPECT_EQ(r.max_tool_calls, 1);
  EXPECT_FALSE(parsed(R"("tools": [])").variables.contains("tools"));
  const ChatRequest none = parsed(fmt::format(R"("tools": [{}], "tool_choice": "none")", kTool));
  EXPECT_TRUE(none.tools.empty());
  EXPECT_FALSE(none.variables.contains("tools"));
}

TEST(chat_request, forms_of_the_answer) {
  using Kind = OutputForm::Kind;
  EXPECT_EQ(parsed(R"("response_format": {"type": "text"})").form.kind, Kind::kText);
  EXPECT_EQ(parsed(R"("response_format": {"type": "json_object"})").form.kind, Kind::kJsonObject);
  const ChatRequest schema =
      parsed(R"("response_format": {"type": "json_schema", "json_schema": {"name": "n", "strict": true, "schema": {"type": "integer"}}})");
  EXPECT_EQ(schema.form.kind, Kind::kJsonSchema);
  EXPECT_EQ(schema.form.schema, Json({{"type", "integer"}}));
  EXPECT_EQ(schema.form.field, "response_format.json_schema.schema");
  for (const char* same :
       {R"("response_format": {"type": "json_schema", "schema": {"type": "integer"}})",
        R"("response_format": {"type": "json_object", "schema": {"type": "integer"}})",
        R"("structured_outputs": {"json": {"type": "integer"}})", R"("structured_outputs": {"json": "{\"type\": \"integer\"}"})",
        R"("guided_json": {"type": "integer"})", R"("json_schema": {"type": "integer"})"})
    EXPECT_EQ(parsed(same).form.schema, Json({{"type", "integer"}})) << same;
  for (const char* same : {R"("structured_outputs": {"regex": "a+"})", R"("guided_regex": "a+")", R"("regex": "a+")"}) {
    EXPECT_EQ(parsed(same).form.regex, "a+") << same;
    EXPECT_TRUE(parsed(same).unknown_fields.empty()) << same;
  }
  for (const char* same : {R"("structured_outputs": {"choice": ["a", "b"]})", R"("guided_choice": ["a", "b"])"})
    EXPECT_EQ(parsed(same).form.choices, (std::vector<std::string>{"a", "b"})) << same;
  const auto param_of = [](const char* field) { return param(refusal(field)); };
  EXPECT_EQ(param_of(R"("response_format": {"type": "json_schema"})"), "response_format.json_schema");
  EXPECT_EQ(param_of(R"("response_format": {"type": "structural_tag"})"), "response_format.type");
  EXPECT_EQ(param_of(R"("response_format": {"type": "xml"})"), "response_format.type");
  EXPECT_EQ(param_of(R"("response_format": {"type": "json_schema", "schema": 5})"), "response_format.schema");
  EXPECT_EQ(param_of(R"("structured_outputs": {"grammar": "root ::= a"})"), "structured_outputs.grammar");
  EXPECT_EQ(param_of(R"("structured_outputs": {"whitespace_pattern": " "})"), "structured_outputs.whitespace_pattern");
  EXPECT_EQ(param_of(R"("structured_outputs": {"jsno": {}})"), "structured_outputs.jsno");
  EXPECT_EQ(param_of(R"("structured_outputs": {"choice": ["a", 1]})"), "structured_outputs.choice[1]");
  EXPECT_EQ(param_of(R"("regex": "a", "response_format": {"type": "json_object"})"), "regex");
}

TEST(chat_request, required_calls_leave_thinking_as_it_is) {
  const std::string tools = fmt::format(R"("tools": [{}], )", kTool);
  const ChatRequest named = parsed(tools + R"("tool_choice": {"type": "function", "function": {"name": "f"}})");
  EXPECT_EQ(named.tool_choice, ToolChoice::kNamed);
  EXPECT_EQ(named.named_tool, "f");
  EXPECT_EQ(named.max_tool_calls, 1);
  EXPECT_FALSE(named.variables.contains("enable_thinking"));
  const ChatRequest required = parsed(tools + R"("tool_choice": "required", "reasoning_effort": "high")");
  EXPECT_EQ(required.tool_choice, ToolChoice::kRequired);
  EXPECT_EQ(required.variables["reasoning_effort"], "xhigh");
  EXPECT_EQ(refusal(tools + R"("tool_choice": "required", "enable_thinking": true)"), "accepted");
  EXPECT_EQ(param(refusal(tools + R"("tool_choice": {"type": "function", "function": {"name": "g"}})")), "tool_choice");
  EXPECT_EQ(param(refusal(tools + R"("tool_choice": "any")")), "tool_choice");
  EXPECT_EQ(param(refusal(tools + R"("tool_choice": {"type": "allowed_tools"})")), "tool_choice.type");
  EXPECT_EQ(param(refusal(tools + R"("tool_choice": 5)")), "tool_choice");
  EXPECT_EQ(param(refusal(R"("tool_choice": "required")")), "tool_choice");
  EXPECT_EQ(refusal(R"("tool_choice": "auto")"), "accepted");
}

TEST(chat_request, malformed_tools_name_their_path) {
  const auto tools = [](const std::string& list) { return param(refusal("\"tools\": " + list)); };
  EXPECT_EQ(tools("{}"), "tools");
  EXPECT_EQ(tools("[null]"), "tools[0]");
  EXPECT_EQ(tools("[{}]"), "tools[0].type");
  EXPECT_EQ(tools(R"([{"type": "web_search"}])"), "tools[0].type");
  EXPECT_EQ(tools(R"([{"type": "function"}])"), "tools[0].function");
  EXPECT_EQ(tools(R"([{"type": "function", "function": {}}])"), "tools[0].function.name");
  EXPECT_EQ(tools(R"([{"type": "function", "function": {"name": ""}}])"), "tools[0].function.name");
  EXPECT_EQ(tools(R"([{"type": "function", "function": {"name": "a b"}}])"), "tools[0].function.name");
  EXPECT_EQ(tools(R"([{"type": "function", "function": {"name": "a>"}}])"), "tools[0].function.name");
  EXPECT_EQ(tools(R"([{"type": "function", "function": {"name": "f", "parameters": []}}])"), "tools[0].function.parameters");
  EXPECT_EQ(tools(R"([{"type": "function", "function": {"name": "f", "strict": 1}}])"), "tools[0].function.strict");
  EXPECT_EQ(tools(fmt::format("[{}, {}]", kTool, kTool)), "tools[1].function.name");
  EXPECT_EQ(tools(R"([{"type": "function", "function": {"name": "a.b-c_d", "strict": false}}])"), "accepted");
  std::string many;
  for (int i = 0; i < 300; ++i) many += fmt::format(R"({}{{"type": "function", "function": {{"name": "f{}"}}}})", i == 0 ? "" : ",", i);
  EXPECT_EQ(tools("[" + many + "]"), "accepted");
  EXPECT_EQ(tools(R"([{"type": "function", "function": {"name": "f", "description": ")" + std::string(1 << 20, 'x') + "\"}}]"), "accepted");
}

TEST(chat_request, thinking_and_effort) {
  const auto variables = [](const std::string& fields) {
    Json v = parsed(fields).variables;
    v.erase("messages");
    v.erase("add_generation_prompt");
    return v.dump();
  };
  EXPECT_EQ(variables(R"("enable_thinking": false)"), R"({"enable_thinking":false})");
  for (const auto& [effort, level] :
       {std::pair("minimal", "low"), {"low", "low"}, {"medium", "medium"}, {"high", "xhigh"}, {"xhigh", "xhigh"}, {"max", "xhigh"}})
    EXPECT_EQ(variables(fmt::format(R"("reasoning_effort": "{}")", effort)),
              fmt::format(R"({{"enable_thinking":true,"reasoning_effort":"{}"}})", level));
  EXPECT_EQ(variables(R"("reasoning_effort": "none")"), R"({"enable_thinking":false})");
  EXPECT_EQ(variables(R"("reasoning_effort": null)"), "{}");
  EXPECT_EQ(variables(R"("chat_template_kwargs": {"enable_thinking": false, "preserve_thinking": false, "custom": [1]})"),
            R"({"preserve_thinking":false,"custom":[1],"enable_thinking":false})");
  EXPECT_EQ(variables(R"("enable_thinking": true, "chat_template_kwargs": {"enable_thinking": false})"), R"({"enable_thinking":false})");
  EXPECT_EQ(variables(R"("chat_template_kwargs": {"reasoning_effort": "high"})"), R"({"enable_thinking":true,"reasoning_effort":"xhigh"})");
  EXPECT_EQ(variables(R"("reasoning": {"effort": "low", "exclude": true})"), R"({"enable_thinking":true,"reasoning_effort":"low"})");
  EXPECT_EQ(variables(R"("thinking": {"type": "disabled"})"), R"({"enable_thinking":false})");
  EXPECT_EQ(parsed(R"("include_reasoning": false)").reasoning, ReasoningOutput::kOmit);
  EXPECT_EQ(parsed(R"("separate_reasoning": false)").reasoning, ReasoningOutput::kInline);
  EXPECT_EQ(param(refusal(R"("reasoning_effort": "maximal")")), "reasoning_effort");
  EXPECT_EQ(param(refusal(R"("reasoning_effort": 5)")), "reasoning_effort");
  EXPECT_EQ(param(refusal(R"("enable_thinking": "false")")), "enable_thinking");
  EXPECT_EQ(param(refusal(R"("chat_template_kwargs": {"messages": []})")), "chat_template_kwargs.messages");
  EXPECT_EQ(param(refusal(R"("chat_template_kwargs": [])")), "chat_template_kwargs");
}

TEST(chat_request, hostile_bodies) {
  EXPECT_EQ(refusal_of_body("").substr(0, 31), " | body: not valid JSON at byte");
  for (const std::string text : {"{", "[]", "5", "null", "\"x\"", "{\"messages\": \xff}", R"({"messages": "\ud800"})"})
    EXPECT_EQ(param(refusal_of_body(text)).find("accepted"), std::string::npos) << text;
  EXPECT_EQ(refusal_of_body(std::string(1000000, '[')), " | body: the JSON nests more than 64 deep");
  EXPECT_EQ(refusal_of_body(R"({"model": "a", "model": "b"})"), " | body: the key \"model\" is given twice in one object");
  EXPECT_EQ(refusal_of_body(body(R"("temperature": 1e999)")).substr(0, 10), " | body: n");
  EXPECT_EQ(refusal_of_body(std::string("{\"a\0\": 1}", 9)).substr(0, 22), " | body: not valid JSO");
  std::string wide = "{";
  for (int i = 0; i < 300; ++i) wide += fmt::format("\"f{}\": 0,", i);
  EXPECT_EQ(refusal_of_body(wide + "\"z\": 0}"), " | body: 301 fields, at most 256 are read");
  // What messages quote is whole: a name cut inside a character is none.
  std::string name = "x";
  for (int i = 0; i < 200; ++i) name += "\xC3\xA9";
  EXPECT_EQ(param(refusal_of_messages(fmt::format(R"([{{"role": "{}"}}])", name))), "messages[0].role");
  EXPECT_EQ(param(refusal_of_messages(fmt::format(R"([{{"role": "user", "content": [{{"type": "{}"}}]}}])", name))),
            "messages[0].content[0].type");
  EXPECT_EQ(param(refusal(fmt::format(R"("logit_bias": {{"{}": 1}})", name))).substr(0, 10), "logit_bias");
  EXPECT_EQ(parsed(fmt::format(R"("{}": 1)", name)).unknown_fields.size(), 1u);
  // Surrogate pairs are text like any other.
  EXPECT_EQ(messages_of(R"([{"role": "user", "content": "\ud83d\ude00"}])")[0]["content"], "\xF0\x9F\x98\x80");
  // Each field with a value of every other type: accepted or refused, never more.
  for (const char* field : {"model",
                            "messages",
                            "tools",
                            "tool_choice",
                            "stream",
                            "stop",
                            "stop_token_ids",
                            "logit_bias",
                            "n",
                            "seed",
                            "temperature",
                            "max_tokens",
                            "response_format",
                            "chat_template_kwargs",
                            "reasoning_effort",
                            "stream_options",
                            "thinking",
                            "reasoning",
                            "cache_salt",
                            "modalities",
                            "logprobs",
                            "parallel_tool_calls",
                            "min_tokens",
                            "user",
                            "add_generation_prompt"})
    for (const char* value : {"null", "true", "5", "-1", "1.5", "1e300", "18446744073709551615", "\"x\"", "\"\"", "[]", "[null]", "[[]]",
                              "{}", R"({"a": null})"})
      refusal_of_body(std::string(field) == "messages" ? fmt::format(R"({{"messages": {}}})", value)
                                                       : body(fmt::format(R"("{}": {})", field, value)));
}

TEST(chat_request, the_prompt_says_where_the_answer_starts) {
  EXPECT_TRUE(prompt_opens_reasoning("<|im_start|>assistant\n<think>\n"));
  EXPECT_TRUE(prompt_opens_reasoning("<think>"));
  EXPECT_FALSE(prompt_opens_reasoning("<think>\n\n</think>\n\n"));
  EXPECT_FALSE(prompt_opens_reasoning("<|im_start|>assistant\n"));
  EXPECT_FALSE(prompt_opens_reasoning("say <think> to me"));
  EXPECT_FALSE(prompt_opens_reasoning(" \n"));
  EXPECT_FALSE(prompt_opens_reasoning(""));
}

TEST(api_error, contexts_that_are_too_small) {
  const auto sized = [](int prompt, int max_tokens, bool prompt_only = false) {
    EngineRequest request;
    request.generation.prompt_ids.assign(static_cast<std::size_t>(prompt), 1);
    request.generation.max_tokens = max_tokens;
    request.generation.prompt_only = prompt_only;
    return request;
  };
  EXPECT_NO_THROW(check_context(sized(10, 6), 16, "prompt"));
  EXPECT_NO_THROW(check_context(sized(15, 0), 16, "prompt"));
  EXPECT_NO_THROW(check_context(sized(16, 0, true), 16, "prompt"));
  EXPECT_THROW(check_context(sized(17, 0, true), 16, "prompt"), RequestError);
  for (const auto& [prompt, max_tokens] : {std::pair(10, 7), {16, 0}, {5, 2147483647}}) {
    try {
      check_context(sized(prompt, max_tokens), 16, "prompt");
      ADD_FAILURE();
    } catch (const RequestError& error) {
      EXPECT_EQ(std::string(error.what()).find("This model's maximum context length is 16 tokens"), 0u);
      EXPECT_EQ(error.error().code, "context_length_exceeded");
      EXPECT_EQ(error.error().param, "prompt");
    }
  }
  EXPECT_NO_THROW(check_context_anthropic(15, 16));
  EXPECT_THROW(check_context_anthropic(16, 16), RequestError);
}

TEST(api_error, every_failure_has_a_status_and_two_bodies) {
  const auto of = [](EngineErrorKind kind) { return api_error(kind, "because", "req-1"); };
  EXPECT_EQ(of(EngineErrorKind::kInput).status, 400);
  EXPECT_EQ(of(EngineErrorKind::kPromptTooLong).code, "context_length_exceeded");
  EXPECT_EQ(of(EngineErrorKind::kQueueFull).status, 503);
  EXPECT_TRUE(of(EngineErrorKind::kQueueFull).retry_after);
  EXPECT_EQ(anthropic_status(of(EngineErrorKind::kQueueFull)), 529);
  EXPECT_EQ(of(EngineErrorKind::kQueueTimeout).status, 503);  // SDKs repeat 408 at once
  EXPECT_EQ(of(EngineErrorKind::kStopping).type, "unavailable_error");
  EXPECT_EQ(anthropic_status(of(EngineErrorKind::kStopping)), 503);
  EXPECT_EQ(of(EngineErrorKind::kNumeric).should_retry, false);
  EXPECT_EQ(of(EngineErrorKind::kInternal).message.find("because"), std::string::npos);
  EXPECT_NE(of(EngineErrorKind::kInternal).message.find("req-1"), std::string::npos);
  EXPECT_EQ(api_error(std::runtime_error("secret"), "req-1").status, 500);
  EXPECT_EQ(api_error(InputError("template says no"), "r").message, "template says no");
  EXPECT_EQ(api_error(EngineRefusal(EngineErrorKind::kQueueFull, "full"), "r").code, "queue_full");
  EXPECT_EQ(openai_error_body(RequestError("n", "n: \xff").error()),
            "{\"error\":{\"message\":\"n: \xEF\xBF\xBD\",\"type\":\"invalid_request_error\",\"param\":\"n\",\"code\":null}}");
  EXPECT_EQ(anthropic_error_body(of(EngineErrorKind::kQueueFull)),
            R"({"type":"error","error":{"type":"overloaded_error","message":"because"}})");
}

}  // namespace
}  // namespace tetrad::chat_request_test
