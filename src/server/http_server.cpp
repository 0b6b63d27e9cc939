#include "server/http_server.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/basic_socket_acceptor.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <cctype>
#include <optional>
#include <set>
#include <thread>

#include "base/error.h"
#include "server/http_wire.h"

namespace tetrad {
namespace {

namespace net = boost::asio;
namespace http = boost::beast::http;
using boost::system::error_code;
using Clock = std::chrono::steady_clock;
using Socket = net::generic::stream_protocol::socket;
using TlsStream = net::ssl::stream<Socket>;
using Acceptor = net::basic_socket_acceptor<net::generic::stream_protocol>;

constexpr std::size_t kReadBytes = 4096, kBodyReadBytes = std::size_t{64} << 10;
constexpr std::size_t kMaxPipelinedBytes = std::size_t{64} << 10;  // read ahead while a request is being answered
constexpr std::size_t kSmallBody = std::size_t{1} << 20;           // not counted against the limit of all bodies
constexpr std::size_t kBytesPerSecond = std::size_t{256} << 10;    // slower transfers of large bodies are cut off
constexpr std::chrono::milliseconds kLinger{5000};  // in which a refused client may go on sending before the connection is cut

std::chrono::milliseconds transfer_time(std::chrono::milliseconds base, std::size_t bytes) {
  return base + std::chrono::seconds(bytes / kBytesPerSecond);
}

class ConnectionBase : public std::enable_shared_from_this<ConnectionBase> {
 public:
  virtual ~ConnectionBase() = default;
  virtual void close() = 0;
  virtual bool idle() const = 0;  // between requests
};

// What connections share. On the network's thread but for the atomics.
struct Shared {
  Shared(const HttpServerOptions& server_options, HttpHandler& request_handler)
      : options(server_options), handler(&request_handler), pool(static_cast<std::size_t>(server_options.handler_threads)) {}

  const HttpServerOptions options;
  HttpHandler* handler;
  std::set<ConnectionBase*> connections;
  std::size_t body_bytes = 0;  // of large bodies being read or answered
  std::atomic<bool> draining = false;
  std::atomic<int> busy = 0;
  net::thread_pool pool;
  net::io_context io{1};  // destroyed first: it holds the last references to connections
};

template <class Stream>
class Connection final : public ConnectionBase {
  static constexpr bool kTls = std::is_same_v<Stream, TlsStream>;

 public:
  Connection(Shared& shared, Stream stream) : shared_(&shared), stream_(std::move(stream)), deadline_(shared.io), ping_(shared.io) {
    shared_->connections.insert(this);
  }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  ~Connection() override {
    shared_->connections.erase(this);
    release();
  }

  void start() {
    if constexpr (kTls) {
      set_deadline(shared_->options.header_timeout);
      stream_.async_handshake(net::ssl::stream_base::server, [self = self()](error_code error) {
        if (error)
          self->close();
        else
          self->begin_request();
      });
    } else {
      begin_request();
    }
  }

  bool idle() const override { return phase_ == Phase::kReading && !parser_started_; }

  void close() override {
    if (closed_) return;
    closed_ = true;
    deadline_.cancel();
    ping_.cancel();
    error_code ignored;
    stream_.lowest_layer().close(ignored);
    if (phase_ == Phase::kAnswering) report(499);
    release();
  }

 private:
  enum class Phase { kReading, kAnswering, kClosing };
  using Parser = http::request_parser<http::string_body>;

  std::shared_ptr<Connection> self() { return std::static_pointer_cast<Connection>(shared_from_this()); }

  // The reply and the reservation are given up.
  void release() {
    if (pending_) {
      pending_->on_progress({});
      if (!pending_->done()) pending_->abandon();
      pending_.reset();
    }
    shared_->body_bytes -= reserved_bytes_;
    reserved_bytes_ = 0;
  }

  void set_deadline(std::chrono::milliseconds timeout) {
    deadline_.expires_after(timeout);
    deadline_.async_wait([self = self(), armed = ++armed_](error_code error) {
      if (!error && armed == self->armed_) self->close();
    });
  }
  void clear_deadline() {
    ++armed_;
    deadline_.cancel();
  }

  // --- Reading ---

