#include "server/http_transport.h"

#include <boost/asio/buffer.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/write.hpp>
#include <utility>

namespace tetrad {
namespace {

using TlsStream = boost::asio::ssl::stream<HttpTransport::Socket>;

template <class Stream>
class StreamTransport final : public HttpTransport {
 public:
  explicit StreamTransport(Stream stream) : stream_(std::move(stream)) {}

  void handshake(Done done) override {
    if constexpr (std::is_same_v<Stream, TlsStream>)
      stream_.async_handshake(boost::asio::ssl::stream_base::server,
                              [done = std::move(done)](boost::system::error_code error) { done(error, 0); });
    else
      done({}, 0);
  }
  void read_some(std::string& into, Done done) override { stream_.async_read_some(boost::asio::buffer(into), std::move(done)); }
  void write(std::string_view bytes, Done done) override {
    boost::asio::async_write(stream_, boost::asio::buffer(bytes.data(), bytes.size()), std::move(done));
  }
  void shutdown_send() override {
    boost::system::error_code ignored;
    stream_.lowest_layer().shutdown(Socket::shutdown_send, ignored);
  }
  void close() override {
    boost::system::error_code ignored;
    stream_.lowest_layer().close(ignored);
  }

 private:
  Stream stream_;
};

}  // namespace

std::unique_ptr<HttpTransport> plain_transport(HttpTransport::Socket socket) {
  return std::make_unique<StreamTransport<HttpTransport::Socket>>(std::move(socket));
}

std::unique_ptr<HttpTransport> tls_transport(HttpTransport::Socket socket, boost::asio::ssl::context& context) {
  return std::make_unique<StreamTransport<TlsStream>>(TlsStream(std::move(socket), context));
}

}  // namespace tetrad
