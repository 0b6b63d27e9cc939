// /v1/responses: items to messages, answers to items and events, and the whole route over a scripted engine.
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "server/responses_request.h"
#include "support/server_rig.h"

namespace tetrad::responses_test {
namespace {

using testing::answering;
using testing::ServerRig;
using Json = nlohmann::ordered_json;

RequestContext responses_context() {
  RequestContext c;
  c.stop_ids = {9};
  c.vocab_size = 4096;
  return c;
}

ResponsesRequest asked(const std::string& input, const std::string& fields = "") {
  return parse_responses_request(R"({"model": "m", "input": )" + input + fields + "}", responses_context());
}
std::string refused_param(const std::string& input, const std::string& fields = "") {
  try {
    asked(input, fields);
  } catch (const RequestError& error) {
    EXPECT_EQ(error.error().status, 400);
    return error.error().param;
  }
  return "accepted";
}
std::string messages_of_input(const std::string& input) { return asked(input).chat.variables["messages"].dump(); }

constexpr const char* kShell =
    R"({"type": "function", "name": "shell", "description": "Runs a command", "strict": false, "parameters": {"type": "object", "properties": {"command": {"type": "array", "items": {"type": "string"}}, "workdir": {"type": "string"}}, "required": ["command"]}})";

TEST(responses_request, input_is_text_or_items) {
  EXPECT_EQ(messages_of_input("\"hi\""), R"([{"role":"user","content":"hi"}])");
  EXPECT_EQ(messages_of_input(R"([{"role": "user", "content": "hi"}])"), R"([{"role":"user","content":"hi"}])");
  EXPECT_EQ(asked("\"hi\"", R"(, "instructions": "be brief")").chat.variables["messages"].dump(),
            R"([{"role":"system","content":"be brief"},{"role":"user","content":"hi"}])");
  // Developer and late system messages join the instructions.
  const ResponsesRequest merged = asked(
      R"([{"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "d"}]}, {"role": "user", "content": "q"}, {"role": "system", "content": "s"}])",
      R"(, "instructions": "i")");
  EXPECT_EQ(merged.chat.variables["messages"].dump(), R"([{"role":"system","content":"i\n\nd\n\ns"},{"role":"user","content":"q"}])");
  EXPECT_TRUE(merged.chat.merged_system_messages);
}

TEST(responses_request, what_an_assistant_said_in_a_row_is_one_message) {
  EXPECT_EQ(messages_of_input(R"([
      {"role": "user", "content": "q"},
      {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "why"}], "encrypted_content": null},
      {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [{"type": "output_text", "text": "a", "annotations": []}]},
      {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "shell", "arguments": "{\"command\": [\"ls\"]}", "status": "completed"},
      {"type": "function_call", "call_id": "c2", "name": "shell", "arguments": ""},
      {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "two"}]},
      {"type": "function_call_output", "call_id": "c1", "output": "one"},
      {"type": "reasoning", "summary": [{"type": "summary_text", "text": "short"}]},
      {"type": "message", "role": "assistant", "content": "done", "phase": "final_answer"},
      {"type": "message", "role": "user", "content": "next"}])"),
            R"([{"role":"user","content":"q"},)"
            R"({"role":"assistant","content":"a","reasoning_content":"why","tool_calls":[)"
            R"({"id":"c1","type":"function","function":{"name":"shell","arguments":{"command":["ls"]}}},)"
            R"({"id":"c2","type":"function","function":{"name":"shell","arguments":{}}}]},)"
            R"({"role":"tool","content":"one","tool_call_id":"c1"},{"role":"tool","content":"two","tool_call_id":"c2"},)"
            R"({"role":"assistant","content":"done","reasoning_content":"short"},{"role":"user","content":"next"}])");
}

TEST(responses_request, a_call_that_was_cut_off_is_left_out) {
  EXPECT_EQ(messages_of_input(R"([{"role": "user", "content": "q"},
      {"type": "message", "role": "assistant", "content": "a", "status": "incomplete"},
      {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{\"x\": ", "status": "incomplete"},
      {"type": "function_call_output", "call_id": "c", "output": "not valid JSON"}, {"role": "user", "content": "again"}])"),
            R"([{"role":"user","content":"q"},{"role":"assistant","content":"a"},{"role":"user","content":"again"}])");
}

