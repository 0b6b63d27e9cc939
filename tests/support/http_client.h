#pragma once
// A client of a few lines that sends exactly the bytes it is given: what a well-behaved library would not send is what tests are about.
#include <chrono>
#include <string>
#include <string_view>

namespace tetrad::testing {

class RawClient {
 public:
  explicit RawClient(int port);  // connects to 127.0.0.1
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;
  ~RawClient();

  bool send(std::string_view bytes);  // false if the other side has closed
  // Reads until `text` has come, and gives all up to its end; what follows is kept. Everything there was if the connection ends or
  // nothing comes for a while.
  std::string read_until(std::string_view text);
  std::string read_response();  // one with a Content-Length
  std::string read_to_end();    // until the other side closes
  bool closed_by_server();      // within some seconds; drops what comes before
  void close();
  void reset();  // closes with RST
  void limit_receive_buffer(int bytes);

 private:
  bool receive();

  int socket_ = -1;
  std::string buffer_;
};

}  // namespace tetrad::testing
