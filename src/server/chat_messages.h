#pragma once
// The messages of a chat completion (roles system, developer, user, assistant, tool; text only).
#include <string>
#include <vector>

#include "server/conversation_builder.h"
#include "server/request_json.h"

namespace tetrad {

// Appends to `unknown` the fields without effect, as "messages[].name".
void read_chat_messages(RequestFields& body, ConversationBuilder& conversation, std::vector<std::string>& unknown);

}  // namespace tetrad