  void begin_request() {
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

  void fill() {
    if (reading_ || closed_) return;
    if (phase_ == Phase::kAnswering && input_.size() >= kMaxPipelinedBytes) return;
    reading_ = true;
    const std::size_t wanted = phase_ != Phase::kAnswering && screened_ ? kBodyReadBytes : kReadBytes;
    if (chunk_.size() != wanted) {
      chunk_.resize(wanted);
      chunk_.shrink_to_fit();
    }
    stream_.async_read_some(net::buffer(chunk_), [self = self()](error_code error, std::size_t bytes) { self->on_read(error, bytes); });
  }

  void on_read(error_code error, std::size_t bytes) {
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

  void parse() {
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

  void read_head() {
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
    started_ = Clock::now();
  }

  // The head is there, the body is not. False if the request has been refused.
  bool screen() {
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
      net::async_write(stream_, net::buffer(kContinue.data(), kContinue.size()), [self = self()](error_code error, std::size_t) {
        self->writing_ = false;
        if (error) self->close();
        if (self->phase_ == Phase::kAnswering && !self->closed_) self->continue_answer();
      });
    }
    return true;
  }

  void refuse(error_code error) {
    if (!screened_) read_head();
    if (error == http::error::body_limit)
      return respond_and_close(
          shared_->handler->refusal(*request_, 413, fmt::format("the body has more than {} bytes", shared_->options.max_body_bytes)));
    if (error == http::error::header_limit)
      return respond_and_close(
          shared_->handler->refusal(*request_, 431, fmt::format("the headers have more than {} bytes", shared_->options.max_header_bytes)));
    respond_and_close(shared_->handler->refusal(*request_, 400, fmt::format("not HTTP/1.1: {}", error.message())));
  }

  // --- Answering ---

  void enter_answering() {
    phase_ = Phase::kAnswering;
    ++shared_->busy;
    clear_deadline();
    status_ = 0;
    finishing_ = false;
  }

  void answer_refusal(const HttpResponse& response) {
    enter_answering();
    fill();
    send(response);
  }

  void respond_and_close(const HttpResponse& response) {
    keep_alive_ = false;
    enter_answering();
    send(response);  // without a watch: what the client still sends is read after the answer
  }

  void dispatch() {
    request_->body = std::move(parser_->get().body());
    parser_.reset();
    enter_answering();
    fill();
    if (closed_) return;
    if (shared_->handler->is_quick(*request_)) return on_reply(shared_->handler->handle(*request_));
    net::post(shared_->pool, [self = self()]() mutable {
      Reply reply = self->shared_->handler->handle(*self->request_);
      net::io_context& io = self->shared_->io;
      net::post(io, [self = std::move(self), reply = std::move(reply)]() mutable { self->on_reply(std::move(reply)); });
    });
  }

  void on_reply(Reply reply) {
    request_->body = std::string();
    if (closed_) {
      if (auto* pending = std::get_if<std::unique_ptr<PendingReply>>(&reply)) (*pending)->abandon();
      return;
    }
    if (auto* response = std::get_if<HttpResponse>(&reply)) return send(*response);
    pending_ = std::move(std::get<std::unique_ptr<PendingReply>>(reply));
    pending_->on_progress([weak = std::weak_ptr<Connection>(self())] {
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

  std::string stream_head(const HttpResponse& head) const {
    std::string bytes = wire_response(
        head,
        {.request_id = request_->id, .extra = shared_->handler->extra_headers(*request_), .keep_alive = keeps_alive(), .chunked = true});
    // An HTTP/1.0 client reads to the end of the connection.
    static constexpr std::string_view kChunked = "Transfer-Encoding: chunked\r\n";
    if (!chunks_allowed_) bytes.erase(bytes.find(kChunked), kChunked.size());
    return bytes;
  }

  bool keeps_alive() const { return keep_alive_ && !shared_->draining; }

  void send(const HttpResponse& response) {
    status_ = response.status;
    finishing_ = true;
    write(wire_response(response, {.request_id = request_->id,
                                   .extra = shared_->handler->extra_headers(*request_),
                                   .keep_alive = keeps_alive(),
                                   .head_only = request_->method == "HEAD"}));
  }

  void continue_answer() {
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

  void write(std::string bytes) {
    if (writing_) {  // the interim response
      unsent_ += bytes;
      return;
    }
    writing_ = true;
    out_ = std::move(bytes);
    set_deadline(transfer_time(shared_->options.write_timeout, out_.size()));
    net::async_write(stream_, net::buffer(out_), [self = self()](error_code error, std::size_t) {
      self->writing_ = false;
      if (self->closed_) return;
      if (error) return self->close();
      self->clear_deadline();
      self->last_write_ = Clock::now();
      self->out_.clear();
      self->continue_answer();
    });
  }

  void schedule_ping() {
    ping_.expires_at(std::max(last_write_, started_) + shared_->options.ping_interval);
    ping_.async_wait([self = self(), request = request_](error_code error) {
      if (error || self->closed_ || self->request_ != request || !self->pending_) return;
      const Clock::time_point now = Clock::now();
      if (now - self->last_write_ >= self->shared_->options.ping_interval) {
        self->last_write_ = now;
        const std::string comment = self->writing_ ? std::string() : self->pending_->keepalive();
        if (!comment.empty()) self->write(self->chunks_allowed_ ? wire_chunk(comment) : comment);
      }
      self->schedule_ping();
    });
  }

  void report(int status) {
    if (phase_ != Phase::kAnswering) return;
    --shared_->busy;
    phase_ = Phase::kClosing;
    shared_->handler->finished(*request_, status, std::chrono::duration<double>(Clock::now() - started_).count());
  }

  void finish() {
    const bool again = keeps_alive();
    report(status_);
    ping_.cancel();
    release();
    if (again) return begin_request();
    // The client may still be sending: closing now would reset the connection and could take the answer away from it.
    error_code ignored;
    stream_.lowest_layer().shutdown(Socket::shutdown_send, ignored);
    set_deadline(kLinger);
    fill();
  }

  Shared* shared_;
  Stream stream_;
  net::steady_timer deadline_, ping_;
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
  Clock::time_point started_, last_write_;
  std::unique_ptr<PendingReply> pending_;
  std::atomic<bool> woken_ = false;
};

// A socket file that nobody listens on any more.
void remove_stale_socket(const std::string& path) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0) return;
  if (!S_ISSOCK(status.st_mode)) fail<InputError>("--uds {}: is there already and is no socket", path);
  net::io_context io;
  net::local::stream_protocol::socket probe(io);
  error_code error;
  probe.connect(net::local::stream_protocol::endpoint(path), error);
  if (!error) fail<Error>("--uds {}: another process listens there", path);
  ::unlink(path.c_str());
}

}  // namespace

struct HttpServer::Impl {
  Impl(const HttpServerOptions& options, HttpHandler& handler) : shared(options, handler), acceptor(shared.io), retry(shared.io) {
    if (!options.certificate_file.empty()) load_certificate(options);
    if (options.unix_socket.empty())
      bind_tcp(options);
    else
      bind_unix(options.unix_socket);
  }

  void load_certificate(const HttpServerOptions& options) {
    tls.emplace(net::ssl::context::tls_server);
    tls->set_options(net::ssl::context::default_workarounds | net::ssl::context::no_sslv2 | net::ssl::context::no_sslv3 |
                     net::ssl::context::no_tlsv1 | net::ssl::context::no_tlsv1_1);
    error_code error;
    tls->use_certificate_chain_file(options.certificate_file, error);
    if (error) fail<InputError>("--ssl-certfile {}: {}", options.certificate_file, error.message());
    tls->use_private_key_file(options.key_file, net::ssl::context::pem, error);
    if (error) fail<InputError>("--ssl-keyfile {}: {}", options.key_file, error.message());
  }

  void listen(const net::generic::stream_protocol::endpoint& endpoint, const std::string& where) {
    error_code error;
    acceptor.open(endpoint.protocol(), error);
    if (!error && shared.options.unix_socket.empty()) acceptor.set_option(net::socket_base::reuse_address(true), error);
    if (!error) acceptor.bind(endpoint, error);
    if (!error) acceptor.listen(net::socket_base::max_listen_connections, error);
    if (error) fail<Error>("cannot listen on {}: {}", where, error.message());
  }

  void bind_tcp(const HttpServerOptions& options) {
    error_code error;
    net::ip::tcp::resolver resolver(shared.io);
    const auto found = resolver.resolve(options.host, std::to_string(options.port),
                                        net::ip::tcp::resolver::passive | net::ip::tcp::resolver::numeric_service, error);
    if (error || found.empty()) fail<InputError>("--host {}: {}", options.host, error ? error.message() : "no address");
    const net::ip::tcp::endpoint endpoint = *found.begin();
    listen(endpoint, fmt::format("{} port {}", options.host, options.port));
    sockaddr_storage bound{};
    socklen_t size = sizeof bound;
    if (::getsockname(acceptor.native_handle(), reinterpret_cast<sockaddr*>(&bound), &size) != 0)
      fail<Error>("cannot read the address that was bound");
    port = ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6*>(&bound)->sin6_port
                                             : reinterpret_cast<const sockaddr_in*>(&bound)->sin_port);
    const bool brackets = options.host.find(':') != std::string::npos;
    url = fmt::format("{}://{}{}{}:{}", tls ? "https" : "http", brackets ? "[" : "", options.host, brackets ? "]" : "", port);
  }

  void bind_unix(const std::string& path) {
    if (path.size() >= sizeof(sockaddr_un::sun_path)) fail<InputError>("--uds {}: the path is too long", path);
    remove_stale_socket(path);
    listen(net::local::stream_protocol::endpoint(path), path);
    url = "unix:" + path;
    owns_socket_file = true;
  }

  void accept() {
    acceptor.async_accept(shared.io, [this](error_code error, Socket socket) {
      if (error == net::error::operation_aborted || !acceptor.is_open()) return;
      if (error) {  // no file descriptors, most likely: wait for some
        retry.expires_after(std::chrono::milliseconds(100));
        retry.async_wait([this](error_code stopped) {
          if (!stopped) accept();
        });
        return;
      }
      serve(std::move(socket));
      accept();
    });
  }

  void serve(Socket socket) {
    error_code ignored;
    if (static_cast<int>(shared.connections.size()) >= shared.options.max_connections) {
      static constexpr std::string_view kFull =
          "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
      socket.non_blocking(true, ignored);
      if (!tls) socket.send(net::buffer(kFull.data(), kFull.size()), 0, ignored);
      return;
    }
    if (shared.options.unix_socket.empty()) socket.set_option(net::ip::tcp::no_delay(true), ignored);
    if (tls)
      std::make_shared<Connection<TlsStream>>(shared, TlsStream(std::move(socket), *tls))->start();
    else
      std::make_shared<Connection<Socket>>(shared, std::move(socket))->start();
  }

  void close_connections(bool idle_only) {
    const std::vector<ConnectionBase*> all(shared.connections.begin(), shared.connections.end());
    for (ConnectionBase* connection : all) {
      const std::shared_ptr<ConnectionBase> held = connection->shared_from_this();
      if (!idle_only || held->idle()) held->close();
    }
  }

  Shared shared;
  Acceptor acceptor;
  net::steady_timer retry;
  std::optional<net::ssl::context> tls;
  std::string url;
  int port = 0;
  bool owns_socket_file = false;
  std::thread thread;
};

HttpServer::HttpServer(const HttpServerOptions& options, HttpHandler& handler) : impl_(std::make_unique<Impl>(options, handler)) {}

HttpServer::~HttpServer() { stop(); }

std::string HttpServer::url() const { return impl_->url; }
int HttpServer::port() const { return impl_->port; }
int HttpServer::busy() const { return impl_->shared.busy; }

void HttpServer::start() {
  impl_->accept();
  impl_->thread = std::thread([this] { impl_->shared.io.run(); });
}

void HttpServer::drain() {
  impl_->shared.draining = true;
  net::post(impl_->shared.io, [impl = impl_.get()] { impl->close_connections(true); });
}

void HttpServer::stop() {
  if (impl_->thread.joinable()) {
    net::post(impl_->shared.io, [impl = impl_.get()] {
      error_code ignored;
      impl->acceptor.close(ignored);
      impl->close_connections(false);
      impl->shared.io.stop();
    });
    impl_->thread.join();
    impl_->shared.pool.join();
  }
  if (std::exchange(impl_->owns_socket_file, false)) ::unlink(impl_->shared.options.unix_socket.c_str());
}

}  // namespace tetrad
