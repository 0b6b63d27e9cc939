#pragma once
// The bytes of one connection, with TLS or without. On the network's thread.
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/ssl/context.hpp>

namespace tetrad {

class HttpTransport {
 public:
  using Socket = boost::asio::generic::stream_protocol::socket;
  using Done = std::function<void(boost::system::error_code, std::size_t bytes)>;

  virtual ~HttpTransport() = default;
  // Before anything else; done may be called at once.
  virtual void handshake(Done done) = 0;
  // Some bytes into the front of `into`; all of `bytes`. Both outlive the call, and so does this: `done` holds whoever owns it.
  virtual void read_some(std::string& into, Done done) = 0;
  virtual void write(std::string_view bytes, Done done) = 0;
  virtual void shutdown_send() = 0;  // the other side sees an end
  virtual void close() = 0;          // what is under way ends with an error
};

std::unique_ptr<HttpTransport> plain_transport(HttpTransport::Socket socket);
std::unique_ptr<HttpTransport> tls_transport(HttpTransport::Socket socket, boost::asio::ssl::context& context);

}  // namespace tetrad
