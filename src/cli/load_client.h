#pragma once
// Many HTTP requests at once on one thread, each on a connection of its own, with the times at which their answers came.
#include <functional>
#include <memory>
#include <string>

#include "cli/load_stream.h"

namespace tetrad::cli {

struct LoadAddress {
  std::string host;
  int port = 80;
  std::string prefix;  // of paths: "" or "/v1"
};
// "http://127.0.0.1:8000/v1". Throws InputError for what is no such address; https is not spoken.
LoadAddress parse_base_url(const std::string& url);

struct LoadCall {
  std::string method = "POST";
  std::string path;
  std::string body;
  std::string api_key;  // none if empty
};

class LoadClient {
 public:
  using Done = std::function<void(LoadAnswer)>;

  // timeout: seconds that one request may take. Throws Error if the host has no address.
  LoadClient(LoadAddress address, double timeout);
  LoadClient(const LoadClient&) = delete;
  LoadClient& operator=(const LoadClient&) = delete;
  ~LoadClient();

  double now() const;  // seconds since the construction
  // Both return at once; what they start happens in run(), which calls back and ends when nothing is left to do.
  void send(const LoadCall& call, Done done);
  void at(double time, std::function<void()> action);
  void run();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tetrad::cli
