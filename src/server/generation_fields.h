#pragma once
// The fields of a request that all of OpenAI's endpoints for text share: how tokens are chosen, what ends the answer, how it is delivered.
#include <vector>

#include "server/chat_request.h"
#include "server/request_json.h"

namespace tetrad {

// Sampling, limits, stops, n, seed, cache, prompt_logprobs; all but logprobs, whose form differs. Everything is checked here: the engine
// refuses none of it. prompt_alone: max_tokens may be 0, which asks for the prompt only; with prompt_logprobs it always may.
EngineRequest read_engine_request(RequestFields& fields, const RequestContext& context, bool prompt_alone = false);
std::string read_request_id(RequestFields& fields);  // "" if there is none
std::vector<int> asked_stop_ids(const EngineRequest& engine, const RequestContext& context);
Delivery read_delivery(RequestFields& fields);

// Names what neither endpoint can do, and accepts what is for bookkeeping only.
void refuse_unsupported_fields(RequestFields& fields);

// Unknown fields, or with context.strict_fields the refusal of the first. A field with which another API asks for a form of the answer is
// always refused: the answer would not have it. form_field: what asks for it here.
std::vector<std::string> unknown_fields(RequestFields& fields, const RequestContext& context, std::string_view form_field);

// A number between low and high, checked so that a NaN fails.
double number_between(RequestFields& fields, std::string_view field, double fallback, double low, double high, bool low_allowed = true);
// "stop" and the like: a string or a list of strings.
// Which requests may share what is computed of this one: cache_salt, cache_prompt. Every route that generates reads them.
void read_cache_fields(RequestFields& fields, EngineRequest& engine);
std::vector<std::string> read_stop_strings(RequestFields& fields, std::string_view field);

}  // namespace tetrad
