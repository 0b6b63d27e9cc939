#pragma once
// The input of /v1/responses: items that become messages.
#include <string>
#include <vector>

#include "server/conversation_builder.h"
#include "server/request_json.h"

namespace tetrad {

// The name that the model knows a tool of a namespace by.
std::string joined_tool_name(const std::string& name_space, const std::string& name);

// Appends to `unknown` the fields of messages without effect, as "input[].x".
void read_responses_input(RequestFields& body, ConversationBuilder& conversation, std::vector<std::string>& unknown);

}  // namespace tetrad
