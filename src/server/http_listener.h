#pragma once
// The address that a server listens on: bound when it is made, so that it is taken from there on; accepts connections once it is told to.
#include <memory>
#include <optional>
#include <string>

#include <boost/asio/basic_socket_acceptor.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/steady_timer.hpp>

#include "server/http_connection.h"

namespace tetrad {

class HttpListener {
 public:
  // Throws Error naming the address, or InputError naming the flag.
  explicit HttpListener(HttpNetwork& network);
  HttpListener(const HttpListener&) = delete;
  HttpListener& operator=(const HttpListener&) = delete;
  ~HttpListener();  // the socket's file goes with it

  const std::string& url() const { return url_; }
  int port() const { return port_; }  // 0 for a Unix socket

  // On the network's thread, as what follows from it; but for the first accept(), before that thread runs.
  void accept();
  void close();
  void remove_file();

 private:
  void load_certificate();
  void listen(const boost::asio::generic::stream_protocol::endpoint& endpoint, const std::string& where);
  void bind_tcp();
  void bind_unix();
  void serve(HttpTransport::Socket socket);

  HttpNetwork* network_;
  boost::asio::basic_socket_acceptor<boost::asio::generic::stream_protocol> acceptor_;
  boost::asio::steady_timer retry_;
  std::optional<boost::asio::ssl::context> tls_;
  std::string url_;
  int port_ = 0;
  bool owns_file_ = false;
};

}  // namespace tetrad
