#pragma once
// Routes that generate. All throw RequestError, InputError or EngineRefusal before anything has been answered.
#include <memory>

#include "server/http_message.h"
#include "server/service.h"

namespace tetrad {

Reply completions(const std::shared_ptr<const Service>& service, const HttpRequest& request);       // POST /v1/completions
Reply chat_completions(const std::shared_ptr<const Service>& service, const HttpRequest& request);  // POST /v1/chat/completions
Reply messages(const std::shared_ptr<const Service>& service, const HttpRequest& request);          // POST /v1/messages
Reply responses(const std::shared_ptr<const Service>& service, const HttpRequest& request);         // POST /v1/responses
HttpResponse count_message_tokens(const Service& service, const HttpRequest& request);              // POST /v1/messages/count_tokens

}  // namespace tetrad
