#include "server/http_connection.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <cctype>
#include <utility>

#include "server/http_wire.h"

namespace tetrad {
namespace {

namespace net = boost::asio;
namespace http = boost::beast::http;
using boost::system::error_code;

constexpr std::size_t kReadBytes = 4096, kBodyReadBytes = std::size_t{64} << 10;
constexpr std::size_t kMaxPipelinedBytes = std::size_t{64} << 10;  // read ahead while a request is being answered
constexpr std::size_t kSmallBody = std::size_t{1} << 20;           // not counted against the limit of all bodies
constexpr std::size_t kBytesPerSecond = std::size_t{256} << 10;    // slower transfers of large bodies are cut off

}  // namespace

HttpConnection::HttpConnection(HttpNetwork& network, std::unique_ptr<HttpTransport> transport)
    : shared_(&network), transport_(std::move(transport)), deadline_(network.io), ping_(network.io) {
  shared_->connections.insert(this);
}

HttpConnection::~HttpConnection() {
  shared_->connections.erase(this);
  release();
}

void HttpConnection::start() {
  set_deadline(shared_->options.header_timeout);
  transport_->handshake([self = shared_from_this()](error_code error, std::size_t) {
    if (error)
      self->close();
    else
      self->begin_request();
  });
}

void HttpConnection::close() {
  if (closed_) return;
  closed_ = true;
  deadline_.cancel();
  ping_.cancel();
  transport_->close();
  if (phase_ == Phase::kAnswering) report(499);
  release();
}

void HttpConnection::release() {
  if (pending_) {
    pending_->on_progress({});
    if (!pending_->done()) pending_->abandon();
    pending_.reset();
  }
  shared_->body_bytes -= reserved_bytes_;
  reserved_bytes_ = 0;
}

void HttpConnection::set_deadline(std::chrono::milliseconds timeout) {
  deadline_.expires_after(timeout);
  deadline_.async_wait([self = shared_from_this(), armed = ++armed_](error_code error) {
    if (!error && armed == self->armed_) self->close();
  });
}

void HttpConnection::clear_deadline() {
  ++armed_;
  deadline_.cancel();
}

std::chrono::milliseconds HttpConnection::transfer_time(std::chrono::milliseconds base, std::size_t bytes) {
  return base + std::chrono::seconds(bytes / kBytesPerSecond);
}

void HttpConnection::begin_request() {
  phase_ = Phase::kReading;
  parser_.emplace();
  parser_->header_limit(static_cast<std::uint32_t>(shared_->options.max_header_bytes));
  parser_->body_limit(shared_->options.max_body_bytes);
  parser_started_ = false;
  screened_ = false;
  request_ = std::make_shared<HttpRequest>();
  set_deadline(shared_->options.idle_timeout);
  if (input_.empty())
    fill();
  else
    parse();
}

void HttpConnection::fill() {
  if (reading_ || closed_) return;
  if (phase_ == Phase::kAnswering && input_.size() >= kMaxPipelinedBytes) return;
  reading_ = true;
  const std::size_t wanted = phase_ != Phase::kAnswering && screened_ ? kBodyReadBytes : kReadBytes;
  if (chunk_.size() != wanted) {
    chunk_.resize(wanted);
    chunk_.shrink_to_fit();
  }
  transport_->read_some(chunk_, [self = shared_from_this()](error_code error, std::size_t bytes) { self->on_read(error, bytes); });
}

void HttpConnection::on_read(error_code error, std::size_t bytes) {
  reading_ = false;
  if (closed_) return;
  if (error) return close();  // the client has gone, or there is nothing to tell it
  if (phase_ == Phase::kClosing) {
    discarded_ += bytes;
    if (discarded_ > 2 * shared_->options.max_body_bytes) return close();
    return fill();
  }
  input_.append(chunk_, 0, bytes);
  if (phase_ == Phase::kReading)
    parse();
  else
    fill();
}

void HttpConnection::parse() {
  if (!parser_started_) {
    parser_started_ = true;
    set_deadline(shared_->options.header_timeout);
  }
  error_code error;
  while (!parser_->is_done() && !input_.empty()) {
    const std::size_t used = parser_->put(net::buffer(input_), error);
    input_.erase(0, used);
    if (error == http::error::need_more) {
      error = {};
      break;
    }
    if (error) return refuse(error);
    if (parser_->is_header_done() && !screened_) {
      if (!screen()) return;
      parser_->eager(true);
    } else if (used == 0) {
      break;
    }
  }
  if (parser_->is_done() && screened_) return dispatch();
  fill();
}

void HttpConnection::read_head() {
  const auto& message = parser_->get();
  request_->method = std::string(message.method_string());
  const std::string_view target = origin_form({message.target().data(), message.target().size()});
  const std::size_t question = target.find('?');
  request_->path = question == 0 ? "/" : std::string(target.substr(0, question));
  if (question != std::string_view::npos) request_->query = std::string(target.substr(question + 1));
  for (const auto& field : message) {
    std::string name(field.name_string());
    std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    request_->headers.emplace_back(std::move(name), std::string(field.value()));
  }
  request_->id = request_id_from(request_->header("x-request-id"));
  keep_alive_ = parser_->is_header_done() && parser_->keep_alive();
  chunks_allowed_ = message.version() >= 11;
  started_ = HttpClock::now();
}

// The head is there, the body is not. False if the request has been refused.
bool HttpConnection::screen() {
  screened_ = true;
  read_head();
  const HttpServerOptions& options = shared_->options;
  std::size_t body = 0;
  if (parser_->content_length())
    body = static_cast<std::size_t>(*parser_->content_length());
  else if (parser_->chunked())
    body = options.max_body_bytes;
  if (static_cast<int>(request_->headers.size()) > options.max_headers) {
    respond_and_close(shared_->handler->refusal(*request_, 431, fmt::format("more than {} header lines", options.max_headers)));
    return false;
  }
  if (const std::string_view fault = chunks_allowed_ ? host_fault(request_->headers) : ""; !fault.empty()) {
    respond_and_close(shared_->handler->refusal(*request_, 400, fault));
    return false;
  }
  if (const auto refusal = shared_->handler->screen(*request_)) {
    if (parser_->is_done())
      answer_refusal(*refusal);
    else
      respond_and_close(*refusal);
    return false;
  }
  if (body > kSmallBody) {
    if (shared_->body_bytes + body > options.max_bodies_bytes) {
      respond_and_close(shared_->handler->refusal(*request_, 503, "too many large requests at once: try again later"));
      return false;
    }
    reserved_bytes_ = body;
    shared_->body_bytes += body;
  }
  set_deadline(transfer_time(options.header_timeout, body));
  if (body > 0 && request_->header("expect") == "100-continue") {
    static constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
    writing_ = true;
    transport_->write(kContinue, [self = shared_from_this()](error_code error, std::size_t) {
      self->writing_ = false;
      if (error) self->close();
      if (self->phase_ == Phase::kAnswering && !self->closed_) self->continue_answer();
    });
  }
  return true;
}

void HttpConnection::refuse(error_code error) {
  if (!screened_) read_head();
  if (error == http::error::body_limit)
    return respond_and_close(
        shared_->handler->refusal(*request_, 413, fmt::format("the body has more than {} bytes", shared_->options.max_body_bytes)));
  if (error == http::error::header_limit)
    return respond_and_close(
        shared_->handler->refusal(*request_, 431, fmt::format("the headers have more than {} bytes", shared_->options.max_header_bytes)));
  respond_and_close(shared_->handler->refusal(*request_, 400, fmt::format("not HTTP/1.1: {}", error.message())));
}

}  // namespace tetrad
