#pragma once
// Requests and replies as values: handlers are functions from one to the other, and know no sockets.
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace tetrad {

using Headers = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method = {};  // "GET"
  std::string path = {};    // as sent, without the query
  std::string query = {};   // without the question mark
  Headers headers = {};     // names in lower case
  std::string body = {};
  std::string id = {};  // of this request: the client's own or one made here; safe to print

  std::string_view header(std::string_view lower_case_name) const;  // the first of that name; empty if there is none
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  Headers headers = {};
  std::string body = {};
};

// A reply that is still being made. One thread at a time uses it; only the waker is rung from elsewhere.
class PendingReply {
 public:
  virtual ~PendingReply() = default;

  // `wake` is called, from any thread, whenever take() may give more than before; it does not wait. An empty one: nobody listens any more.
  virtual void on_progress(std::function<void()> wake) = 0;

  virtual bool streams() const = 0;     // the body goes out in pieces; else it is response() once done() holds
  virtual HttpResponse response() = 0;  // of a stream: its head, without a body
  virtual std::string take() = 0;       // what of the body is ready, some 64 KiB at most; takes in what arrived also when not streaming
  virtual bool done() const = 0;        // nothing follows
  virtual std::string keepalive() const = 0;  // what a silent stream says now and then
  virtual void abandon() = 0;                 // the client has gone
};

using Reply = std::variant<HttpResponse, std::unique_ptr<PendingReply>>;

// A bell that may be rung before anyone listens: the ring is then kept.
class Waker {
 public:
  void ring() {
    const std::lock_guard lock(mutex_);
    if (wake_)
      wake_();
    else
      rung_ = true;
  }
  void listen(std::function<void()> wake) {
    const std::lock_guard lock(mutex_);
    wake_ = std::move(wake);
    if (wake_ && rung_) wake_();
    rung_ = false;
  }

 private:
  std::mutex mutex_;
  std::function<void()> wake_;
  bool rung_ = false;
};

// What the network side asks of whoever answers. screen() and quick handle() run on the network's thread and must be short.
class HttpHandler {
 public:
  virtual ~HttpHandler() = default;

  // Looks at a request without its body. A response refuses it: the body is then not read.
  virtual std::unique_ptr<HttpResponse> screen(const HttpRequest& head) = 0;
  virtual bool is_quick(const HttpRequest& head) const = 0;  // handle() does not compute: it need not wait for a thread
  virtual Reply handle(const HttpRequest& request) noexcept = 0;
  // For what the network side refuses itself: a body too large, headers that make no sense.
  virtual HttpResponse refusal(const HttpRequest& head, int status, std::string_view message) const = 0;
  // That every response to this request gets besides its own.
  virtual Headers extra_headers(const HttpRequest&) const { return {}; }
  // After the last byte, or when the client has gone (status 499). seconds: since the head was read.
  virtual void finished(const HttpRequest& head, int status, double seconds) = 0;
};

}  // namespace tetrad
