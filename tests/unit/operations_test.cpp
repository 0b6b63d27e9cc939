// What those who run the server see and set: origins, the journal of requests, the line of activity, the status of a full queue.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/error.h"
#include "server/activity.h"
#include "support/server_rig.h"

namespace tetrad::operations_test {
namespace {

using testing::answering;
using testing::ServerRig;
using testing::ServerRigOptions;
using Json = nlohmann::ordered_json;

constexpr std::string_view kSecretChat =
    R"({"messages":[{"role":"user","content":"The word is XYZZY"}],"enable_thinking":false,"temperature":0,"max_tokens":50)";

std::string header_of(const Headers& headers, std::string_view wanted) {
  for (const auto& [name, value] : headers)
    if (name == wanted) return value;
  return {};
}

HttpRequest from_origin(std::string method, std::string origin, Headers more = {}) {
  HttpRequest request{.method = std::move(method), .path = "/v1/chat/completions"};
  request.headers = std::move(more);
  if (!origin.empty()) request.headers.emplace_back("origin", std::move(origin));
  return request;
}

TEST(cors, is_off_by_default) {
  ServerRig rig(answering("x"));
  const HttpRequest asked = from_origin("OPTIONS", "https://a.example", {{"access-control-request-method", "POST"}});
  EXPECT_EQ(rig.router.screen(asked)->status, 405);
  EXPECT_TRUE(rig.router.extra_headers(asked).empty());
}

TEST(cors, answers_allowed_origins_alone) {
  ServerRig rig(answering("x"), {.keys = {"secret"}, .allowed_origins = {"https://a.example", "http://localhost:3000"}});
  const Headers asking = {{"access-control-request-method", "POST"}, {"access-control-request-headers", "authorization,content-type"}};
  const HttpRequest asked = from_origin("OPTIONS", "http://localhost:3000", asking);
  const auto allowed = rig.router.screen(asked);  // without a key: browsers send none
  ASSERT_NE(allowed, nullptr);
  EXPECT_EQ(allowed->status, 204);
  EXPECT_EQ(header_of(allowed->headers, "Access-Control-Allow-Methods"), "POST");
  EXPECT_EQ(header_of(allowed->headers, "Access-Control-Allow-Headers"), "authorization,content-type");
  const Headers extra = rig.router.extra_headers(asked);
  EXPECT_EQ(header_of(extra, "Access-Control-Allow-Origin"), "http://localhost:3000");
  EXPECT_EQ(header_of(extra, "Vary"), "Origin");
  EXPECT_EQ(header_of(extra, "Access-Control-Allow-Credentials"), "");
  // A request itself still needs the key, and its refusal can be read.
  EXPECT_EQ(rig.router.screen(from_origin("POST", "https://a.example"))->status, 401);
  EXPECT_NE(header_of(rig.router.extra_headers(from_origin("POST", "https://a.example")), "Access-Control-Allow-Origin"), "");

  for (const char* origin : {"https://a.example.evil", "http://a.example", "https://A.EXAMPLE", "null", ""}) {
    EXPECT_EQ(rig.router.screen(from_origin("OPTIONS", origin, asking))->status, 401) << origin;
    EXPECT_EQ(header_of(rig.router.extra_headers(from_origin("POST", origin)), "Access-Control-Allow-Origin"), "") << origin;
  }
  const Headers splitting = {{"access-control-request-method", "POST"}, {"access-control-request-headers", "a\r\nSet-Cookie: b"}};
  EXPECT_NE(rig.router.screen(from_origin("OPTIONS", "https://a.example", splitting))->status, 204);
}

TEST(cors, a_star_never_allows_credentials) {
  const CorsPolicy policy({"*"});
  const Headers extra = policy.headers(from_origin("POST", "https://whoever.example"));
  EXPECT_EQ(header_of(extra, "Access-Control-Allow-Origin"), "*");
  EXPECT_EQ(header_of(extra, "Access-Control-Allow-Credentials"), "");
  EXPECT_TRUE(policy.headers(from_origin("POST", "")).empty());
  for (const char* wrong : {"", "a.example", "https://a.example/", "https://A.example", "https://", "https://a.example\r\nX: y", "null"})
    EXPECT_THROW(CorsPolicy({wrong}), InputError) << wrong;
}

// The lines of the journal as objects.
std::vector<Json> journal_of(ServerRig& rig, const std::function<void()>& requests) {
  std::vector<Json> lines;
  rig.journal.write_json_to([&](const std::string& line) { lines.push_back(Json::parse(line)); });
  requests();
  return lines;
}

TEST(request_journal, tells_counts_and_times_and_no_content) {
  ServerRig rig(answering("The answer is PLUGH"), {.keys = {"topsecretkey"}});
  std::string text;
  rig.journal.write_text_to([&](const std::string& line) { text += line + "\n"; });
  const std::string parent = "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01";
  const Headers headers = {{"authorization", "Bearer topsecretkey"}, {"traceparent", parent}};
  const std::vector<Json> lines = journal_of(rig, [&] {
    EXPECT_EQ(rig.call("POST", "/v1/chat/completions", fmt::format("{}}}", kSecretChat), headers).status, 200);
    EXPECT_EQ(rig.call("POST", "/v1/chat/completions", R"({"messages":[{"role":"XYZZY","content":"a"}]})", headers).status, 400);
  });
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[0].at("event"), "start");
  const Json& done = lines[1];
  EXPECT_EQ(done.at("event"), "done");
  EXPECT_EQ(done.at("request_id"), "req-test");
  EXPECT_EQ(done.at("route"), "/v1/chat/completions");
  EXPECT_EQ(done.at("model"), "test-model");
  EXPECT_EQ(done.at("traceparent"), parent);
  EXPECT_EQ(done.at("max_tokens"), 50);
  EXPECT_EQ(done.at("finish_reasons"), Json::array({"stop"}));
  EXPECT_EQ(done.at("prompt_tokens"), lines[0].at("prompt_tokens"));
  EXPECT_EQ(done.at("cached_tokens"), 0);
  EXPECT_EQ(done.at("completion_tokens").get<std::size_t>(), ServerRig::tokenizer().encode("The answer is PLUGH").size() + 1);
  const Json& seconds = done.at("seconds");
  EXPECT_GE(seconds.at("total").get<double>(), seconds.at("first_token").get<double>());
  EXPECT_NEAR(seconds.at("first_token").get<double>(), seconds.at("queue").get<double>() + seconds.at("prefill").get<double>(), 1e-6);
  EXPECT_EQ(lines[2].at("event"), "error");
  EXPECT_EQ(lines[2].at("status"), 400);
  EXPECT_EQ(lines[2].at("param"), "messages[0].role");
  for (const Json& line : lines) text += line.dump();
  for (const char* content : {"XYZZY", "PLUGH", "topsecretkey", "word"}) EXPECT_EQ(text.find(content), std::string::npos) << content;
  ASSERT_EQ(rig.journal.recent().size(), 1u);
}

TEST(request_journal, a_trace_parent_of_another_form_is_left_out) {
  ServerRig rig(answering("x"));
  for (const char* parent :
       {"x", "00-0123456789ABCDEF0123456789abcdef-0123456789abcdef-01", "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01-x"})
    EXPECT_EQ(trace_of({.headers = {{"traceparent", parent}}}, "m", false).trace_parent, "") << parent;
}

TEST(request_journal, a_client_that_leaves_and_many_prompts) {
  ServerRig rig(testing::canned_script({}, 7));
  const std::vector<Json> lines = journal_of(rig, [&] {
    Reply reply = rig.start("POST", "/v1/completions", R"({"prompt":["a","b"],"max_tokens":4000,"ignore_eos":true})");
    std::get<std::unique_ptr<PendingReply>>(reply)->abandon();
  });
  ASSERT_EQ(lines.size(), 4u);
  for (const int prompt : {0, 1}) {
    const Json& end = lines[static_cast<std::size_t>(2 + prompt)];
    EXPECT_EQ(end.at("prompt"), prompt);
    EXPECT_EQ(end.at("finish_reasons"), Json::array({"abort"}));
  }
}

// As far as it came: waiting, computing its prompt, or answering.
TEST(request_journal, a_request_that_is_given_up_has_the_times_of_its_phases) {
  for (const int phase : {0, 1, 2}) {
    ServerRigOptions options;
    options.sizes.num_slots = 1;
    ServerRig rig(testing::canned_script({}, 7), options);
    std::promise<void> begun, let_go;
    const int held_step = phase == 2 ? 4 : 1;  // the first step computes the prompt, each later one a token
    rig.backend.before_step = [&begun, held_step, step = 0, held = let_go.get_future().share()](const StepBatch&) mutable {
      if (++step == held_step) begun.set_value();
      if (step >= held_step) held.wait();
    };
    const std::string endless = R"({"prompt":"a","max_tokens":4000,"ignore_eos":true})";
    const std::vector<Json> lines = journal_of(rig, [&] {
      Reply first = rig.start("POST", "/v1/completions", endless);
      begun.get_future().wait();
      if (phase == 0) {
        Reply second = rig.start("POST", "/v1/completions", endless);
        std::get<std::unique_ptr<PendingReply>>(second)->abandon();
      }
      std::get<std::unique_ptr<PendingReply>>(first)->abandon();
    });
    let_go.set_value();
    const Json& end = lines.at(phase == 0 ? 2 : 1);
    ASSERT_EQ(end.at("finish_reasons"), Json::array({"abort"})) << end;
    const Json& seconds = end.at("seconds");
    const double total = seconds.at("total"), queue = seconds.at("queue");
    EXPECT_EQ(seconds.contains("prefill"), phase > 0) << end;
    EXPECT_EQ(seconds.contains("decode"), phase == 2) << end;
    EXPECT_EQ(end.at("completion_tokens"), phase == 2 ? 3 : 0) << end;
    if (phase == 0) {
      EXPECT_EQ(queue, total);
    } else if (phase == 1) {
      EXPECT_NEAR(seconds.at("prefill").get<double>(), total - queue, 1e-9);
    } else {
      EXPECT_NEAR(seconds.at("prefill").get<double>(), seconds.at("first_token").get<double>() - queue, 1e-9);
      EXPECT_GT(seconds.at("decode").get<double>(), 0);
      EXPECT_LE(seconds.at("first_token").get<double>() + seconds.at("decode").get<double>(), total);
    }
  }
}

TEST(request_journal, keeps_the_newest) {
  RequestJournal journal;
  for (int i = 0; i < 60; ++i) {
    JournalEntry entry;
    entry.trace.id = std::to_string(i);
    journal.ended(entry);
  }
  ASSERT_EQ(journal.recent().size(), RequestJournal::kKept);
  EXPECT_EQ(journal.recent(2)[1].trace.id, "58");
}

TEST(activity, speaks_while_something_happens) {
  EngineStats before, now;
  before.pages = now.pages = 80;
  EXPECT_TRUE(Activity::between(before, now, 10).idle);
  now.prompt_tokens = 1200;
  now.cached_tokens = 300;
  now.generated_tokens = 451;
  now.requests_running = 2;
  now.pages_taken = 30;
  now.prefix_cache.device_pages = 20;
  now.prefix_cache.tokens_queried = 1200;
  now.prefix_cache.tokens_reused = 300;
  const Activity activity = Activity::between(before, now, 10);
  EXPECT_FALSE(activity.idle);
  EXPECT_EQ(activity_line(activity), "running 2, waiting 0; prompt 120.0 tok/s, generation 45.1 tok/s; KV use 12.5%, prefix hits 25.0%");
  const Json json = Json::parse("{" + activity_json(activity) + "}");
  EXPECT_EQ(json.at("running"), 2);
  EXPECT_EQ(json.at("prefix_hit_rate"), 0.25);
  EXPECT_EQ(activity.computed_rate, 90);
  EXPECT_FALSE(Activity::between(now, now, 10).idle);  // two requests run: a prompt is long
}

TEST(stats, percentiles_of_what_came_since) {
  Histogram before({1, 2, 4}), now({1, 2, 4});
  for (int i = 0; i < 50; ++i) before.observe(0.5);
  now = before;
  EXPECT_EQ(percentiles_between(before, now).count, 0u);
  for (int i = 0; i < 10; ++i) now.observe(1.5);
  const Percentiles p = percentiles_between(before, now);
  EXPECT_EQ(p.count, 10u);
  EXPECT_DOUBLE_EQ(p.p50, 1.5);
  EXPECT_DOUBLE_EQ(p.p90, 1.9);
  now.observe(1000);
  EXPECT_DOUBLE_EQ(percentiles_between(before, now).p99, 4);  // more is not known
}

TEST(stats, the_sampler_keeps_a_minute) {
  StatsSampler sampler;
  const StatsSampler::Clock::time_point start;
  EXPECT_FALSE(sampler.before(StatsSampler::kRateWindow, start));
  EngineStats stats;
  for (int second = 0; second <= 100; ++second) {
    stats.generated_tokens = static_cast<std::uint64_t>(second);
    sampler.add(stats, start + std::chrono::seconds(second));
  }
  const auto now = start + std::chrono::seconds(100);
  EXPECT_EQ(sampler.before(std::chrono::seconds(5), now)->stats.generated_tokens, 95u);
  EXPECT_EQ(sampler.before(std::chrono::seconds(1000), now)->stats.generated_tokens, 40u);
  EXPECT_DOUBLE_EQ(sampler.before(std::chrono::seconds(5), now)->seconds, 5);
}

TEST(stats, tell_what_happens_and_no_content) {
  ServerRig rig(answering("The answer is PLUGH"), {.keys = {"k"}}, false);
  const Headers key = {{"authorization", "Bearer k"}};
  EXPECT_EQ(rig.call("GET", "/v1/stats").status, 401);
  rig.state.set_progress(0.25);
  const Json loading = Json::parse(rig.call("GET", "/v1/stats", "", key).body);
  EXPECT_EQ(loading.at("phase"), "loading");
  rig.state.set_ready();
  rig.sampler.add(rig.engine->stats(), StatsSampler::Clock::now() - std::chrono::seconds(10));
  ASSERT_EQ(rig.call("POST", "/v1/chat/completions", fmt::format("{}}}", kSecretChat), key).status, 200);
  while (rig.engine->stats().finished == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  const std::string body = rig.call("GET", "/v1/stats", "", key).body;
  const Json stats = Json::parse(body);
  EXPECT_EQ(stats.at("phase"), "ready");
  EXPECT_EQ(stats.at("model"), "test-model");
  EXPECT_EQ(stats.at("requests").at("finished"), 1);
  EXPECT_GT(stats.at("rates").at("generation_tokens_per_second").get<double>(), 0);
  EXPECT_EQ(stats.at("latency_seconds").at("first_token").at("count"), 1);
  ASSERT_EQ(stats.at("recent").size(), 1u);
  EXPECT_EQ(stats.at("recent")[0].at("finish_reasons"), Json::array({"stop"}));
  EXPECT_EQ(stats.at("recent")[0].at("completion_tokens"), stats.at("tokens").at("generated"));
  for (const char* content : {"XYZZY", "PLUGH", "word"}) EXPECT_EQ(body.find(content), std::string::npos) << content;
}

TEST(stats, metrics_name_every_reason_and_no_made_up_series) {
  ServerRig rig(answering("x"));
  const std::string text = rig.call("GET", "/metrics").body;
  for (const char* line : {"tetrad:requests_refused_total{model_name=\"test-model\",engine=\"0\",reason=\"queue_full\"} 0\n",
                           "vllm:engine_sleep_state{model_name=\"test-model\",engine=\"0\",sleep_state=\"awake\"} 1\n",
                           "tetrad:prefix_cache_entries{model_name=\"test-model\",engine=\"0\",tier=\"host\"} 0\n",
                           "tetrad:client_disconnects_total 0\n", "process_start_time_seconds "})
    EXPECT_NE(text.find(line), std::string::npos) << line << text;
  EXPECT_EQ(text.find("spec_decode"), std::string::npos);
}

TEST(queue_full, may_be_429) {
  ServerRigOptions options;
  options.engine.max_waiting = 1;
  options.sizes.num_slots = 1;
  options.queue_full_status = 429;
  std::atomic<bool> held = true;
  ServerRig rig(answering("x"), options);
  rig.backend.before_step = [&](const StepBatch&) {
    while (held) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  const std::string chat = fmt::format("{}}}", kSecretChat);
  std::vector<Reply> taken;
  taken.push_back(rig.start("POST", "/v1/chat/completions", chat));
  while (rig.engine->stats().requests_running == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  taken.push_back(rig.start("POST", "/v1/chat/completions", chat));  // one runs, one waits
  for (const Reply& reply : taken) ASSERT_FALSE(std::holds_alternative<HttpResponse>(reply));
  const HttpResponse refused = rig.call("POST", "/v1/chat/completions", chat);
  EXPECT_EQ(refused.status, 429);
  EXPECT_NE(header_of(refused.headers, "Retry-After"), "");
  const Json error = Json::parse(refused.body).at("error");
  EXPECT_EQ(error.at("code"), "queue_full");
  EXPECT_EQ(error.at("type"), "rate_limit_error");
  const HttpResponse anthropic =
      rig.call("POST", "/v1/messages", R"({"messages":[{"role":"user","content":"Hi"}],"max_tokens":5,"model":"test-model"})");
  EXPECT_EQ(anthropic.status, 429);
  EXPECT_EQ(Json::parse(anthropic.body).at("error").at("type"), "rate_limit_error");
  held = false;
}

}  // namespace
}  // namespace tetrad::operations_test
