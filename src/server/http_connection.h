#pragma once
// One connection of a client: reads requests, one at a time, has them answered, and watches its socket meanwhile. On the network's thread,
// but for handlers that compute.
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>

#include "server/http_message.h"
#include "server/http_server.h"
#include "server/http_transport.h"

namespace tetrad {

class HttpConnection;

// What connections share. On the network's thread but for the atomics.
struct HttpNetwork {
  HttpNetwork(const HttpServerOptions& server_options, HttpHandler& request_handler)
      : options(server_options), handler(&request_handler), pool(static_cast<std::size_t>(server_options.handler_threads)) {}

  const HttpServerOptions options;
  HttpHandler* handler;
  std::set<HttpConnection*> connections;
  std::size_t body_bytes = 0;  // of large bodies being read or answered
  std::atomic<bool> draining = false;
  std::atomic<int> busy = 0;
  boost::asio::thread_pool pool;
  boost::asio::io_context io{1};  // destroyed first: it holds the last references to connections
};

class HttpConnection final : public std::enable_shared_from_this<HttpConnection> {
 public:
  HttpConnection(HttpNetwork& network, std::unique_ptr<HttpTransport> transport);
  HttpConnection(const HttpConnection&) = delete;
  HttpConnection& operator=(const HttpConnection&) = delete;
  ~HttpConnection();

  void start();
  void close();
  bool idle() const { return phase_ == Phase::kReading && !parser_started_; }  // between requests

 private:
  enum class Phase { kReading, kAnswering, kClosing };
  using Parser = boost::beast::http::request_parser<boost::beast::http::string_body>;
  using HttpClock = std::chrono::steady_clock;
  using ErrorCode = boost::system::error_code;

  void release();  // the reply and the reservation are given up
  void set_deadline(std::chrono::milliseconds timeout);
  void clear_deadline();
  // For so many bytes, with `base` for whatever else takes time.
  static std::chrono::milliseconds transfer_time(std::chrono::milliseconds base, std::size_t bytes);

  // --- Reading ---
  void begin_request();
  void fill();
  void on_read(ErrorCode error, std::size_t bytes);
  void parse();
  void read_head();
  bool screen();
  void refuse(ErrorCode error);

  // --- Answering ---
  void enter_answering();
  void answer_refusal(const HttpResponse& response);
  void respond_and_close(const HttpResponse& response);
  void dispatch();
  void on_reply(Reply reply);
  std::string stream_head(const HttpResponse& head) const;
  bool keeps_alive() const;
  void send(const HttpResponse& response);
  void continue_answer();
  void write(std::string bytes);
  void schedule_ping();
  void report(int status);
  void finish();

  HttpNetwork* shared_;
  std::unique_ptr<HttpTransport> transport_;
  boost::asio::steady_timer deadline_, ping_;
  std::uint64_t armed_ = 0;  // tells the newest deadline from those before it
  Phase phase_ = Phase::kReading;
  bool closed_ = false, reading_ = false, writing_ = false;
  std::string chunk_, input_, out_, unsent_;
  std::size_t discarded_ = 0, reserved_bytes_ = 0;
  std::optional<Parser> parser_;
  bool parser_started_ = false, screened_ = false;
  // Of the present request.
  std::shared_ptr<HttpRequest> request_;
  bool keep_alive_ = true, chunks_allowed_ = true, finishing_ = false;
  int status_ = 0;
  HttpClock::time_point started_, last_write_;
  std::unique_ptr<PendingReply> pending_;
  std::atomic<bool> woken_ = false;
};

}  // namespace tetrad
