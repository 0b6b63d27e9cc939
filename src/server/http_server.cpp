#include "server/http_server.h"

#include <boost/asio/post.hpp>
#include <thread>
#include <vector>

#include "server/http_connection.h"
#include "server/http_listener.h"

namespace tetrad {

struct HttpServer::Impl {
  Impl(const HttpServerOptions& options, HttpHandler& handler) : network(options, handler), listener(network) {}

  void close_connections(bool idle_only) {
    const std::vector<HttpConnection*> all(network.connections.begin(), network.connections.end());
    for (HttpConnection* connection : all) {
      const std::shared_ptr<HttpConnection> held = connection->shared_from_this();
      if (!idle_only || held->idle()) held->close();
    }
  }

  HttpNetwork network;
  HttpListener listener;
  std::thread thread;
};

HttpServer::HttpServer(const HttpServerOptions& options, HttpHandler& handler) : impl_(std::make_unique<Impl>(options, handler)) {}

HttpServer::~HttpServer() { stop(); }

std::string HttpServer::url() const { return impl_->listener.url(); }
int HttpServer::port() const { return impl_->listener.port(); }
int HttpServer::busy() const { return impl_->network.busy; }

void HttpServer::start() {
  impl_->listener.accept();
  impl_->thread = std::thread([this] { impl_->network.io.run(); });
}

void HttpServer::drain() {
  impl_->network.draining = true;
  boost::asio::post(impl_->network.io, [impl = impl_.get()] { impl->close_connections(true); });
}

void HttpServer::stop() {
  if (impl_->thread.joinable()) {
    boost::asio::post(impl_->network.io, [impl = impl_.get()] {
      impl->listener.close();
      impl->close_connections(false);
      impl->network.io.stop();
    });
    impl_->thread.join();
    impl_->network.pool.join();
  }
  impl_->listener.remove_file();
}

}  // namespace tetrad
