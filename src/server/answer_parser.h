#pragma once
// From the raw text of an answer to reasoning, content and tool calls, as the text arrives. The concatenated result depends on the text
// alone, not on where it was cut; text is held back only while it may still belong to a tag.
//
// Form of an answer:  reasoning </think> content <tool_call> <function=NAME> <parameter=KEY> VALUE </parameter> ... </function>
// </tool_call>
//   Reasoning ends at the first </think>; tool calls inside it are not calls. Without a </think> all of the answer is reasoning.
//   <think> at the start of the content or of a line opens reasoning again; a stray </think> there is dropped. Elsewhere they are content.
//   A call starts at <function=NAME> for an offered NAME, with <tool_call> before it or not. Everything else that looks like one is
//   content, character by character: a quoted tag, a function that is not offered. A value is ended by </parameter> when what follows is
//   the next parameter or the end of the function, so a value may hold that tag. One line break after the opening tag and one before the
//   closing tag belong to the form, not to the value. Arguments become JSON by the function's schema (tool_set.h). Strings are passed on as
//   they arrive, the rest when the value is complete. White space next to tags is not content, up to kMaxTagSpace characters of it. What
//   stands between parameters comes as content after the call.
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "server/tool_set.h"

namespace tetrad {

inline constexpr std::size_t kMaxTagSpace = 64;

struct ReasoningDelta {
  std::string text;
};
struct ContentDelta {
  std::string text;
};
struct ToolCallBegin {
  int index = 0;  // of the answer's calls, from 0
  std::string id;
  std::string name;
};
struct ToolCallDelta {
  int index = 0;
  std::string arguments;  // of one call they concatenate to a JSON object, if it ends complete
};
struct ToolCallEnd {
  int index = 0;
  bool complete = false;  // false: the answer ended inside the call
};
using AnswerEvent = std::variant<ReasoningDelta, ContentDelta, ToolCallBegin, ToolCallDelta, ToolCallEnd>;

struct AnswerForm {
  bool starts_in_reasoning = false;      // prompt_opens_reasoning()
  const ToolSet* tools = nullptr;        // null or empty: nothing is a call; outlives the parser
  int max_calls = 0;                     // 0: any number; what comes after the last is dropped
  std::function<std::string()> make_id;  // of a call; must be set where tools are
};

class AnswerParser {
 public:
  explicit AnswerParser(AnswerForm form);

  std::vector<AnswerEvent> feed(std::string_view text);
  // No more text comes. ended_by_model: with its stop token, so that a call whose parameters are all closed counts as complete.
  std::vector<AnswerEvent> finish(bool ended_by_model);

  bool in_reasoning() const;
  bool enough() const;  // max_calls are complete: the rest of the answer has no use
  int complete_calls() const;
  bool has_incomplete_call() const;  // only after finish()

 private:
  enum class State { kReasoning, kContent, kUnknownCall, kBetweenParameters, kValue, kAfterCall, kEnough };
  enum class Step { kAgain, kNeedMore };

  std::vector<AnswerEvent> run(bool last);
  Step step(bool last);

  AnswerForm form_;
  State state_;
  std::string buffer_;
};

}  // namespace tetrad
