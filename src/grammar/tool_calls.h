#pragma once
// Calls of tools in the form that the model writes and server/answer_parser.h reads:
//   <tool_call> LF <function=NAME> LF { <parameter=KEY> LF TEXT LF </parameter> LF } </function> LF </tool_call>
// Parameters come in the order of the schema; those that are not required may be left out. TEXT is what the parser makes a value of the
// schema from: a string as it is, everything else as JSON.
#include <optional>
#include <string>
#include <vector>

#include "grammar/json_schema.h"

namespace tetrad::grammar {

struct ToolSpec {
  std::string name;
  const Json* schema = nullptr;  // of the arguments; null: nothing is said of them
  bool strict = false;           // false: a parameter whose schema cannot be kept is free
  std::string path;              // of the schema, for messages
};

// The ids of <tool_call> and </tool_call> where the tokenizer has them; else they are text.
struct CallTags {
  std::optional<int> open, close;
};

inline constexpr std::uint32_t kMaxCallsInGrammar = 64;  // of one answer

// One call or several, and nothing else. With `content` an answer of that schema may come instead.
GrammarPtr compile_required_calls(const std::vector<ToolSpec>& tools, const CallTags& tags, bool several, const Json* content = nullptr);
// Any text; but where it opens the function of a strict tool, the call goes on by the tool's schema.
GrammarPtr compile_strict_calls(const std::vector<ToolSpec>& tools, const CallTags& tags);

}  // namespace tetrad::grammar
