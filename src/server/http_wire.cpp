#include "server/http_wire.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstring>
#include <iterator>
#include <random>

namespace tetrad {
namespace {

constexpr std::size_t kMaxRequestId = 128;

bool is_plain(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' || c == '_' || c == '.' || c == ':';
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

std::string_view HttpRequest::header(std::string_view lower_case_name) const {
  for (const auto& [name, value] : headers)
    if (name == lower_case_name) return value;
  return {};
}

std::string_view status_text(int status) {
  switch (status) {
    case 200: return "OK";
    case 204: return "No Content";
    case 400: return "Bad Request";
    case 401: return "Unauthorized";
    case 403: return "Forbidden";
    case 404: return "Not Found";
    case 405: return "Method Not Allowed";
    case 408: return "Request Timeout";
    case 413: return "Content Too Large";
    case 415: return "Unsupported Media Type";
    case 429: return "Too Many Requests";
    case 431: return "Request Header Fields Too Large";
    case 500: return "Internal Server Error";
    case 501: return "Not Implemented";
    case 503: return "Service Unavailable";
    case 505: return "HTTP Version Not Supported";
    case 529: return "Overloaded";
    default: return "";
  }
}

std::string wire_response(const HttpResponse& response, const WireOptions& options) {
  std::string out = fmt::format("HTTP/1.1 {} {}\r\n", response.status, status_text(response.status));
  const auto back = std::back_inserter(out);
  if (!response.content_type.empty()) fmt::format_to(back, "Content-Type: {}\r\n", response.content_type);
  if (!options.request_id.empty()) fmt::format_to(back, "X-Request-Id: {}\r\n", options.request_id);
  for (const Headers* headers : {&response.headers, &options.extra})
    for (const auto& [name, value] : *headers) fmt::format_to(back, "{}: {}\r\n", name, value);
  constexpr int kNoContent = 204;  // has no body, and no length either
  if (options.chunked)
    out += "Transfer-Encoding: chunked\r\n";
  else if (response.status != kNoContent)
    fmt::format_to(back, "Content-Length: {}\r\n", response.body.size());
  out += options.keep_alive ? "Connection: keep-alive\r\n\r\n" : "Connection: close\r\n\r\n";
  if (!options.chunked && !options.head_only) out += response.body;
  return out;
}

std::string wire_chunk(std::string_view bytes) { return fmt::format("{:x}\r\n{}\r\n", bytes.size(), bytes); }

void append_event(std::string& out, std::string_view data, std::string_view name) {
  if (!name.empty()) fmt::format_to(std::back_inserter(out), "event: {}\n", name);
  out += "data: ";
  out += data;
  out += "\n\n";
}

std::string request_id_from(std::string_view given) {
  if (!given.empty() && given.size() <= kMaxRequestId && std::all_of(given.begin(), given.end(), is_plain)) return std::string(given);
  return random_id("req-");
}

std::string random_id(std::string_view prefix) {
  static thread_local std::random_device entropy;  // the system's generator
  return fmt::format("{}{:08x}{:08x}{:08x}", prefix, entropy(), entropy(), entropy());
}

std::string_view origin_form(std::string_view target) {
  for (const std::string_view scheme : {"http://", "https://"}) {
    const bool absolute =
        target.size() >= scheme.size() && std::equal(scheme.begin(), scheme.end(), target.begin(),
                                                     [](char expected, char c) { return expected == (c >= 'A' && c <= 'Z' ? c + 32 : c); });
    if (!absolute) continue;
    target.remove_prefix(scheme.size());
    target.remove_prefix(std::min(target.find_first_of("/?"), target.size()));
    return target.empty() ? "/" : target;
  }
  return target;
}

std::string_view host_fault(const Headers& headers) {
  const std::string* host = nullptr;
  for (const auto& [name, value] : headers) {
    if (name != "host") continue;
    if (host != nullptr) return "more than one Host header";
    host = &value;
  }
  if (host == nullptr) return "no Host header, which HTTP/1.1 demands";
  const auto fits = [](unsigned char c) {
    return std::isalnum(c) != 0 || std::string_view("-._~%:[]!$&'()*+,;=").find(static_cast<char>(c)) != std::string_view::npos;
  };
  return std::all_of(host->begin(), host->end(), fits) ? "" : "a Host header that names no host";
}

std::string percent_decoded(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const int high = text[i] == '%' && i + 2 < text.size() ? hex_digit(text[i + 1]) : -1;
    const int low = high >= 0 ? hex_digit(text[i + 2]) : -1;
    if (low < 0) {
      out += text[i];
      continue;
    }
    out += static_cast<char>(high * 16 + low);
    i += 2;
  }
  return out;
}

}  // namespace tetrad
