#pragma once
// /v1/responses as a value: OpenAI's API of typed items, without anything stored between requests.
#include <map>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "server/chat_request.h"

namespace tetrad {

// How the client knows a tool whose name for the model is another, or that it gave in another form than as a function.
struct ClientTool {
  std::string name, name_space;  // the second is "" outside a namespace
  bool custom = false;           // its input is a text, not an object
};

struct ResponsesRequest {
  ChatRequest chat;
  nlohmann::ordered_json echo;                           // the fields of a response that repeat the request
  std::map<std::string, ClientTool, std::less<>> tools;  // by the name that the model knows; those that differ
};

// The one parameter of a custom tool, as the model sees it.
inline constexpr std::string_view kCustomInput = "input";

// input: a string, or items: messages (also without a type), reasoning, function_call, function_call_output, custom_tool_call and
// custom_tool_call_output. What an assistant said in a row is one message for the template; a result must answer a call of the input, and
// an incomplete call is left out.
// tools: functions, alone or in a namespace, and custom ones, whose grammar is not enforced. Of those that OpenAI's own server would run,
// web_search, image_generation and tool_search are left out and listed in unknown_fields, for clients send them unasked; others are
// refused, as is everything that would need a store.
ResponsesRequest parse_responses_request(std::string_view body, const RequestContext& context);

}  // namespace tetrad