TEST(responses_request, malformed_items_are_named) {
  EXPECT_EQ(refused_param("[]"), "input");
  EXPECT_EQ(refused_param("5"), "input");
  EXPECT_EQ(refused_param("[5]"), "input[0]");
  EXPECT_EQ(refused_param(R"([{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}])"), "input[0].content[0].type");
  EXPECT_EQ(refused_param(R"([{"role": "robot", "content": "x"}])"), "input[0].role");
  EXPECT_EQ(refused_param(R"([{"role": "user"}])"), "input[0].content");
  EXPECT_EQ(refused_param(R"([{"type": "item_reference", "id": "x"}])"), "input[0].type");
  EXPECT_EQ(refused_param(R"([{"type": "web_search_call", "id": "x"}])"), "input[0].type");
  const std::string call = R"({"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"})";
  EXPECT_EQ(refused_param("[" + call + R"(, {"type": "function_call_output", "call_id": "d", "output": ""}])"), "input[1].call_id");
  EXPECT_EQ(refused_param("[" + call + R"(, {"type": "function_call_output", "call_id": "c"}])"), "input[1].output");
  EXPECT_EQ(refused_param("[" + call + "," + call + "]"), "input[1].call_id");
  EXPECT_EQ(refused_param(R"([{"type": "function_call", "call_id": "c", "name": "f", "arguments": "{"}])"), "input[0].arguments");
}

TEST(responses_request, what_would_need_a_store_is_refused_by_name) {
  for (const char* field : {R"("previous_response_id": "resp_1")", R"("conversation": "conv_1")", R"("background": true)",
                            R"("prompt": {"id": "p"})", R"("truncation": "auto")", R"("n": 2)", R"("top_logprobs": 3)",
                            R"("response_format": {"type": "text"})", R"("min_tokens": -1)", R"("max_output_tokens": 0)",
                            R"("output_format": {"type": "json_schema"})", R"("output_config": {"format": {}})", R"("format": "json")"}) {
    const std::string name = std::string(field).substr(1, std::string(field).find('"', 1) - 1);
    EXPECT_EQ(refused_param("\"a\"", ", " + std::string(field)), name);
  }
  EXPECT_EQ(refused_param("\"a\"", R"(, "include": ["file_search_call.results"])"), "include[0]");
  EXPECT_EQ(refused_param("\"a\"", R"(, "text": {"format": {"type": "json_schema"}})"), "text.format.json_schema");
  EXPECT_EQ(asked("\"a\"", R"(, "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "null"}, "strict": true}})")
                .chat.form.field,
            "text.format.schema");
  EXPECT_EQ(refused_param("\"a\"", R"(, "text": {"verbosity": "low"})"), "text.verbosity");
  EXPECT_EQ(refused_param("\"a\"", R"(, "text": {"type": "json_schema", "schema": {}})"), "text.type");
  EXPECT_EQ(refused_param("\"a\"", R"(, "text": {"format": {"type": "json_object", "regex": "a"}})"), "text.format.regex");
  EXPECT_EQ(refused_param("\"a\"", R"(, "tools": [{"type": "code_interpreter"}])"), "tools[0].type");
  EXPECT_EQ(refused_param("\"a\"", R"(, "tools": [{"type": "function", "name": "a b"}])"), "tools[0].name");
  EXPECT_EQ(refused_param("\"a\"", R"(, "tool_choice": {"type": "custom", "name": "x"})"), "tool_choice");
  for (const char* harmless :
       {R"("store": true)", R"("store": null, "previous_response_id": null)", R"("background": false)", R"("truncation": "disabled")",
        R"("metadata": {"a": "b"})", R"("include": ["reasoning.encrypted_content"])", R"("text": {"format": {"type": "text"}})",
        R"("prompt_cache_key": "k", "service_tier": "auto", "client_metadata": {})",
        R"("reasoning": {"effort": "low", "summary": "auto"})"}) {
    EXPECT_EQ(refused_param("\"a\"", std::string(", ") + harmless), "accepted") << harmless;
    EXPECT_TRUE(asked("\"a\"", std::string(", ") + harmless).chat.unknown_fields.empty()) << harmless;
  }
}

