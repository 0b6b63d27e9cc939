#include "cli/load_client.h"

#include <fmt/format.h>

#include <array>
#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <charconv>
#include <chrono>
#include <optional>

#include "base/error.h"

namespace tetrad::cli {
namespace {

namespace asio = boost::asio;
namespace beast_http = boost::beast::http;
using asio::ip::tcp;
using LoadClock = std::chrono::steady_clock;
using LoadFault = boost::system::error_code;

constexpr std::size_t kMaxResponseBytes = std::size_t{256} << 20;

double seconds_between(LoadClock::time_point from, LoadClock::time_point to) { return std::chrono::duration<double>(to - from).count(); }

// One request and its answer.
class LoadExchange : public std::enable_shared_from_this<LoadExchange> {
 public:
  LoadExchange(asio::io_context& io, LoadClock::time_point epoch, std::string request, LoadClient::Done done)
      : socket_(io), deadline_(io), epoch_(epoch), request_(std::move(request)), done_(std::move(done)) {
    parser_.body_limit(kMaxResponseBytes);
    parser_.eager(true);
  }

  void start(const tcp::endpoint& endpoint, double timeout) {
    answer_.start = now();
    deadline_.expires_after(std::chrono::duration_cast<LoadClock::duration>(std::chrono::duration<double>(timeout)));
    deadline_.async_wait([self = shared_from_this()](LoadFault error) {
      if (!error) self->end("timeout");
    });
    socket_.async_connect(endpoint, [self = shared_from_this()](LoadFault error) {
      if (error) return self->end("connect: " + error.message());
      LoadFault ignored;
      self->socket_.set_option(tcp::no_delay(true), ignored);
      asio::async_write(self->socket_, asio::buffer(self->request_), [self](LoadFault failed, std::size_t) {
        if (failed) self->end("cut");
      });
      self->read();
    });
  }

 private:
  double now() const { return seconds_between(epoch_, LoadClock::now()); }

  void read() {
    socket_.async_read_some(asio::buffer(chunk_), [self = shared_from_this()](LoadFault error, std::size_t bytes) {
      if (error)
        self->at_end_of_input();
      else
        self->take(bytes);
    });
  }

  void take(std::size_t bytes) {
    const double time = now();
    input_.append(chunk_.data(), bytes);
    LoadFault error;
    while (!parser_.is_done() && !input_.empty()) {
      const std::size_t used = parser_.put(asio::buffer(input_), error);
      input_.erase(0, used);
      if (error == beast_http::error::need_more || used == 0) break;
      if (error) return end("not_http");
    }
    pass_on(time);
    if (parser_.is_done())
      finish();
    else
      read();
  }

  void pass_on(double time) {
    if (!parser_.is_header_done()) return;
    answer_.status = static_cast<int>(parser_.get().result_int());
    std::string& body = parser_.get().body();
    const auto type = parser_.get()[beast_http::field::content_type];
    if (answer_.status == 200 && type.starts_with("text/event-stream"))
      stream_.feed(body, time, answer_), is_stream_ = true;
    else
      answer_.body += body;
    body.clear();
  }

  void at_end_of_input() {
    LoadFault error;
    parser_.put_eof(error);
    if (error || !parser_.is_done()) return end("cut");
    finish();
  }

  void finish() {
    if (!is_stream_) read_load_body(answer_);
    const bool complete = !is_stream_ || stream_.done() || !answer_.error.empty();
    end(complete ? answer_.error : "cut");
  }

  void end(std::string error) {
    if (!done_) return;
    answer_.error = std::move(error);
    answer_.end = now();
    deadline_.cancel();
    LoadFault ignored;
    socket_.close(ignored);
    std::exchange(done_, {})(std::move(answer_));
  }

  tcp::socket socket_;
  asio::steady_timer deadline_;
  LoadClock::time_point epoch_;
  std::string request_, input_;
  std::array<char, 16384> chunk_{};
  beast_http::response_parser<beast_http::string_body> parser_;
  LoadStream stream_;
  bool is_stream_ = false;
  LoadAnswer answer_;
  LoadClient::Done done_;
};

}  // namespace

LoadAddress parse_base_url(const std::string& url) {
  constexpr std::string_view kScheme = "http://";
  const auto refuse = [&] { fail<InputError>("--base-url {}: expected http://HOST[:PORT][/PATH]", url); };
  if (!url.starts_with(kScheme)) refuse();
  const std::string_view rest = std::string_view(url).substr(kScheme.size());
  const std::size_t slash = rest.find('/');
  std::string_view host = rest.substr(0, slash);
  LoadAddress address;
  if (slash != std::string_view::npos) address.prefix = rest.substr(slash);
  while (address.prefix.ends_with('/')) address.prefix.pop_back();
  const std::size_t colon = host.rfind(':');
  if (colon != std::string_view::npos && host.find(']', colon) == std::string_view::npos) {
    const std::string_view port = host.substr(colon + 1);
    const auto [end, code] = std::from_chars(port.data(), port.data() + port.size(), address.port);
    if (code != std::errc() || end != port.data() + port.size() || address.port < 1 || address.port > 65535) refuse();
    host = host.substr(0, colon);
  }
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  if (host.empty() || url.find_first_of(" \t\r\n") != std::string::npos) refuse();
  address.host = host;
  return address;
}

struct LoadClient::Impl {
  asio::io_context io{1};
  LoadAddress address;
  tcp::endpoint endpoint;
  double timeout = 0;
  LoadClock::time_point epoch = LoadClock::now();
};

LoadClient::LoadClient(LoadAddress address, double timeout) : impl_(std::make_unique<Impl>()) {
  tcp::resolver resolver(impl_->io);
  LoadFault error;
  const auto found = resolver.resolve(address.host, std::to_string(address.port), tcp::resolver::numeric_service, error);
  if (error || found.empty()) fail<InputError>("--base-url: {} has no address: {}", address.host, error.message());
  impl_->endpoint = *found.begin();
  impl_->address = std::move(address);
  impl_->timeout = timeout;
}

LoadClient::~LoadClient() = default;

double LoadClient::now() const { return seconds_between(impl_->epoch, LoadClock::now()); }

void LoadClient::send(const LoadCall& call, Done done) {
  const LoadAddress& address = impl_->address;
  std::string request = fmt::format("{} {}{} HTTP/1.1\r\nHost: {}:{}\r\nConnection: close\r\nAccept: */*\r\n", call.method, address.prefix,
                                    call.path, address.host, address.port);
  if (!call.api_key.empty()) request += fmt::format("Authorization: Bearer {}\r\n", call.api_key);
  if (call.method == "POST") request += fmt::format("Content-Type: application/json\r\nContent-Length: {}\r\n", call.body.size());
  request += "\r\n" + call.body;
  std::make_shared<LoadExchange>(impl_->io, impl_->epoch, std::move(request), std::move(done))->start(impl_->endpoint, impl_->timeout);
}

void LoadClient::at(double time, std::function<void()> action) {
  auto timer = std::make_shared<asio::steady_timer>(impl_->io);
  timer->expires_at(impl_->epoch + std::chrono::duration_cast<LoadClock::duration>(std::chrono::duration<double>(time)));
  timer->async_wait([timer, action = std::move(action)](LoadFault) { action(); });
}

void LoadClient::run() {
  impl_->io.restart();
  impl_->io.run();
}

}  // namespace tetrad::cli
