// Routes, keys and life-cycle, without sockets.
#include "server/router.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "support/server_rig.h"

namespace tetrad::router_test {
namespace {

using testing::answering;
using testing::ServerRig;
using Json = nlohmann::ordered_json;

std::string header(const HttpResponse& response, std::string_view wanted) {
  for (const auto& [name, value] : response.headers)
    if (name == wanted) return value;
  return {};
}

Json error_of(const HttpResponse& response) { return Json::parse(response.body).at("error"); }

TEST(router, keys_guard_every_route_but_health) {
  ServerRig rig(answering("x"), {.keys = {"secret"}});
  for (const char* path : {"/health", "/health/ready", "/health/live", "/ping"}) EXPECT_EQ(rig.call("GET", path).status, 200) << path;
  for (const char* path : {"/version", "/metrics", "/load", "/v1/models", "/v1/models/test-model", "/tokenizer_info", "/nothing"}) {
    const HttpResponse refused = rig.call("GET", path);
    EXPECT_EQ(refused.status, 401) << path;
    EXPECT_EQ(header(refused, "WWW-Authenticate"), "Bearer");
    EXPECT_EQ(error_of(refused).at("code"), "invalid_api_key");
    EXPECT_NE(rig.call("GET", path, "", {{"authorization", "Bearer secret"}}).status, 401) << path;
    EXPECT_EQ(rig.call("GET", path, "", {{"authorization", "Bearer secre"}}).status, 401) << path;
  }
  for (const char* path : {"/tokenize", "/detokenize", "/v1/completions", "/v1/chat/completions", "/v1/messages"})
    EXPECT_EQ(rig.call("POST", path, "{}").status, 401) << path;
  EXPECT_EQ(rig.call("POST", "/v1/messages", "{}", {{"x-api-key", "wrong"}}).status, 401);
  const HttpResponse anthropic = rig.call("POST", "/v1/messages", "{}");
  EXPECT_EQ(Json::parse(anthropic.body).at("type"), "error");
  EXPECT_EQ(error_of(anthropic).at("type"), "authentication_error");
}

TEST(router, unknown_routes_methods_and_types) {
  ServerRig rig(answering("x"));
  const HttpResponse nothing = rig.call("GET", "/v1/nothing");
  EXPECT_EQ(nothing.status, 404);
  EXPECT_EQ(error_of(nothing).at("param"), nullptr);
  EXPECT_EQ(rig.call("POST", "/v1/embeddings", "{}").status, 404);
  const HttpResponse wrong = rig.call("GET", "/v1/chat/completions");
  EXPECT_EQ(wrong.status, 405);
  EXPECT_EQ(header(wrong, "Allow"), "POST");
  EXPECT_EQ(rig.call("POST", "/health", "{}").status, 405);
  EXPECT_EQ(rig.call("HEAD", "/health").status, 200);
  EXPECT_EQ(rig.call("DELETE", "/v1/models").status, 405);
  EXPECT_EQ(rig.call("POST", "/tokenize", "{}", {{"content-type", "text/plain"}}).status, 415);
  EXPECT_EQ(rig.call("POST", "/tokenize", R"({"prompt":"a"})", {{"content-type", "Application/JSON; charset=utf-8"}}).status, 200);
  EXPECT_EQ(rig.call("GET", "/health/?x=1").status, 200);
}

TEST(router, loading_and_draining) {
  ServerRig rig(answering("x"), {}, false);
  rig.state.set_progress(0.431);
  for (const char* path : {"/health", "/health/ready"}) {
    const HttpResponse response = rig.call("GET", path);
    EXPECT_EQ(response.status, 503);
    EXPECT_EQ(response.body, R"({"status":"loading","progress":0.431})");
  }
  EXPECT_EQ(rig.call("GET", "/health/live").status, 200);
  EXPECT_EQ(rig.call("GET", "/version").status, 200);
  const HttpResponse early = rig.call("POST", "/v1/chat/completions", "{}");
  EXPECT_EQ(early.status, 503);
  EXPECT_NE(header(early, "Retry-After"), "");
  EXPECT_EQ(error_of(early).at("code"), "loading");
  EXPECT_EQ(rig.call("GET", "/v1/models").status, 503);
  rig.state.set_ready();
  EXPECT_EQ(rig.call("GET", "/health").body, R"({"status":"ok"})");
  rig.state.set_draining();
  rig.state.set_ready();  // no way back
  EXPECT_EQ(rig.call("GET", "/health").status, 503);
  EXPECT_EQ(rig.call("GET", "/health").body, R"({"status":"draining"})");
  EXPECT_EQ(rig.call("GET", "/health/live").status, 200);
  EXPECT_EQ(rig.call("GET", "/metrics").status, 200);
  const HttpResponse late = rig.call("POST", "/v1/completions", R"({"prompt":"a"})");
  EXPECT_EQ(late.status, 503);
  EXPECT_EQ(error_of(late).at("code"), "draining");
}

TEST(router, models) {
  ServerRig rig(answering("x"));
  const Json list = Json::parse(rig.call("GET", "/v1/models").body);
  EXPECT_EQ(list.at("object"), "list");
  ASSERT_EQ(list.at("data").size(), 2u);
  EXPECT_EQ(list["data"][0].at("id"), "test-model");
  EXPECT_EQ(list["data"][0].at("max_model_len"), 4096);
  EXPECT_EQ(Json::parse(rig.call("GET", "/v1/models/alias%2Fwith-slash").body).at("id"), "alias/with-slash");
  EXPECT_EQ(Json::parse(rig.call("GET", "/v1/models/alias/with-slash").body).at("id"), "alias/with-slash");
  const HttpResponse unknown = rig.call("GET", "/v1/models/other");
  EXPECT_EQ(unknown.status, 404);
  EXPECT_EQ(error_of(unknown).at("code"), "model_not_found");
}

TEST(router, text_and_tokens_and_back) {
  ServerRig rig(answering("x"));
  const std::string text = "Caf\xC3\xA9 <|im_end|> 12";
  const std::vector<int> ids = ServerRig::tokenizer().encode(text);
  const Json answer = Json::parse(
      rig.call("POST", "/tokenize", Json{{"prompt", text}, {"add_special_tokens", false}, {"return_token_strs", true}}.dump()).body);
  EXPECT_EQ(answer.at("tokens"), Json(ids));
  EXPECT_EQ(answer.at("count"), ids.size());
  EXPECT_EQ(answer.at("max_model_len"), 4096);
  EXPECT_EQ(answer.at("token_strs").size(), ids.size());
  EXPECT_EQ(Json::parse(rig.call("POST", "/detokenize", Json{{"tokens", ids}}.dump()).body).at("prompt"), text);
  EXPECT_EQ(Json::parse(rig.call("POST", "/detokenize", R"({"tokens":[]})").body).at("prompt"), "");
  EXPECT_EQ(Json::parse(rig.call("GET", "/tokenizer_info").body).at("eos_token"), "<|im_end|>");
}

TEST(router, tokens_that_are_none_are_refused_by_index) {
  ServerRig rig(answering("x"));
  for (const char* token : {"-1", "4294967297", "2147483648", "18446744073709551615", "1.5", "\"5\"", "null", "[1]", "true", "{}"}) {
    const HttpResponse refused = rig.call("POST", "/detokenize", fmt::format(R"({{"tokens":[1,{}]}})", token));
    EXPECT_EQ(refused.status, 400) << token;
    EXPECT_EQ(error_of(refused).at("param"), "tokens[1]") << token;
  }
  EXPECT_EQ(error_of(rig.call("POST", "/detokenize", "{}")).at("param"), "tokens");
  EXPECT_EQ(error_of(rig.call("POST", "/tokenize", "{}")).at("param"), "prompt");
  EXPECT_EQ(error_of(rig.call("POST", "/tokenize", R"({"prompt":5})")).at("param"), "prompt");
}

TEST(router, hostile_bodies_are_400_and_the_server_lives) {
  ServerRig rig(answering("x"));
  std::vector<std::string> bodies = {"",
                                     "{",
                                     "[]",
                                     "null",
                                     "5",
                                     "{\"prompt\":\"a\"",
                                     "{\"prompt\":\"\xFF\"}",
                                     R"({"prompt":"a","prompt":"b"})",
                                     R"({"prompt":"\ud800"})",
                                     std::string("{\"prompt\":\"a\0\"}", 14)};
  for (const int depth : {100, 100'000}) bodies.push_back(std::string(static_cast<std::size_t>(depth), '['));
  bodies.push_back(fmt::format("{{\"prompt\":{}{}}}", std::string(100'000, '['), std::string(100'000, ']')));
  for (const std::string& body : bodies) {
    for (const char* path :
         {"/tokenize", "/detokenize", "/v1/completions", "/v1/chat/completions", "/v1/messages", "/v1/messages/count_tokens"}) {
      const HttpResponse refused = rig.call("POST", path, body);
      EXPECT_EQ(refused.status, 400) << path << " " << body.substr(0, 50);
      EXPECT_NO_THROW((void)error_of(refused).at("message")) << refused.body;
    }
  }
  EXPECT_EQ(rig.call("POST", "/tokenize", R"({"prompt":"a"})").status, 200);
}

TEST(router, text_without_end_is_refused_before_it_is_encoded) {
  ServerRig rig(answering("x"));
  const HttpResponse refused = rig.call("POST", "/tokenize", R"({"prompt":")" + std::string(20'000'000, 'a') + R"("})");
  EXPECT_EQ(refused.status, 400);
  EXPECT_EQ(error_of(refused).at("code"), "context_length_exceeded");
  EXPECT_TRUE(error_of(refused).at("message").get<std::string>().starts_with("This model's maximum context length is 4096 tokens"));
}

TEST(router, metrics_are_of_the_kind_that_scrapers_read) {
  ServerRig rig(answering("x"));
  rig.router.finished({.method = "GET", .path = "/v1/models/whatever"}, 200, 0.01);
  rig.router.finished({.method = "BREW", .path = "/made/up"}, 404, 0.01);
  rig.router.finished({.method = "POST", .path = "/v1/completions"}, 499, 0.01);
  const HttpResponse response = rig.call("GET", "/metrics");
  EXPECT_EQ(response.content_type, "text/plain; version=0.0.4; charset=utf-8");
  for (const char* line :
       {"# TYPE vllm:num_requests_running gauge\n", "vllm:num_requests_running{model_name=\"test-model\",engine=\"0\"} 0\n",
        "vllm:num_requests_waiting{model_name=\"test-model\",engine=\"0\"} 0\n",
        "vllm:kv_cache_usage_perc{model_name=\"test-model\",engine=\"0\"} 0\n",
        "vllm:cache_config_info{model_name=\"test-model\",engine=\"0\",block_size=\"8\",num_gpu_blocks=\"1024\"} 1\n",
        "vllm:request_success_total{model_name=\"test-model\",engine=\"0\",finished_reason=\"abort\"} 0\n",
        "vllm:time_to_first_token_seconds_bucket{model_name=\"test-model\",engine=\"0\",le=\"+Inf\"} 0\n",
        "http_requests_total{handler=\"/v1/models/\",method=\"GET\",status=\"200\"} 1\n",
        "http_requests_total{handler=\"unmatched\",method=\"other\",status=\"404\"} 1\n", "tetrad:client_disconnects_total 1\n"})
    EXPECT_NE(response.body.find(line), std::string::npos) << line << response.body;
  // Series of what this engine does not do are absent.
  EXPECT_EQ(response.body.find("spec_decode"), std::string::npos);
}

}  // namespace
}  // namespace tetrad::router_test
