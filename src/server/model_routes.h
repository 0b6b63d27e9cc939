#pragma once
// Routes that describe the model and its tokenizer; none of them computes.
#include <string>

#include "server/http_message.h"
#include "server/service.h"

namespace tetrad {

HttpResponse list_models(const Service& service);                              // GET /v1/models
HttpResponse describe_model(const Service& service, const std::string& name);  // GET /v1/models/NAME
HttpResponse server_load(const Service& service);                              // GET /load
HttpResponse server_loads(const Service& service);                             // GET /v1/loads, as SGLang's gateway reads it

// POST /tokenize: {"prompt", "add_special_tokens", "return_token_strs"}, or what a chat completion takes.
HttpResponse tokenize(const Service& service, const HttpRequest& request);
HttpResponse detokenize(const Service& service, const HttpRequest& request);  // POST /detokenize: {"tokens"}

}  // namespace tetrad
