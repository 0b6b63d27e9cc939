#pragma once
// Bytes of HTTP/1.1 responses and of event streams.
#include <string>
#include <string_view>

#include "server/http_message.h"

namespace tetrad {

std::string_view status_text(int status);  // "Not Found"; "" for a number not used here

struct WireOptions {
  std::string_view request_id = {};
  Headers extra = {};  // behind those of the response
  bool keep_alive = true;
  bool chunked = false;    // a stream: no length, chunks follow
  bool head_only = false;  // of a HEAD request: the length of the body, not the body
};
// Head and, unless chunked, body. Header values hold no line breaks: what could is checked where it comes in.
std::string wire_response(const HttpResponse& response, const WireOptions& options);

std::string wire_chunk(std::string_view bytes);  // not empty
inline constexpr std::string_view kLastChunk = "0\r\n\r\n";

// "data: ...\n\n", with "event: ...\n" before it if the event has a name. data is one line.
void append_event(std::string& out, std::string_view data, std::string_view name = {});
inline constexpr std::string_view kDone = "data: [DONE]\n\n";
inline constexpr std::string_view kKeepalive = ": keepalive\n\n";

// The client's id if it is short and plain (letters, digits, "-_.:"), else a new one that nobody can guess.
std::string request_id_from(std::string_view given);
std::string random_id(std::string_view prefix);  // prefix and 24 hexadecimal digits

// Path and query of a request's target, which may name scheme and host as well ("http://host/path?query"), as requests through a proxy do.
std::string_view origin_form(std::string_view target);
// What is wrong with the Host of a request of HTTP/1.1, which must have one, and a host or nothing in it; "" if nothing is.
std::string_view host_fault(const Headers& headers);

// "a%2Fb" as "a/b"; a broken escape stays as it is.
std::string percent_decoded(std::string_view text);

}  // namespace tetrad
