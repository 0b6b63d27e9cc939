#pragma once
// Which web pages of other origins may use the API (CORS). Cookies are not used and credentials never allowed: a page needs a key of its
// own.
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "server/http_message.h"

namespace tetrad {

class CorsPolicy {
 public:
  CorsPolicy() = default;  // none
  // Origins as browsers send them, "https://chat.example:8443", or "*" for all. Throws InputError for what no browser would send.
  explicit CorsPolicy(std::vector<std::string> allowed_origins);

  // For every response, refusals too. Empty unless the request comes from an allowed origin.
  Headers headers(const HttpRequest& request) const;
  // The answer to the question that a browser asks before it sends a request; nothing if this is no such question, or not allowed.
  std::unique_ptr<HttpResponse> preflight(const HttpRequest& request, std::string_view method) const;

 private:
  bool allows(std::string_view origin) const;

  std::vector<std::string> origins_;
  bool any_ = false;
};

}  // namespace tetrad
