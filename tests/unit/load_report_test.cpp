// What `tetrad bench serve` makes of the bytes and times it sees.
#include "cli/load_report.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "cli/load_client.h"

namespace tetrad::cli::load_report_test {
namespace {

TEST(load_report, percentiles_are_nearest_ranks) {
  std::vector<double> values;
  for (int i = 100; i >= 1; --i) values.push_back(i);
  EXPECT_EQ(percentile(values, 0.5), 50);
  EXPECT_EQ(percentile(values, 0.9), 90);
  EXPECT_EQ(percentile(values, 0.99), 99);
  EXPECT_EQ(percentile(values, 1), 100);
  EXPECT_EQ(percentile({3}, 0.99), 3);
  EXPECT_EQ(percentile({1, 2}, 0.5), 1);
  EXPECT_EQ(percentile({}, 0.5), 0);
}

TEST(load_report, figures_of_known_answers) {
  std::vector<LoadAnswer> answers(3);
  answers[0] = {.status = 200,
                .start = 1,
                .first_token = 1.1,
                .last_token = 1.5,
                .end = 1.6,
                .gaps = {0.1, 0.3},
                .prompt_tokens = 10,
                .cached_tokens = 4,
                .completion_tokens = 5};
  answers[1] = {.status = 200, .start = 2, .first_token = 2.3, .last_token = 2.3, .end = 2.4, .prompt_tokens = 20, .completion_tokens = 1};
  answers[2] = {.status = 503, .error = "queue_full"};
  const nlohmann::ordered_json report = load_report(answers, 2, parse_goodput("ttft:200,itl:250"));
  EXPECT_EQ(report["completed"], 2);
  EXPECT_EQ(report["errors"], nlohmann::ordered_json({{"queue_full", 1}}));
  EXPECT_EQ(report["prompt_tokens"], 30);
  EXPECT_EQ(report["cached_tokens"], 4);
  EXPECT_DOUBLE_EQ(report["completion_tokens_per_s"], 3);
  EXPECT_NEAR(report["ttft_ms"]["p50"], 100, 1e-6);
  EXPECT_NEAR(report["ttft_ms"]["p99"], 300, 1e-6);
  EXPECT_NEAR(report["itl_ms"]["p90"], 300, 1e-6);
  EXPECT_NEAR(report["tpot_ms"]["p50"], 100, 1e-6);  // of the one answer that has a second token
  EXPECT_NEAR(report["e2e_ms"]["mean"], 500, 1e-6);
  EXPECT_EQ(report["good_requests"], 1);
  EXPECT_DOUBLE_EQ(report["goodput"], 1.0 / 3);
  const std::string table = load_table(report);
  EXPECT_NE(table.find("queue_full 1"), std::string::npos) << table;
  EXPECT_NE(table.find("ttft_ms"), std::string::npos) << table;
}

TEST(load_report, goals_and_addresses_are_checked) {
  EXPECT_EQ(parse_goodput("e2e:5,tpot:1.5").tpot, 1.5);
  EXPECT_FALSE(parse_goodput("").stated());
  for (const char* bad : {"ttft", "ttft:", "ttft:x", "ttft:5s", "ttft:-1", "other:5", "ttft:5,,itl:5", "ttft:inf"})
    EXPECT_THROW(parse_goodput(bad), InputError) << bad;
  const LoadAddress address = parse_base_url("http://[::1]:8000/v1/");
  EXPECT_EQ(address.host, "::1");
  EXPECT_EQ(address.port, 8000);
  EXPECT_EQ(address.prefix, "/v1");
  EXPECT_EQ(parse_base_url("http://localhost").port, 80);
  for (const char* bad : {"https://a", "a:80", "http://", "http://a:0", "http://a:65536", "http://a:b", "http://a b", "http://a\r\nX: y"})
    EXPECT_THROW(parse_base_url(bad), InputError) << bad;
}

constexpr std::string_view kStream =
    ": keepalive\n\n"
    "data: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\"}}],\"usage\":null}\n\n"
    "data: {\"choices\":[{\"index\":0,\"delta\":{\"reasoning_content\":\"Hm\"}}]}\r\n\r\n"
    "event: x\ndata: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\\nb\"}}]}\n\n"
    "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"c\"}}]}\n\n"
    "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n"
    "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":4,\"prompt_tokens_details\":{\"cached_tokens\":3}}}\n\n"
    "data: [DONE]\n\n";

TEST(load_stream, reads_alike_however_it_is_cut) {
  for (std::size_t piece = 1; piece < kStream.size(); ++piece) {
    LoadStream stream;
    LoadAnswer answer;
    double now = 1;
    for (std::size_t at = 0; at < kStream.size(); at += piece) stream.feed(kStream.substr(at, piece), now++, answer);
    EXPECT_TRUE(stream.done());
    EXPECT_EQ(answer.text, "a\nbc");
    EXPECT_EQ(answer.gaps.size(), 2u);  // three events hold tokens; the role alone is none
    EXPECT_EQ(answer.prompt_tokens, 7);
    EXPECT_EQ(answer.cached_tokens, 3);
    EXPECT_EQ(answer.completion_tokens, 4);
    EXPECT_TRUE(answer.good());
  }
}

TEST(load_stream, errors_have_kinds) {
  const auto kind_of_event = [](std::string_view event) {
    LoadStream stream;
    LoadAnswer answer;
    stream.feed(event, 1, answer);
    return answer.error;
  };
  EXPECT_EQ(kind_of_event("data: {\"error\":{\"message\":\"m\",\"type\":\"t\",\"code\":\"slow_consumer\"}}\n\n"), "slow_consumer");
  EXPECT_EQ(kind_of_event("data: {\"error\":{\"type\":\"server_error\",\"code\":null}}\n\n"), "server_error");
  EXPECT_EQ(kind_of_event("data: [1\n\n"), "stream_error");
  EXPECT_EQ(kind_of_event("data: {\"choices\":[7,null,{\"delta\":3},{\"text\":5}]}\n\n"), "");
  LoadAnswer refused{.status = 503, .body = R"({"error":{"code":"queue_full"}})"};
  read_load_body(refused);
  EXPECT_EQ(refused.error, "queue_full");
  LoadAnswer other{.status = 502, .body = "<html>"};
  read_load_body(other);
  EXPECT_EQ(other.error, "http_502");
}

}  // namespace
}  // namespace tetrad::cli::load_report_test
