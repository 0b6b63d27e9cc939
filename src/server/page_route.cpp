#include "server/page_route.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "server/http_errors.h"
#include "server/page_files.h"

namespace tetrad {
namespace {

// Nothing but the page's own files, no connection but to this server, and no way to turn text into markup.
constexpr std::string_view kPolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; require-trusted-types-for 'script'";

std::string_view media_type(std::string_view name) {
  static constexpr std::pair<std::string_view, std::string_view> kTypes[] = {
      {".html", "text/html; charset=utf-8"}, {".css", "text/css; charset=utf-8"}, {".js", "text/javascript; charset=utf-8"}};
  for (const auto& [end, type] : kTypes)
    if (name.ends_with(end)) return type;
  return "application/octet-stream";
}

}  // namespace

HttpResponse page_response(std::string_view name) {
  if (name.empty()) name = "index.html";
  const PageFile* end = kPageFiles + kNumPageFiles;
  const PageFile* file = std::find_if(kPageFiles, end, [&](const PageFile& each) { return each.name == name; });
  if (file == end)
    return error_response({.status = 404,
                           .type = "not_found_error",
                           .code = "route_not_found",
                           .param = {},
                           .message = "The page has no file of this name.",
                           .retry_after = {},
                           .should_retry = {}},
                          ApiShape::kOpenAi);
  return {.content_type = std::string(media_type(name)),
          .headers = {{"Content-Security-Policy", std::string(kPolicy)},
                      {"X-Content-Type-Options", "nosniff"},
                      {"Referrer-Policy", "no-referrer"},
                      {"Cross-Origin-Opener-Policy", "same-origin"},
                      {"Cache-Control", "no-cache"}},
          .body = std::string(file->text)};
}

}  // namespace tetrad