TEST(responses_request, fields) {
  const ResponsesRequest r = asked(
      "\"a\"",
      R"(, "max_output_tokens": 7, "temperature": 0.5, "stream": true, "reasoning": {"effort": "high"}, "parallel_tool_calls": false, "include": ["message.output_text.logprobs"], "top_logprobs": 2, "x": 1, "tools": [)" +
          std::string(kShell) + "]");
  EXPECT_EQ(r.chat.engine.generation.max_tokens, 7);
  EXPECT_EQ(r.chat.engine.generation.sampling.temperature, 0.5);
  EXPECT_EQ(r.chat.engine.generation.sampling.logprobs, 2);
  EXPECT_EQ(r.chat.variables["reasoning_effort"], "xhigh");
  EXPECT_EQ(r.chat.max_tool_calls, 1);
  EXPECT_TRUE(r.chat.delivery.stream);
  EXPECT_EQ(r.chat.unknown_fields, (std::vector<std::string>{"x"}));
  EXPECT_EQ(r.echo["parallel_tool_calls"], false);
  EXPECT_EQ(r.echo["max_output_tokens"], 7);
  EXPECT_EQ(r.echo["tools"][0]["name"], "shell");
  EXPECT_EQ(asked("\"a\"", R"(, "reasoning": {"effort": "none"})").chat.variables["enable_thinking"], false);
  const ResponsesRequest forced =
      asked("\"a\"", R"(, "tool_choice": {"type": "function", "name": "shell"}, "tools": [)" + std::string(kShell) + "]");
  EXPECT_EQ(forced.chat.named_tool, "shell");
}

TEST(responses_request, tools_of_other_kinds) {
  const ResponsesRequest r = asked("\"a\"", R"(, "tools": [{"type": "web_search", "external_web_access": false},
      {"type": "namespace", "name": "mcp__notes", "description": "n", "tools": [{"type": "function", "name": "find", "parameters": {"type": "object"}}]},
      {"type": "custom", "name": "apply_patch", "description": "Edits files", "format": {"type": "text"}}])");
  EXPECT_EQ(r.chat.unknown_fields, (std::vector<std::string>{"tools[].type web_search"}));
  EXPECT_EQ(r.chat.variables["tools"].dump(),
            R"([{"type":"function","function":{"name":"mcp__notes__find","parameters":{"type":"object"}}},)"
            R"({"type":"function","function":{"name":"apply_patch","description":"Edits files","parameters":)"
            R"({"type":"object","properties":{"input":{"type":"string"}},"required":["input"]}}}])");
  EXPECT_EQ(r.tools.at("mcp__notes__find").name, "find");
  EXPECT_TRUE(r.tools.at("apply_patch").custom);
  RequestContext strict = responses_context();
  strict.strict_fields = true;
  EXPECT_THROW(parse_responses_request(R"({"input": "a", "tools": [{"type": "web_search"}]})", strict), RequestError);
}

struct NamedEvent {
  std::string name;
  Json data;
};

// Every event of a stream, with its name and number checked.
std::vector<NamedEvent> responses_events(std::string_view body) {
  std::vector<NamedEvent> events;
  while (!body.empty()) {
    const std::size_t end = body.find("\n\n"), line = body.find('\n');
    if (end == std::string_view::npos || !body.starts_with("event: ") || body.substr(line + 1, 6) != "data: ") {
      ADD_FAILURE() << body.substr(0, 200);
      return events;
    }
    events.push_back({std::string(body.substr(7, line - 7)), Json::parse(body.substr(line + 7, end - line - 7))});
    EXPECT_EQ(events.back().data["type"], events.back().name);
    EXPECT_EQ(events.back().data["sequence_number"], events.size() - 1);
    body.remove_prefix(end + 2);
  }
  return events;
}

