// The network side with a handler of a few lines: framing, limits, timeouts, clients that leave.
#include "server/http_server.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "base/error.h"
#include "server/http_wire.h"
#include "support/http_client.h"

namespace tetrad::http_server_test {
namespace {

using std::chrono::milliseconds;
using testing::RawClient;

// A stream that a test fills by hand.
struct Feed {
  Waker waker;
  std::mutex mutex;
  std::string ready;
  bool ended = false, abandoned = false, gone = false;
  void add(const std::string& bytes, bool last = false) {
    {
      const std::lock_guard lock(mutex);
      ready += bytes;
      ended = last;
    }
    waker.ring();
  }
  bool was_abandoned() {
    const std::lock_guard lock(mutex);
    return abandoned;
  }
};

class FedReply final : public PendingReply {
 public:
  FedReply(std::shared_ptr<Feed> feed, bool stream) : feed_(std::move(feed)), stream_(stream) {}
  void on_progress(std::function<void()> wake) override { feed_->waker.listen(std::move(wake)); }
  bool streams() const override { return stream_; }
  HttpResponse response() override {
    return stream_ ? HttpResponse{.content_type = "text/event-stream"} : HttpResponse{.body = collected_};
  }
  std::string take() override {
    const std::lock_guard lock(feed_->mutex);
    done_ = feed_->ended;
    if (stream_) return std::exchange(feed_->ready, {});
    collected_ += std::exchange(feed_->ready, {});
    return {};
  }
  bool done() const override { return done_; }
  std::string keepalive() const override { return std::string(kKeepalive); }
  void abandon() override {
    const std::lock_guard lock(feed_->mutex);
    feed_->abandoned = true;
  }

 private:
  std::shared_ptr<Feed> feed_;
  bool stream_, done_ = false;
  std::string collected_;
};

class TestHandler final : public HttpHandler {
 public:
  std::unique_ptr<HttpResponse> screen(const HttpRequest& head) override {
    if (head.path != "/forbidden") return nullptr;
    return std::make_unique<HttpResponse>(HttpResponse{.status = 401, .body = "no"});
  }
  bool is_quick(const HttpRequest& head) const override { return head.method == "GET"; }
  Reply handle(const HttpRequest& request) noexcept override {
    if (request.path == "/stream" || request.path == "/slow") return std::make_unique<FedReply>(feed, request.path == "/stream");
    return HttpResponse{
        .body = fmt::format("{} {}?{} {} {}", request.method, request.path, request.query, request.body.size(), request.header("x-test"))};
  }
  HttpResponse refusal(const HttpRequest&, int status, std::string_view message) const override {
    return {.status = status, .body = std::string(message)};
  }
  void finished(const HttpRequest&, int status, double) override {
    const std::lock_guard lock(mutex);
    statuses.push_back(status);
    changed.notify_all();
  }
  bool saw(int status) {
    std::unique_lock lock(mutex);
    return changed.wait_for(lock, std::chrono::seconds(20),
                            [&] { return std::find(statuses.begin(), statuses.end(), status) != statuses.end(); });
  }

