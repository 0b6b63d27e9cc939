#pragma once
// Routes that show what the engine would be given, and compute nothing. All throw RequestError or InputError.
#include "server/http_message.h"
#include "server/service.h"

namespace tetrad {

// POST /v1/.../render, in vLLM's form: token ids and sampling parameters, of completions a list with one for each prompt.
HttpResponse render_completions(const Service& service, const HttpRequest& request);
HttpResponse render_chat(const Service& service, const HttpRequest& request);
HttpResponse render_responses(const Service& service, const HttpRequest& request);

HttpResponse apply_template(const Service& service, const HttpRequest& request);  // POST /apply-template: {"prompt"}, in llama.cpp's form

}  // namespace tetrad