std::string names_of(const std::vector<NamedEvent>& events) {
  std::string list, last;
  for (const NamedEvent& event : events)
    if (event.name != last) list += (list.empty() ? "" : " ") + (last = event.name).substr(9);  // without "response."
  return list;
}

// The items as a client puts them together from the deltas alone.
Json items_from_deltas(const std::vector<NamedEvent>& events) {
  Json items = Json::array();
  for (const auto& [name, data] : events) {
    if (name == "response.output_item.added") {
      EXPECT_EQ(data["output_index"], items.size());
      items.push_back(data["item"]);
    }
    if (!data.contains("delta")) continue;
    Json& item = items[data["output_index"].get<std::size_t>()];
    EXPECT_EQ(data["item_id"], item["id"]);
    if (item["type"] == "function_call")
      item["arguments"] = item["arguments"].get<std::string>() + data["delta"].get<std::string>();
    else if (item["type"] == "custom_tool_call")
      item["input"] = item["input"].get<std::string>() + data["delta"].get<std::string>();
    else
      item["text"] = item.value("text", "") + data["delta"].get<std::string>();
  }
  return items;
}

TEST(responses_route, an_answer_whole_and_in_a_stream) {
  ServerRig rig(answering("Right.\n</think>\n\nHello there."));
  const std::string ask = R"({"model":"test-model","input":"Hi","temperature":0,"reasoning":{"effort":"low"},"max_output_tokens":100)";
  const HttpResponse response = rig.call("POST", "/v1/responses", ask + "}");
  ASSERT_EQ(response.status, 200) << response.body;
  const Json whole = Json::parse(response.body);
  EXPECT_TRUE(whole["id"].get<std::string>().starts_with("resp_"));
  EXPECT_EQ(whole["object"], "response");
  EXPECT_EQ(whole["status"], "completed");
  EXPECT_TRUE(whole["error"].is_null() && whole["incomplete_details"].is_null());
  ASSERT_EQ(whole["output"].size(), 2u);
  EXPECT_EQ(whole["output"][0]["content"].dump(), R"([{"type":"reasoning_text","text":"Right."}])");
  EXPECT_EQ(whole["output"][1]["content"].dump(), R"([{"type":"output_text","text":"Hello there.","annotations":[],"logprobs":[]}])");
  const Json& usage = whole["usage"];
  EXPECT_EQ(usage["total_tokens"], usage["input_tokens"].get<int>() + usage["output_tokens"].get<int>());
  EXPECT_GT(usage["output_tokens_details"]["reasoning_tokens"], 0);
  EXPECT_EQ(usage["input_tokens_details"]["cached_tokens"], 0);

  const HttpResponse streamed = rig.call("POST", "/v1/responses", ask + R"(,"stream":true})");
  EXPECT_EQ(streamed.content_type, "text/event-stream; charset=utf-8");
  const std::vector<NamedEvent> events = responses_events(streamed.body);
  EXPECT_EQ(names_of(events),
            "created in_progress output_item.added content_part.added reasoning_text.delta reasoning_text.done content_part.done "
            "output_item.done output_item.added content_part.added output_text.delta output_text.done content_part.done output_item.done "
            "completed");
  EXPECT_EQ(events.front().data["response"]["status"], "in_progress");
  EXPECT_EQ(events.front().data["response"]["output"].dump(), "[]");
  const Json deltas = items_from_deltas(events);
  EXPECT_EQ(deltas[0]["text"], "Right.");
  EXPECT_EQ(deltas[1]["text"], "Hello there.");
  const Json& last = events.back().data["response"];
  for (const char* field : {"status", "usage", "model", "reasoning", "max_output_tokens"}) EXPECT_EQ(last[field], whole[field]) << field;
  EXPECT_EQ(last["output"][1]["content"], whole["output"][1]["content"]);
  EXPECT_EQ(events[events.size() - 2].data["item"], last["output"][1]);
}

