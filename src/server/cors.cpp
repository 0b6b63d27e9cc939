#include "server/cors.h"

#include <algorithm>
#include <cctype>
#include <utility>

#include "base/error.h"

namespace tetrad {
namespace {

constexpr std::size_t kMaxAskedHeaders = 1024;  // bytes

bool is_host_char(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '.' || c == '-' || c == ':' || c == '[' || c == ']';
}

// scheme "://" host [":" port], in lower case, nothing behind.
bool is_origin(std::string_view text) {
  const std::size_t colon = text.find("://");
  if (colon == std::string_view::npos || colon == 0) return false;
  const std::string_view scheme = text.substr(0, colon), host = text.substr(colon + 3);
  const auto is_upper = [](unsigned char c) { return std::isupper(c) != 0; };
  return std::all_of(scheme.begin(), scheme.end(),
                     [](unsigned char c) { return std::isalnum(c) != 0 || c == '-' || c == '+' || c == '.'; }) &&
         !host.empty() && std::all_of(host.begin(), host.end(), is_host_char) && std::none_of(text.begin(), text.end(), is_upper);
}

// The names of headers go back to the browser: none that could end a line or start another header.
bool is_header_list(std::string_view text) {
  return text.size() <= kMaxAskedHeaders && std::all_of(text.begin(), text.end(), [](unsigned char c) {
           return std::isalnum(c) != 0 || c == '-' || c == '_' || c == ',' || c == ' ';
         });
}

}  // namespace

CorsPolicy::CorsPolicy(std::vector<std::string> allowed_origins) : origins_(std::move(allowed_origins)) {
  for (const std::string& origin : origins_) {
    if (origin == "*")
      any_ = true;
    else if (!is_origin(origin))
      fail<InputError>("--allowed-origins must be '*' or origins such as https://chat.example:8443 (lower case, no path), got '{}'",
                       origin);
  }
}

bool CorsPolicy::allows(std::string_view origin) const {
  return !origin.empty() && (any_ || std::find(origins_.begin(), origins_.end(), origin) != origins_.end());
}

Headers CorsPolicy::headers(const HttpRequest& request) const {
  if (origins_.empty()) return {};
  Headers headers;
  if (!any_) headers.emplace_back("Vary", "Origin");  // a cache must not give one origin's answer to another
  const std::string_view origin = request.header("origin");
  if (!allows(origin)) return headers;
  headers.emplace_back("Access-Control-Allow-Origin", any_ ? "*" : std::string(origin));
  headers.emplace_back("Access-Control-Expose-Headers", "X-Request-Id, Retry-After, x-should-retry");
  return headers;
}

std::unique_ptr<HttpResponse> CorsPolicy::preflight(const HttpRequest& request, std::string_view method) const {
  const std::string_view asked = request.header("access-control-request-headers");
  if (request.method != "OPTIONS" || request.header("access-control-request-method").empty() || !allows(request.header("origin")) ||
      !is_header_list(asked))
    return nullptr;
  auto response = std::make_unique<HttpResponse>(HttpResponse{.status = 204, .content_type = {}});
  response->headers.emplace_back("Access-Control-Allow-Methods", method == "GET" ? "GET, HEAD" : std::string(method));
  if (!asked.empty()) response->headers.emplace_back("Access-Control-Allow-Headers", asked);
  response->headers.emplace_back("Access-Control-Max-Age", "600");
  return response;
}

}  // namespace tetrad
