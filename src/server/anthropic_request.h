#pragma once
// /v1/messages and /v1/messages/count_tokens, read to the same value as a chat completion.
#include <string_view>

#include "server/chat_request.h"

namespace tetrad {

// thinking: absent as the template's default; disabled turns it off; enabled and adaptive turn it on. A budget is kept in thinking_budget
// and chooses the effort: below 2048 tokens low, below 8192 medium, else xhigh. system and tool_result become messages of their roles;
// thinking blocks become reasoning_content, redacted ones are left out. Streamed requests always report usage.
ChatRequest parse_anthropic_request(std::string_view body, const RequestContext& context);

// The same fields, but max_tokens and the like need not be there; only `variables` and `tools` of the result matter.
ChatRequest parse_anthropic_count_request(std::string_view body, const RequestContext& context);

}  // namespace tetrad