TEST(responses_route, an_answer_cut_off_is_incomplete) {
  ServerRig rig(answering("one two three four five six"));
  const std::string ask = R"({"input":"Hi","temperature":0,"reasoning":{"effort":"none"},"max_output_tokens":2)";
  const Json whole = Json::parse(rig.call("POST", "/v1/responses", ask + "}").body);
  EXPECT_EQ(whole["status"], "incomplete");
  EXPECT_EQ(whole["incomplete_details"]["reason"], "max_output_tokens");
  EXPECT_EQ(whole["output"][0]["status"], "incomplete");
  EXPECT_EQ(responses_events(rig.call("POST", "/v1/responses", ask + R"(,"stream":true})").body).back().name, "response.incomplete");
}

TEST(responses_route, a_silent_stream_says_so_in_its_own_events) {
  std::promise<void> gate;
  ServerRig rig(answering("ok"));
  rig.backend.before_step = [open = gate.get_future().share()](const StepBatch&) { open.wait(); };
  Reply reply = rig.start("POST", "/v1/responses", R"({"input":"Hi","temperature":0,"stream":true})");
  PendingReply& pending = *std::get<std::unique_ptr<PendingReply>>(reply);
  EXPECT_EQ(pending.keepalive(), ": keepalive\n\n");  // nothing was taken: clients expect response.created first
  std::string stream;
  for (int i = 0; i < 4000 && stream.empty(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    stream += pending.take();
  }
  stream += pending.keepalive();
  gate.set_value();
  stream += ServerRig::finish(std::move(reply)).body;
  const std::vector<NamedEvent> events = responses_events(stream);  // whose numbers count up
  ASSERT_GT(events.size(), 3u);
  EXPECT_EQ(events[2].name, "keepalive");
}

TEST(responses_route, failures) {
  ServerRig rig(answering("ok"));
  rig.backend.fault_token = ServerRig::tokenizer().encode("boom").front();
  const std::string ask = R"({"input":"boom","temperature":0)";
  EXPECT_EQ(rig.call("POST", "/v1/responses", ask + "}").status, 500);
  const std::vector<NamedEvent> events = responses_events(rig.call("POST", "/v1/responses", ask + R"(,"stream":true})").body);
  EXPECT_EQ(names_of(events), "created in_progress failed");
  EXPECT_EQ(events.back().data["response"]["status"], "failed");
  EXPECT_EQ(events.back().data["response"]["error"]["code"], "server_error");
  EXPECT_EQ(events.back().data["response"]["error"]["type"], "numeric_error");
  const HttpResponse refused = rig.call("POST", "/v1/responses", R"({"input":"a","previous_response_id":"resp_1","stream":true})");
  EXPECT_EQ(refused.status, 400);
  EXPECT_EQ(Json::parse(refused.body)["error"]["param"], "previous_response_id");
}

TEST(responses_route, stored_responses_are_not_there) {
  ServerRig rig(answering("ok"));
  for (const auto& [method, path] : {std::pair("GET", "/v1/responses/resp_1"),
                                     {"DELETE", "/v1/responses/resp_1"},
                                     {"POST", "/v1/responses/resp_1/cancel"},
                                     {"GET", "/v1/responses/resp_1/input_items"}}) {
    const HttpResponse response = rig.call(method, path);
    EXPECT_EQ(response.status, 404) << path;
    EXPECT_EQ(Json::parse(response.body)["error"]["code"], "response_not_found");
  }
  EXPECT_EQ(rig.call("GET", "/v1/responses").status, 405);
}

// What the Codex command line sends in its turns: instructions, a developer message, tools of several kinds, then its own items back.
TEST(responses_route, a_coding_agent_over_several_turns) {
  const std::string calls =
      "Look.\n</think>\n\nI list them.\n\n<tool_call>\n<function=shell>\n<parameter=command>\n[\"ls\", "
      "\"-a\"]\n</parameter>\n<parameter=workdir>\n/tmp "
      "\"x\"\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=apply_patch>\n<parameter=input>\n*** Begin Patch\n+a\n*** "
      "End "
      "Patch\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=mcp__notes__find>\n<parameter=q>\nx\n</parameter>\n</"
      "function>\n</tool_call>";
  Json ask = Json::parse(
      R"({"model": "test-model", "instructions": "You are a coding agent.", "tool_choice": "auto", "parallel_tool_calls": true,
      "reasoning": {"effort": "medium", "summary": "auto"}, "store": false, "stream": true, "include": ["reasoning.encrypted_content"],
      "prompt_cache_key": "thread-1", "text": {"verbosity": "medium"}, "client_metadata": {"session_id": "s"}, "temperature": 0,
      "input": [{"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "<permissions>read</permissions>"}]},
                {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "<environment_context/>"}]},
                {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "List the files"}]}],
      "tools": [)" +
      std::string(kShell) +
      R"(, {"type": "custom", "name": "apply_patch", "description": "p", "format": {"type": "grammar", "syntax": "lark", "definition": "start: x"}},
                {"type": "web_search", "external_web_access": false},
                {"type": "namespace", "name": "mcp__notes__", "description": "", "tools": [{"type": "function", "name": "find", "parameters": {"type": "object", "properties": {"q": {"type": "string"}}}}]}]})");
  Json items;
  {
    ServerRig rig(answering(calls));
    const HttpResponse response = rig.call("POST", "/v1/responses", ask.dump());
    ASSERT_EQ(response.status, 200) << response.body;
    const std::vector<NamedEvent> events = responses_events(response.body);
    ASSERT_EQ(events.back().name, "response.completed") << events.back().data;
    items = events.back().data["response"]["output"];
    EXPECT_EQ(rig.logged.size(), 2u);  // web_search and the grammar, which have no effect
  }
  ASSERT_EQ(items.size(), 5u) << items;
  EXPECT_EQ(items[0]["type"], "reasoning");
  EXPECT_EQ(items[1]["content"][0]["text"], "I list them.");
  EXPECT_EQ(items[2]["type"], "function_call");
  EXPECT_EQ(items[2]["name"], "shell");
  EXPECT_EQ(Json::parse(items[2]["arguments"].get<std::string>()).dump(), R"({"command":["ls","-a"],"workdir":"/tmp \"x\""})");
  EXPECT_EQ(items[3]["type"], "custom_tool_call");
  EXPECT_EQ(items[3]["input"], "*** Begin Patch\n+a\n*** End Patch");
  EXPECT_EQ(items[4]["name"], "find");
  EXPECT_EQ(items[4]["namespace"], "mcp__notes__");

  for (const Json& item : items) ask["input"].push_back(item);
  ask["input"].push_back({{"type", "function_call_output"}, {"call_id", items[4]["call_id"]}, {"output", "none"}});
  ask["input"].push_back({{"type", "custom_tool_call_output"}, {"call_id", items[3]["call_id"]}, {"output", "done"}});
  ask["input"].push_back({{"type", "function_call_output"}, {"call_id", items[2]["call_id"]}, {"output", "a.txt"}});
  ServerRig rig(answering("Good.\n</think>\n\nThere is a.txt."));
  const Json rendered = Json::parse(rig.call("POST", "/v1/responses/render", ask.dump()).body);
  const std::string prompt = ServerRig::tokenizer().decode(rendered["token_ids"].get<std::vector<int>>());
  // What the model wrote is what it sees again, and the results stand in the order of the calls.
  EXPECT_NE(prompt.find("<think>\n" + calls.substr(0, calls.find("\n\n<tool_call>"))), std::string::npos) << prompt;
  EXPECT_NE(prompt.find("<function=apply_patch>\n<parameter=input>\n*** Begin Patch\n+a\n*** End Patch\n</parameter>"), std::string::npos);
  EXPECT_NE(prompt.find("<function=mcp__notes__find>"), std::string::npos);
  EXPECT_LT(prompt.find("a.txt\n"), prompt.find("done\n"));
  EXPECT_LT(prompt.find("done\n"), prompt.find("none\n"));
  const std::vector<NamedEvent> events = responses_events(rig.call("POST", "/v1/responses", ask.dump()).body);
  EXPECT_EQ(events.back().data["response"]["output"][1]["content"][0]["text"], "There is a.txt.");
  EXPECT_EQ(events.back().data["response"]["usage"]["input_tokens"], rendered["token_ids"].size());
}