  std::shared_ptr<Feed> feed = std::make_shared<Feed>();
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<int> statuses;
};

HttpServerOptions test_options() {
  HttpServerOptions options;
  options.port = 0;
  options.max_body_bytes = 100'000;
  return options;
}

struct Rig {
  explicit Rig(const HttpServerOptions& options = test_options()) : server(options, handler) { server.start(); }
  TestHandler handler;
  HttpServer server;
};

// A client may have read all of its answer before the server notes that the answer is out.
bool becomes_busy_with(const HttpServer& server, int requests) {
  for (int i = 0; i < 2000 && server.busy() != requests; ++i) std::this_thread::sleep_for(milliseconds(5));
  return server.busy() == requests;
}

constexpr std::string_view kGet = "GET /a?b=c HTTP/1.1\r\nHost: x\r\nX-Test: 1\r\n\r\n";

TEST(http_server, one_connection_serves_many_requests) {
  Rig rig;
  RawClient client(rig.server.port());
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(client.send(kGet));
    const std::string response = client.read_response();
    EXPECT_TRUE(response.starts_with("HTTP/1.1 200 OK\r\n")) << response;
    EXPECT_TRUE(response.ends_with("GET /a?b=c 0 1")) << response;
    EXPECT_NE(response.find("X-Request-Id: req-"), std::string::npos);
    EXPECT_NE(response.find("Connection: keep-alive"), std::string::npos);
  }
}

TEST(http_server, requests_in_one_packet_and_byte_by_byte) {
  Rig rig;
  RawClient client(rig.server.port());
  const std::string post = "POST /p HTTP/1.1\r\nHost: x\r\nX-Request-Id: my-id\r\nContent-Length: 5\r\n\r\nhello";
  ASSERT_TRUE(client.send(std::string(kGet) + post + std::string(kGet)));
  EXPECT_TRUE(client.read_response().ends_with("GET /a?b=c 0 1"));
  const std::string second = client.read_response();
  EXPECT_TRUE(second.ends_with("POST /p? 5 ")) << second;
  EXPECT_NE(second.find("X-Request-Id: my-id\r\n"), std::string::npos);
  EXPECT_TRUE(client.read_response().ends_with("GET /a?b=c 0 1"));
  for (const char c : post) ASSERT_TRUE(client.send(std::string_view(&c, 1)));
  EXPECT_TRUE(client.read_response().ends_with("POST /p? 5 "));
}

TEST(http_server, a_chunked_body_is_put_together) {
  Rig rig;
  RawClient client(rig.server.port());
  ASSERT_TRUE(client.send("POST /p HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n4\r\ndefg\r\n0\r\n\r\n"));
  EXPECT_TRUE(client.read_response().ends_with("POST /p? 7 "));
}

TEST(http_server, head_has_the_length_and_no_body) {
  Rig rig;
  RawClient client(rig.server.port());
  ASSERT_TRUE(client.send("HEAD /a HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"));
  const std::string all = client.read_to_end();
  EXPECT_NE(all.find("Content-Length: 11\r\n"), std::string::npos) << all;  // "HEAD /a? 0 "
  EXPECT_TRUE(all.ends_with("\r\n\r\n"));
}

TEST(http_server, what_is_too_large_is_refused_before_it_is_read) {
  Rig rig;
  RawClient by_length(rig.server.port()), by_chunks(rig.server.port()), by_headers(rig.server.port()), by_count(rig.server.port());
  ASSERT_TRUE(by_length.send("POST /p HTTP/1.1\r\nHost: x\r\nContent-Length: 100001\r\n\r\n"));
  EXPECT_TRUE(by_length.read_response().starts_with("HTTP/1.1 413 "));
  ASSERT_TRUE(by_chunks.send("POST /p HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"));
  by_chunks.send(fmt::format("18700\r\n{}\r\n", std::string(0x18700, 'a')));  // 100,096
  EXPECT_TRUE(by_chunks.read_response().starts_with("HTTP/1.1 413 "));
  by_headers.send(fmt::format("GET /a HTTP/1.1\r\nX: {}\r\n\r\n", std::string(40'000, 'a')));
  EXPECT_TRUE(by_headers.read_response().starts_with("HTTP/1.1 431 "));
  std::string many = "GET /a HTTP/1.1\r\n";
  for (int i = 0; i < 101; ++i) many += fmt::format("A{}: 1\r\n", i);
  by_count.send(many + "\r\n");
  const std::string refused = by_count.read_response();
  EXPECT_TRUE(refused.starts_with("HTTP/1.1 431 ")) << refused;
  EXPECT_NE(refused.find("Connection: close"), std::string::npos);
  EXPECT_TRUE(by_count.closed_by_server());
}

TEST(http_server, a_refusal_reaches_a_client_that_goes_on_sending) {
  Rig rig;
  RawClient client(rig.server.port());
  ASSERT_TRUE(client.send("POST /forbidden HTTP/1.1\r\nHost: x\r\nContent-Length: 90000\r\n\r\n"));
  ASSERT_TRUE(client.send(std::string(90'000, 'a')));
  EXPECT_TRUE(client.read_response().starts_with("HTTP/1.1 401 "));
}

TEST(http_server, what_is_not_http_is_refused) {
  Rig rig;
  for (const char* bytes :
       {"nonsense\r\n\r\n", "GET /a HTTP/9.9\r\n\r\n", "GET /a HTTP/1.1\r\nno colon\r\n\r\n",
        "POST /a HTTP/1.1\r\nContent-Length: -1\r\n\r\n", "POST /a HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n",
        "POST /a HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", "\x16\x03\x01\x02\r\n\r\n"}) {
    RawClient client(rig.server.port());
    client.send(bytes);
    EXPECT_TRUE(client.read_response().starts_with("HTTP/1.1 400 ")) << bytes;
    EXPECT_TRUE(client.closed_by_server());
  }
}

TEST(http_server, a_target_may_name_the_host_too) {
  Rig rig;
  RawClient client(rig.server.port());
  for (const std::string target : {"http://example.org/a?b=c", "HTTPS://example.org:8000/a?b=c", "http://[::1]:8000/a?b=c"}) {
    ASSERT_TRUE(client.send("GET " + target + " HTTP/1.1\r\nHost: example.org\r\nX-Test: 1\r\n\r\n"));
    const std::string response = client.read_response();
    EXPECT_TRUE(response.ends_with("GET /a?b=c 0 1")) << response;
  }
  for (const std::string target : {"http://example.org", "http://example.org/"}) {
    ASSERT_TRUE(client.send("GET " + target + " HTTP/1.1\r\nHost: example.org\r\nX-Test: 1\r\n\r\n"));
    EXPECT_TRUE(client.read_response().ends_with("GET /? 0 1")) << target;
  }
  ASSERT_TRUE(client.send("GET http://example.org?b=c HTTP/1.1\r\nHost: example.org\r\nX-Test: 1\r\n\r\n"));
  EXPECT_TRUE(client.read_response().ends_with("GET /?b=c 0 1"));
}

TEST(http_server, http_1_1_has_one_host) {
  Rig rig;
  for (const char* hosts : {"", "Host: a\r\nHost: a\r\n", "Host: a b\r\n", "Host: a/b\r\n", "Host: user@a\r\n"}) {
    RawClient client(rig.server.port());
    ASSERT_TRUE(client.send(fmt::format("GET /a HTTP/1.1\r\n{}\r\n", hosts)));
    const std::string response = client.read_response();
    EXPECT_TRUE(response.starts_with("HTTP/1.1 400 ")) << hosts << response;
    EXPECT_NE(response.find("Host header"), std::string::npos) << response;
    EXPECT_TRUE(client.closed_by_server()) << hosts;
  }
  for (const char* head : {"GET /a HTTP/1.1\r\nHost:\r\n\r\n", "GET /a HTTP/1.1\r\nhOST: [::1]:80\r\n\r\n", "GET /a HTTP/1.0\r\n\r\n"}) {
    RawClient client(rig.server.port());
    ASSERT_TRUE(client.send(head));
    EXPECT_TRUE(client.read_response().starts_with("HTTP/1.1 200 ")) << head;
  }
}

TEST(http_server, a_client_that_waits_for_leave_gets_it) {
  Rig rig;
  RawClient client(rig.server.port());
  ASSERT_TRUE(client.send("POST /p HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n"));
  EXPECT_EQ(client.read_until("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  ASSERT_TRUE(client.send("abc"));
  EXPECT_TRUE(client.read_response().ends_with("POST /p? 3 "));
}

TEST(http_server, a_stream_goes_out_in_chunks_and_the_connection_lives_on) {
  Rig rig;
  RawClient client(rig.server.port());
  ASSERT_TRUE(client.send("POST /stream HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"));
  EXPECT_NE(client.read_until("\r\n\r\n").find("Transfer-Encoding: chunked"), std::string::npos);
  rig.handler.feed->add("data: 1\n\n");
  EXPECT_EQ(client.read_until("\n\n\r\n"), "9\r\ndata: 1\n\n\r\n");
  rig.handler.feed->add("data: 2\n\n", true);
  EXPECT_EQ(client.read_until("0\r\n\r\n"), "9\r\ndata: 2\n\n\r\n0\r\n\r\n");
  ASSERT_TRUE(client.send(kGet));
  EXPECT_TRUE(client.read_response().ends_with("GET /a?b=c 0 1"));
  EXPECT_TRUE(becomes_busy_with(rig.server, 0));
}

TEST(http_server, a_client_of_http_1_0_gets_a_stream_without_chunks) {
  Rig rig;
  RawClient client(rig.server.port());
  ASSERT_TRUE(client.send("POST /stream HTTP/1.0\r\nContent-Length: 0\r\n\r\n"));
  rig.handler.feed->add("data: 1\n\n", true);
  const std::string all = client.read_to_end();
  EXPECT_EQ(all.find("chunked"), std::string::npos) << all;
  EXPECT_TRUE(all.ends_with("\r\n\r\ndata: 1\n\n")) << all;
}

TEST(http_server, a_silent_stream_sends_comments) {
  HttpServerOptions options = test_options();
  options.ping_interval = milliseconds(30);
  Rig rig(options);
  RawClient client(rig.server.port());
  ASSERT_TRUE(client.send("POST /stream HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"));
  client.read_until("\r\n\r\n");
  for (int i = 0; i < 3; ++i) EXPECT_EQ(client.read_until("\n\n\r\n"), "d\r\n: keepalive\n\n\r\n");
}

TEST(http_server, an_answer_in_one_piece_may_take_its_time) {
  Rig rig;
  RawClient client(rig.server.port());
  ASSERT_TRUE(client.send("POST /slow HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"));
  rig.handler.feed->add("a");
  rig.handler.feed->add("b", true);
  EXPECT_TRUE(client.read_response().ends_with("\r\n\r\nab"));
}

TEST(http_server, a_client_that_leaves_abandons_its_reply) {
  for (const bool by_reset : {false, true}) {
    for (const char* path : {"/stream", "/slow"}) {
      Rig rig;
      RawClient client(rig.server.port());
      ASSERT_TRUE(client.send(fmt::format("POST {} HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n", path)));
      if (path == std::string("/stream")) client.read_until("\r\n\r\n");
      while (rig.server.busy() == 0) std::this_thread::yield();
      if (by_reset)
        client.reset();
      else
        client.close();
      EXPECT_TRUE(rig.handler.saw(499)) << path;
      for (int i = 0; i < 1000 && !rig.handler.feed->was_abandoned(); ++i) std::this_thread::sleep_for(milliseconds(10));
      EXPECT_TRUE(rig.handler.feed->was_abandoned()) << path;
      EXPECT_TRUE(becomes_busy_with(rig.server, 0));
      rig.handler.feed->add("late", true);  // what comes afterwards has nowhere to go
    }
  }
}

TEST(http_server, slow_clients_are_cut_off) {
  HttpServerOptions options = test_options();
  options.idle_timeout = options.header_timeout = milliseconds(100);
  Rig rig(options);
  RawClient silent(rig.server.port()), half_a_head(rig.server.port()), half_a_body(rig.server.port());
  ASSERT_TRUE(half_a_head.send("GET /a HT"));
  ASSERT_TRUE(half_a_body.send("POST /p HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nabc"));
  EXPECT_TRUE(silent.closed_by_server());
  EXPECT_TRUE(half_a_head.closed_by_server());
  EXPECT_TRUE(half_a_body.closed_by_server());
}

TEST(http_server, clients_that_do_not_read_are_cut_off) {
  HttpServerOptions options = test_options();
  options.write_timeout = milliseconds(100);
  Rig rig(options);
  RawClient unread(rig.server.port());
  ASSERT_TRUE(unread.send("POST /stream HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"));
  for (int i = 0; i < 3000 && !rig.handler.feed->was_abandoned(); ++i) {
    rig.handler.feed->add(std::string(1 << 20, 'x'));
    std::this_thread::sleep_for(milliseconds(20));
    const std::lock_guard lock(rig.handler.feed->mutex);
    if (rig.handler.feed->ready.size() > (std::size_t{16} << 20)) rig.handler.feed->ready.clear();
  }
  EXPECT_TRUE(rig.handler.feed->was_abandoned());
}

TEST(http_server, draining_closes_what_is_idle_and_lets_the_rest_end) {
  Rig rig;
  RawClient idle(rig.server.port()), streaming(rig.server.port());
  ASSERT_TRUE(idle.send(kGet));
  idle.read_response();
  ASSERT_TRUE(streaming.send("POST /stream HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"));
  streaming.read_until("\r\n\r\n");
  rig.server.drain();
  EXPECT_TRUE(idle.closed_by_server());
  RawClient late(rig.server.port());  // health must still be told
  ASSERT_TRUE(late.send(kGet));
  EXPECT_NE(late.read_response().find("Connection: close"), std::string::npos);
  EXPECT_TRUE(becomes_busy_with(rig.server, 1));
  rig.handler.feed->add("data: 1\n\n", true);
  EXPECT_TRUE(streaming.read_to_end().ends_with("0\r\n\r\n"));
  EXPECT_TRUE(becomes_busy_with(rig.server, 0));
}

TEST(http_server, stopping_abandons_what_runs) {
  std::shared_ptr<Feed> feed;
  {
    Rig rig;
    feed = rig.handler.feed;
    RawClient client(rig.server.port());
    ASSERT_TRUE(client.send("POST /stream HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"));
    client.read_until("\r\n\r\n");
    rig.server.stop();
    EXPECT_TRUE(client.closed_by_server());
  }
  EXPECT_TRUE(feed->was_abandoned());
}

TEST(http_server, addresses_that_cannot_be_had) {
  TestHandler handler;
  HttpServer first(test_options(), handler);
  HttpServerOptions same = test_options();
  same.port = first.port();
  EXPECT_THROW(HttpServer(same, handler), Error);
  HttpServerOptions nowhere = test_options();
  nowhere.host = "no.such.host.invalid";
  EXPECT_THROW(HttpServer(nowhere, handler), InputError);
  HttpServerOptions taken = test_options();
  taken.unix_socket = "/proc/self/status";
  EXPECT_THROW(HttpServer(taken, handler), InputError);
}

TEST(http_server, more_connections_than_allowed_are_told_so) {
  HttpServerOptions options = test_options();
  options.max_connections = 1;
  Rig rig(options);
  RawClient first(rig.server.port());
  ASSERT_TRUE(first.send(kGet));
  first.read_response();
  RawClient second(rig.server.port());
  EXPECT_TRUE(second.read_response().starts_with("HTTP/1.1 503 "));
}

}  // namespace
}  // namespace tetrad::http_server_test
