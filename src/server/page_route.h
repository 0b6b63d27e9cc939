#pragma once
// GET / and GET /ui/NAME: the page. It is the same for everybody and holds no secret, so it needs no key; what it asks for does.
#include <string_view>

#include "server/http_message.h"

namespace tetrad {

HttpResponse page_response(std::string_view name);  // "" is the page itself; 404 for a name that is none

}  // namespace tetrad
