// How a connection sends its answers: whole, or as a stream that goes on while it is made.
#include <algorithm>
#include <boost/asio/post.hpp>
#include <utility>

#include "server/http_connection.h"
#include "server/http_wire.h"

namespace tetrad {
namespace {

namespace net = boost::asio;
using boost::system::error_code;

constexpr std::chrono::milliseconds kLinger{5000};  // in which a refused client may go on sending before the connection is cut

}  // namespace

void HttpConnection::enter_answering() {
  phase_ = Phase::kAnswering;
  ++shared_->busy;
  clear_deadline();
  status_ = 0;
  finishing_ = false;
}

void HttpConnection::answer_refusal(const HttpResponse& response) {
  enter_answering();
  fill();
  send(response);
}

void HttpConnection::respond_and_close(const HttpResponse& response) {
  keep_alive_ = false;
  enter_answering();
  send(response);  // without a watch: what the client still sends is read after the answer
}

void HttpConnection::dispatch() {
  request_->body = std::move(parser_->get().body());
  parser_.reset();
  enter_answering();
  fill();
  if (closed_) return;
  if (shared_->handler->is_quick(*request_)) return on_reply(shared_->handler->handle(*request_));
  net::post(shared_->pool, [self = shared_from_this()]() mutable {
    Reply reply = self->shared_->handler->handle(*self->request_);
    net::io_context& io = self->shared_->io;
    net::post(io, [self = std::move(self), reply = std::move(reply)]() mutable { self->on_reply(std::move(reply)); });
  });
}

void HttpConnection::on_reply(Reply reply) {
  request_->body = std::string();
  if (closed_) {
    if (auto* pending = std::get_if<std::unique_ptr<PendingReply>>(&reply)) (*pending)->abandon();
    return;
  }
  if (auto* response = std::get_if<HttpResponse>(&reply)) return send(*response);
  pending_ = std::move(std::get<std::unique_ptr<PendingReply>>(reply));
  pending_->on_progress([weak = weak_from_this()] {
    auto connection = weak.lock();
    if (!connection || connection->woken_.exchange(true)) return;
    net::io_context& io = connection->shared_->io;
    net::post(io, [connection = std::move(connection)] {
      connection->woken_ = false;
      connection->continue_answer();
    });
  });
  if (pending_->streams()) {
    const HttpResponse head = pending_->response();
    status_ = head.status;
    if (!chunks_allowed_) keep_alive_ = false;
    write(stream_head(head));
    schedule_ping();
  } else {
    continue_answer();
  }
}

std::string HttpConnection::stream_head(const HttpResponse& head) const {
  std::string bytes = wire_response(
      head,
      {.request_id = request_->id, .extra = shared_->handler->extra_headers(*request_), .keep_alive = keeps_alive(), .chunked = true});
  // An HTTP/1.0 client reads to the end of the connection.
  static constexpr std::string_view kChunked = "Transfer-Encoding: chunked\r\n";
  if (!chunks_allowed_) bytes.erase(bytes.find(kChunked), kChunked.size());
  return bytes;
}

bool HttpConnection::keeps_alive() const { return keep_alive_ && !shared_->draining; }

void HttpConnection::send(const HttpResponse& response) {
  status_ = response.status;
  finishing_ = true;
  write(wire_response(response, {.request_id = request_->id,
                                 .extra = shared_->handler->extra_headers(*request_),
                                 .keep_alive = keeps_alive(),
                                 .head_only = request_->method == "HEAD"}));
}

void HttpConnection::continue_answer() {
  if (closed_ || writing_) return;
  if (!unsent_.empty()) return write(std::exchange(unsent_, {}));
  if (finishing_) return finish();
  if (!pending_) return;
  const std::string bytes = pending_->take();
  const bool done = pending_->done();
  if (!pending_->streams()) {
    if (!done) return;
    const HttpResponse response = pending_->response();
    pending_->on_progress({});
    pending_.reset();
    return send(response);
  }
  finishing_ = done;
  std::string out = chunks_allowed_ && !bytes.empty() ? wire_chunk(bytes) : bytes;
  if (done && chunks_allowed_) out += kLastChunk;
  if (!out.empty())
    write(std::move(out));
  else if (done)
    finish();
}

void HttpConnection::write(std::string bytes) {
  if (writing_) {  // the interim response
    unsent_ += bytes;
    return;
  }
  writing_ = true;
  out_ = std::move(bytes);
  set_deadline(transfer_time(shared_->options.write_timeout, out_.size()));
  transport_->write(out_, [self = shared_from_this()](error_code error, std::size_t) {
    self->writing_ = false;
    if (self->closed_) return;
    if (error) return self->close();
    self->clear_deadline();
    self->last_write_ = HttpClock::now();
    self->out_.clear();
    self->continue_answer();
  });
}

void HttpConnection::schedule_ping() {
  ping_.expires_at(std::max(last_write_, started_) + shared_->options.ping_interval);
  ping_.async_wait([self = shared_from_this(), request = request_](error_code error) {
    if (error || self->closed_ || self->request_ != request || !self->pending_) return;
    const HttpClock::time_point now = HttpClock::now();
    if (now - self->last_write_ >= self->shared_->options.ping_interval) {
      self->last_write_ = now;
      const std::string comment = self->writing_ ? std::string() : self->pending_->keepalive();
      if (!comment.empty()) self->write(self->chunks_allowed_ ? wire_chunk(comment) : comment);
    }
    self->schedule_ping();
  });
}

void HttpConnection::report(int status) {
  if (phase_ != Phase::kAnswering) return;
  --shared_->busy;
  phase_ = Phase::kClosing;
  shared_->handler->finished(*request_, status, std::chrono::duration<double>(HttpClock::now() - started_).count());
}

void HttpConnection::finish() {
  const bool again = keeps_alive();
  report(status_);
  ping_.cancel();
  release();
  if (again) return begin_request();
  // The client may still be sending: closing now would reset the connection and could take the answer away from it.
  transport_->shutdown_send();
  set_deadline(kLinger);
  fill();
}

}  // namespace tetrad
