#pragma once
// The network side: sockets, HTTP/1.1, limits and timeouts. One thread runs all connections; handlers that compute run on a few others.
//
// A connection serves one request at a time, in order. While a request is being answered its socket is watched: a client that closes (or
// resets) abandons its reply at once. A client that sends its request or reads its answer too slowly is cut off.
#include <chrono>
#include <cstddef>
#include <memory>
#include <string>

#include "server/http_message.h"

namespace tetrad {

struct HttpServerOptions {
  std::string host = "127.0.0.1";          // an address or a name
  int port = 8000;                         // 0: any free one
  std::string unix_socket;                 // a path: used instead of host and port
  std::string certificate_file, key_file;  // PEM: both, or neither and no TLS

  int handler_threads = 2;
  int max_connections = 4096;
  std::size_t max_body_bytes = std::size_t{64} << 20;
  std::size_t max_bodies_bytes = std::size_t{512} << 20;  // of all connections together
  std::size_t max_header_bytes = std::size_t{32} << 10;
  int max_headers = 100;
  std::chrono::milliseconds idle_timeout{75'000};    // between requests
  std::chrono::milliseconds header_timeout{30'000};  // from the first byte to the end of the headers; a body has this and 1 s for 256 KiB
  std::chrono::milliseconds write_timeout{30'000};   // in which one write must make its way
  std::chrono::milliseconds ping_interval{10'000};   // of a silent stream
};

class HttpServer {
 public:
  // Binds, so that the address is taken from here on; nothing is answered before start(). Throws Error naming the address. The handler
  // outlives this.
  HttpServer(const HttpServerOptions& options, HttpHandler& handler);
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;
  ~HttpServer();  // stop()

  std::string url() const;  // "http://127.0.0.1:8000", "unix:/run/t.sock"
  int port() const;         // that was bound; 0 for a Unix socket

  void start();
  // From here on every response closes its connection, and idle connections are closed.
  void drain();
  int busy() const;  // requests read and not yet answered in full
  // Closes everything at once and ends the threads; replies that are not finished are abandoned.
  void stop();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tetrad
