#pragma once
// What a chat request says about tools and thinking, in the terms all its APIs share.
#include <optional>
#include <string>
#include <string_view>

#include "server/chat_request.h"
#include "server/request_json.h"

namespace tetrad {

// Accumulates what fields say; later calls outrank earlier ones.
struct ThinkingWish {
  std::optional<bool> enabled;
  std::optional<std::string> effort;  // of the template: low, medium, xhigh

  void set_enabled(bool on) { enabled = on; }
  // "none" turns thinking off; minimal and low are low, medium is itself, high, xhigh and max are xhigh. RequestError for others.
  void set_effort(const std::string& effort, const std::string& path);
};

// What clients call thinking and reasoning, from the least specific to the most: `thinking`, `reasoning`, budgets, reasoning_effort,
// enable_thinking, chat_template_kwargs. Budgets, the form of the output and other variables of the template go into the request.
ThinkingWish read_thinking(RequestFields& fields, ChatRequest& request);

// OpenAI's tool_choice: auto, none, required, or a function, whose name goes to `named`.
ToolChoice read_tool_choice(RequestFields& fields, std::string& named);

// Adds one offered function: `schema` may be null; `strict`: calls keep to it. Refuses names that are malformed or offered already.
void offer_tool(ToolSet& tools, const std::string& name, const nlohmann::ordered_json* schema, const std::string& name_path,
                const std::string& schema_path, bool strict);

// Refuses, under the name of the field that asks for it, to continue a last message that is not the assistant's or ends in calls.
void check_continuation(const nlohmann::ordered_json& messages, std::string_view field);

// Puts tools (the template's list), the choice and the wish into the request. `offered` are all tools of the request. Refuses choices that
// cannot be: a forced call without tools, of a function not offered, or in the middle of a message.
void apply_tools_and_thinking(ChatRequest& request, ToolSet offered, nlohmann::ordered_json tools, ToolChoice choice,
                              const std::string& named, const std::string& choice_path, ThinkingWish wish);

}  // namespace tetrad
