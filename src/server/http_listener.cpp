#include "server/http_listener.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <boost/asio/buffer.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <utility>

#include "base/error.h"

namespace tetrad {
namespace {

namespace net = boost::asio;
using boost::system::error_code;

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

HttpListener::HttpListener(HttpNetwork& network) : network_(&network), acceptor_(network.io), retry_(network.io) {
  if (!network.options.certificate_file.empty()) load_certificate();
  if (network.options.unix_socket.empty())
    bind_tcp();
  else
    bind_unix();
}

HttpListener::~HttpListener() { remove_file(); }

void HttpListener::load_certificate() {
  const HttpServerOptions& options = network_->options;
  tls_.emplace(net::ssl::context::tls_server);
  tls_->set_options(net::ssl::context::default_workarounds | net::ssl::context::no_sslv2 | net::ssl::context::no_sslv3 |
                    net::ssl::context::no_tlsv1 | net::ssl::context::no_tlsv1_1);
  error_code error;
  tls_->use_certificate_chain_file(options.certificate_file, error);
  if (error) fail<InputError>("--ssl-certfile {}: {}", options.certificate_file, error.message());
  tls_->use_private_key_file(options.key_file, net::ssl::context::pem, error);
  if (error) fail<InputError>("--ssl-keyfile {}: {}", options.key_file, error.message());
}

void HttpListener::listen(const net::generic::stream_protocol::endpoint& endpoint, const std::string& where) {
  error_code error;
  acceptor_.open(endpoint.protocol(), error);
  if (!error && network_->options.unix_socket.empty()) acceptor_.set_option(net::socket_base::reuse_address(true), error);
  if (!error) acceptor_.bind(endpoint, error);
  if (!error) acceptor_.listen(net::socket_base::max_listen_connections, error);
  if (error) fail<Error>("cannot listen on {}: {}", where, error.message());
}

void HttpListener::bind_tcp() {
  const HttpServerOptions& options = network_->options;
  error_code error;
  net::ip::tcp::resolver resolver(network_->io);
  const auto found = resolver.resolve(options.host, std::to_string(options.port),
                                      net::ip::tcp::resolver::passive | net::ip::tcp::resolver::numeric_service, error);
  if (error || found.empty()) fail<InputError>("--host {}: {}", options.host, error ? error.message() : "no address");
  const net::ip::tcp::endpoint endpoint = *found.begin();
  listen(endpoint, fmt::format("{} port {}", options.host, options.port));
  sockaddr_storage bound{};
  socklen_t size = sizeof bound;
  if (::getsockname(acceptor_.native_handle(), reinterpret_cast<sockaddr*>(&bound), &size) != 0)
    fail<Error>("cannot read the address that was bound");
  port_ = ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6*>(&bound)->sin6_port
                                            : reinterpret_cast<const sockaddr_in*>(&bound)->sin_port);
  const bool brackets = options.host.find(':') != std::string::npos;
  url_ = fmt::format("{}://{}{}{}:{}", tls_ ? "https" : "http", brackets ? "[" : "", options.host, brackets ? "]" : "", port_);
}

void HttpListener::bind_unix() {
  const std::string& path = network_->options.unix_socket;
  if (path.size() >= sizeof(sockaddr_un::sun_path)) fail<InputError>("--uds {}: the path is too long", path);
  remove_stale_socket(path);
  listen(net::local::stream_protocol::endpoint(path), path);
  url_ = "unix:" + path;
  owns_file_ = true;
}

void HttpListener::remove_file() {
  if (std::exchange(owns_file_, false)) ::unlink(network_->options.unix_socket.c_str());
}

void HttpListener::accept() {
  acceptor_.async_accept(network_->io, [this](error_code error, HttpTransport::Socket socket) {
    if (error == net::error::operation_aborted || !acceptor_.is_open()) return;
    if (error) {  // no file descriptors, most likely: wait for some
      retry_.expires_after(std::chrono::milliseconds(100));
      retry_.async_wait([this](error_code stopped) {
        if (!stopped) accept();
      });
      return;
    }
    serve(std::move(socket));
    accept();
  });
}

void HttpListener::close() {
  error_code ignored;
  acceptor_.close(ignored);
}

void HttpListener::serve(HttpTransport::Socket socket) {
  error_code ignored;
  if (static_cast<int>(network_->connections.size()) >= network_->options.max_connections) {
    static constexpr std::string_view kFull =
        "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    socket.non_blocking(true, ignored);
    if (!tls_) socket.send(net::buffer(kFull.data(), kFull.size()), 0, ignored);
    return;
  }
  if (network_->options.unix_socket.empty()) socket.set_option(net::ip::tcp::no_delay(true), ignored);
  auto transport = tls_ ? tls_transport(std::move(socket), *tls_) : plain_transport(std::move(socket));
  std::make_shared<HttpConnection>(*network_, std::move(transport))->start();
}

}  // namespace tetrad
