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
// An answer that a grammar binds (ContentRule) has content of another making: from where the grammar began it is text that must arrive as
// it was written, whatever it looks like. A </think> in the reasoning that the grammar did not take for its end is reasoning.
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "server/tool_set.h"

namespace tetrad {

inline constexpr std::string_view kThink = "<think>", kEndThink = "</think>";
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

enum class ContentRule {
  kFree,             // as above
  kVerbatim,         // text of a form
  kVerbatimOrCalls,  // the same, or calls and nothing else: these begin with "<", with which no JSON begins
};

struct AnswerForm {
  bool starts_in_reasoning = false;      // prompt_opens_reasoning()
  const ToolSet* tools = nullptr;        // null or empty: nothing is a call; outlives the parser
  int max_calls = 0;                     // 0: any number; what comes after the last is dropped
  std::function<std::string()> make_id;  // of a call; must be set where tools are
  ContentRule content = ContentRule::kFree;
  bool content_is_told = false;  // where the reasoning that the prompt opened ends is said by content_begins_at(), not by a tag
};

class AnswerParser {
 public:
  explicit AnswerParser(AnswerForm form);

  std::vector<AnswerEvent> feed(std::string_view text);
  // With content_is_told: the content's first byte, counted from the start of the answer. Comes before feed() has had text from there on.
  void content_begins_at(std::size_t offset) { content_at_ = offset; }
  // No more text comes. ended_by_model: with its stop token, so that a call whose parameters are all closed counts as complete.
  std::vector<AnswerEvent> finish(bool ended_by_model);

  bool in_reasoning() const { return state_ == State::kReasoning; }  // what is decided so far
  bool enough() const { return state_ == State::kEnough; }           // max_calls are complete: the rest of the answer has no use
  int complete_calls() const { return complete_calls_; }
  bool has_incomplete_call() const { return incomplete_call_; }  // only after finish()

 private:
  enum class State { kReasoning, kContent, kVerbatim, kVerbatimOrCalls, kForeignCall, kBetweenParameters, kValue, kEnough };

  void run(bool last);
  void decide(bool last);
  void begin_content();
  // One decision about the text at cursor_; false if it takes more text (never when `last`).
  bool step(bool last);
  bool step_text(bool last);
  bool step_tag(std::size_t space, bool last);
  bool step_foreign_call(bool last);
  bool step_between_parameters(bool last);
  bool step_value(bool last);

  std::string_view rest() const { return std::string_view(buffer_).substr(cursor_); }
  bool in_call() const { return state_ == State::kBetweenParameters || state_ == State::kValue; }
  void pass_space(std::size_t length, bool at_end);
  void pass_text(std::size_t length);
  void emit_text(std::string_view text);
  void emit_arguments(std::string_view text);
  void begin_part(State state);
  void begin_call(std::string_view name);
  void begin_value(std::string_view key);
  void add_to_value(std::string_view text);
  void end_value();
  void end_call(bool complete);

  AnswerForm form_;
  State state_;
  std::string buffer_;  // undecided from cursor_ on
  std::size_t cursor_ = 0;
  std::size_t decided_ = 0;                // bytes of the answer before buffer_
  bool awaits_content_;                    // reasoning that ends where content_at_ says
  std::optional<std::size_t> content_at_;  // once it is known, until it is reached
  std::vector<AnswerEvent> events_;

  bool after_tag_ = true;    // nothing but white space since the last tag
  bool line_start_ = true;   // nothing but white space since the last line break
  bool after_call_ = false;  // nothing but white space since the last call

  int num_calls_ = 0, complete_calls_ = 0;
  bool incomplete_call_ = false;
  const OfferedTool* tool_ = nullptr;  // of the open call
  bool has_parameters_ = false;
  std::string junk_;           // between parameters
  std::string junk_space_;     // after it, if more comes
  bool value_begins_ = false;  // a line break here belongs to the form
  JsonTypes value_types_ = kStringType;
  std::string value_;  // that is passed on only when complete
};

}  // namespace tetrad
