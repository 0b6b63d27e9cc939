#pragma once
// GET /v1/stats: what the server does now, for its page and for people. No content of requests.
#include "server/http_message.h"
#include "server/server_state.h"
#include "server/service.h"

namespace tetrad {

// service: null while the model is being loaded.
HttpResponse server_stats(const Service* service, const ServerState& state);

}  // namespace tetrad