TEST(render_routes, prompts_are_shown_and_not_run) {
  ServerRig rig(answering("ok"));
  const std::string chat = R"("messages":[{"role":"user","content":"Hi"}],"seed":5)";
  const Json shown = Json::parse(rig.call("POST", "/v1/chat/completions/render", "{" + chat + R"(,"max_tokens":9,"stop":"x"})").body);
  const Json tokens = Json::parse(rig.call("POST", "/tokenize", "{" + chat + "}").body)["tokens"];
  EXPECT_EQ(shown["token_ids"], tokens);
  EXPECT_EQ(shown["model"], "test-model");
  EXPECT_TRUE(shown["request_id"].get<std::string>().starts_with("chatcmpl-"));
  EXPECT_EQ(shown["sampling_params"]["max_tokens"], 9);
  EXPECT_EQ(shown["sampling_params"]["seed"], 5);
  EXPECT_EQ(shown["sampling_params"]["stop"].dump(), R"(["x"])");
  EXPECT_TRUE(shown["features"].is_null());
  const Json prompts = Json::parse(rig.call("POST", "/v1/completions/render", R"({"prompt":[[5,6],[7]]})").body);
  ASSERT_EQ(prompts.size(), 2u);
  EXPECT_EQ(prompts[0]["token_ids"].dump(), "[5,6]");
  EXPECT_EQ(prompts[1]["sampling_params"]["max_tokens"], 4095);
  const Json applied = Json::parse(rig.call("POST", "/apply-template", "{" + chat + "}").body);
  EXPECT_EQ(ServerRig::tokenizer().encode(applied["prompt"].get<std::string>()), tokens.get<std::vector<int>>());
  EXPECT_EQ(Json::parse(rig.call("POST", "/v1/responses/render", R"({"input":"Hi"})").body)["token_ids"], tokens);
  EXPECT_EQ(rig.call("POST", "/v1/chat/completions/render", R"({"messages":[]})").status, 400);
  // What would be refused is refused here, in the same words.
  const std::string open = "{" + chat, schema = R"("response_format":{"type":"json_schema","schema":{"not":{}}})";
  const std::string tool = R"("tools":[{"type":"function","function":{"name":"f"}}])";
  const std::pair<std::string, std::vector<std::string>> refused[] = {
      {open + "," + schema + "}", {"/v1/chat/completions", "/v1/chat/completions/render", "/apply-template"}},
      {open + "," + tool + R"(,"regex":"a"})", {"/v1/chat/completions", "/v1/chat/completions/render", "/apply-template"}},
      {open + R"x(,"regex":"(?=a)"})x", {"/v1/chat/completions", "/v1/chat/completions/render", "/apply-template"}},
      {open + R"(,"prompt_logprobs":20,"n":16,"max_tokens":0,"return_prompt_text":true,"stop":[""]})",
       {"/v1/chat/completions", "/v1/chat/completions/render", "/apply-template"}},
      {R"({"prompt":"a",)" + schema + "}", {"/v1/completions", "/v1/completions/render"}},
      {R"({"prompt":["a",""]})", {"/v1/completions", "/v1/completions/render"}},
      {R"({"input":"Hi","text":{"format":{"type":"json_schema","name":"n","schema":{"not":{}}}}})",
       {"/v1/responses", "/v1/responses/render"}},
  };
  for (const auto& [body, paths] : refused) {
    const HttpResponse first = rig.call("POST", paths[0], body);
    EXPECT_EQ(first.status, 400) << body;
    for (const std::string& path : paths) {
      const HttpResponse response = rig.call("POST", path, body);
      EXPECT_EQ(response.status, 400) << path << " " << body;
      EXPECT_EQ(response.body, first.body) << path;
    }
  }
  EXPECT_EQ(rig.engine->stats().submitted, 0u);
  const Json loads = Json::parse(rig.call("GET", "/v1/loads").body);
  EXPECT_EQ(loads["loads"][0]["num_running_reqs"], 0);
}

}  // namespace
}  // namespace tetrad::responses_test
