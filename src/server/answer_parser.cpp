#include "server/answer_parser.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace tetrad {
namespace {

constexpr std::string_view kCall = "<tool_call>", kEndCall = "</tool_call>";
constexpr std::string_view kFunction = "<function=", kEndFunction = "</function>";
constexpr std::string_view kParameter = "<parameter=", kEndParameter = "</parameter>";
constexpr std::size_t kMaxParameterName = 256;

bool is_space(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

std::size_t count_space(std::string_view text, std::size_t most = std::string_view::npos) {
  std::size_t n = 0;
  while (n < text.size() && n < most && is_space(text[n])) ++n;
  return n;
}

// What text that may not be complete begins with. Ordered, so that the best of several is their maximum.
enum class Match { kNo, kPartial, kYes };

Match match(std::string_view text, std::string_view tag, bool last) {
  if (text.starts_with(tag)) return Match::kYes;
  return !last && tag.starts_with(text) ? Match::kPartial : Match::kNo;
}

Match match_any(std::string_view text, std::initializer_list<std::string_view> tags, bool last) {
  Match best = Match::kNo;
  for (const std::string_view tag : tags) best = std::max(best, match(text, tag, last));
  return best;
}

// `tag`, white space, and one of `followers` or the end of the answer.
Match match_followed(std::string_view text, std::string_view tag, std::initializer_list<std::string_view> followers, bool last) {
  const Match first = match(text, tag, last);
  if (first != Match::kYes) return first;
  text.remove_prefix(tag.size());
  const std::size_t space = count_space(text, kMaxTagSpace + 1);
  if (space > kMaxTagSpace) return Match::kNo;
  text.remove_prefix(space);
  if (!last) return match_any(text, followers, false);
  const bool cut_short =
      std::any_of(followers.begin(), followers.end(), [&](std::string_view follower) { return follower.starts_with(text); });
  return cut_short ? Match::kYes : match_any(text, followers, true);
}

// "<function=NAME>", and which function it names.
struct Header {
  Match match = Match::kNo;
  std::size_t length = 0;
  std::string_view name;
};

Header match_header(std::string_view text, const ToolSet& tools, bool last) {
  Header header;
  header.match = match(text, kFunction, last);
  if (header.match != Match::kYes) return header;
  const std::string_view named = text.substr(kFunction.size(), kMaxToolName + 1);
  const std::size_t end = named.find('>');
  header.name = named.substr(0, end);
  if (end != std::string_view::npos)
    header.match = tools.find(header.name) != nullptr ? Match::kYes : Match::kNo;
  else
    header.match = !last && tools.has_name_starting(header.name) ? Match::kPartial : Match::kNo;
  header.length = kFunction.size() + header.name.size() + 1;
  return header;
}

}  // namespace

AnswerParser::AnswerParser(AnswerForm form)
    : form_(std::move(form)), state_(State::kReasoning), awaits_content_(form_.starts_in_reasoning && form_.content_is_told) {
  if (form_.tools != nullptr && form_.tools->empty()) form_.tools = nullptr;
  TETRAD_CHECK(form_.tools == nullptr || form_.make_id, "tools without a maker of ids");
  if (!form_.starts_in_reasoning) begin_content();
}

std::vector<AnswerEvent> AnswerParser::feed(std::string_view text) {
  buffer_ += text;
  run(false);
  return std::exchange(events_, {});
}

std::vector<AnswerEvent> AnswerParser::finish(bool ended_by_model) {
  run(true);
  if (in_call()) {
    const bool complete = ended_by_model && state_ == State::kBetweenParameters;
    if (state_ == State::kValue && value_types_ != kStringType) emit_arguments(value_);  // cut as it is
    end_call(complete);
  }
  return std::exchange(events_, {});
}

void AnswerParser::run(bool last) {
  if (awaits_content_ && content_at_) {
    const std::size_t ahead = *content_at_ > decided_ ? *content_at_ - decided_ : 0;
    if (buffer_.size() < ahead && !last) return decide(false);
    std::string content = buffer_.size() > ahead ? buffer_.substr(ahead) : std::string();
    buffer_.resize(std::min(buffer_.size(), ahead));
    decide(true);
    begin_content();
    buffer_ = std::move(content);
  }
  decide(last);
}

void AnswerParser::decide(bool last) {
  while (cursor_ < buffer_.size() && step(last)) {
  }
  decided_ += cursor_;
  buffer_.erase(0, cursor_);
  cursor_ = 0;
}

void AnswerParser::begin_content() {
  awaits_content_ = false;
  switch (form_.content) {
    case ContentRule::kFree: return begin_part(State::kContent);
    case ContentRule::kVerbatim: return begin_part(State::kVerbatim);
    case ContentRule::kVerbatimOrCalls: return begin_part(State::kVerbatimOrCalls);
  }
}

bool AnswerParser::step(bool last) {
  switch (state_) {
    case State::kReasoning:
    case State::kContent: return step_text(last);
    case State::kVerbatim: pass_text(rest().size()); return true;
    case State::kVerbatimOrCalls: state_ = rest()[0] == '<' ? State::kContent : State::kVerbatim; return true;
    case State::kForeignCall: return step_foreign_call(last);
    case State::kBetweenParameters: return step_between_parameters(last);
    case State::kValue: return step_value(last);
    case State::kEnough: cursor_ = buffer_.size(); return true;
  }
  return true;
}

// Reasoning and content: white space, then a tag or a word. White space waits for what follows it, in stretches of bounded length.
bool AnswerParser::step_text(bool last) {
  const std::size_t space = count_space(rest(), kMaxTagSpace);
  if (space == kMaxTagSpace) {
    pass_space(space, false);
    return true;
  }
  if (space == rest().size()) {
    if (last) pass_space(space, true);
    return last;
  }
  if (rest()[space] == '<') return step_tag(space, last);
  pass_space(space, false);
  std::size_t word = 1;
  while (word < rest().size() && !is_space(rest()[word]) && rest()[word] != '<') ++word;
  pass_text(word);
  return true;
}

// At "<" behind `space` white space.
bool AnswerParser::step_tag(std::size_t space, bool last) {
  const std::string_view tag = rest().substr(space);
  const bool own_line = after_tag_ || line_start_ || rest().substr(0, space).find('\n') != std::string_view::npos;
  const bool reasoning = state_ == State::kReasoning;
  Match undecided = Match::kNo;

  if (reasoning ? after_tag_ : own_line) {
    const Match opens = match(tag, kThink, last);
    if (opens == Match::kYes) {
      cursor_ += space + kThink.size();
      begin_part(State::kReasoning);
      return true;
    }
    undecided = std::max(undecided, opens);
  }
  if (reasoning || own_line) {
    Match closes = match(tag, kEndThink, last);
    std::size_t length = kEndThink.size();
    if (closes == Match::kYes && awaits_content_) {
      // The end is what only the separator follows, up to the place that is told.
      const std::size_t separator = count_space(tag.substr(length), kMaxTagSpace + 1);
      length += separator;
      if (length < tag.size() || separator > kMaxTagSpace)
        closes = Match::kNo;
      else if (!last)
        closes = Match::kPartial;
    }
    if (closes == Match::kYes) {
      cursor_ += space + length;
      begin_part(State::kContent);
      return true;
    }
    undecided = std::max(undecided, closes);
  }
  if (!reasoning && form_.tools != nullptr) {
    const Match wrapped = match(tag, kCall, last);
    const std::size_t wrapper = wrapped == Match::kYes ? kCall.size() : 0;
    const std::size_t inner = wrapper > 0 ? count_space(tag.substr(wrapper), kMaxTagSpace + 1) : 0;
    const Header header = inner <= kMaxTagSpace ? match_header(tag.substr(wrapper + inner), *form_.tools, last) : Header{};
    if (header.match == Match::kYes) {
      const std::string name(header.name);
      cursor_ += space + wrapper + inner + header.length;
      begin_call(name);
      return true;
    }
    // The call of a function that was not offered stays text to its end, whatever its arguments look like.
    if (wrapper > 0 && inner <= kMaxTagSpace && header.match == Match::kNo && tag.substr(wrapper + inner).starts_with(kFunction)) {
      pass_space(space, false);
      pass_text(wrapper + inner + kFunction.size());
      state_ = State::kForeignCall;
      return true;
    }
    undecided = std::max({undecided, wrapped == Match::kPartial ? wrapped : Match::kNo, header.match});
    if (after_call_) {
      const Match closes = match(tag, kEndCall, last);
      if (closes == Match::kYes) {
        cursor_ += space + kEndCall.size();
        return true;
      }
      undecided = std::max(undecided, closes);
    }
  }
  if (undecided == Match::kPartial) return false;
  pass_space(space, false);
  pass_text(1);
  return true;
}

bool AnswerParser::step_foreign_call(bool last) {
  const std::size_t plain = std::min(rest().find('<'), rest().size());
  if (plain > 0) {
    pass_text(plain);
    return true;
  }
  const Match closes = match(rest(), kEndCall, last), opens = match(rest(), kCall, last);
  if (closes == Match::kPartial || opens == Match::kPartial) return false;
  if (opens == Match::kYes) {
    state_ = State::kContent;
  } else if (closes == Match::kYes) {
    pass_text(kEndCall.size());
    state_ = State::kContent;
  } else {
    pass_text(1);
  }
  return true;
}

bool AnswerParser::step_between_parameters(bool last) {
  if (const std::size_t space = count_space(rest()); space > 0) {
    junk_space_ += rest().substr(0, space);
    cursor_ += space;
    return true;
  }
  const std::string_view tag = rest();
  const Match closes = match_any(tag, {kEndFunction, kEndCall}, last);
  // A call that begins here says that the one before it, though not closed, is over.
  const Match reopens = match_any(tag, {kCall, kFunction}, last);
  if (closes == Match::kYes || reopens == Match::kYes) {
    if (tag.starts_with(kEndFunction)) cursor_ += kEndFunction.size();
    end_call(true);
    return true;
  }
  Match opens = match(tag, kParameter, last);
  if (opens == Match::kYes) {
    const std::string_view named = tag.substr(kParameter.size(), kMaxParameterName + 1);
    const std::size_t end = named.find_first_of(">\n");
    if (end != std::string_view::npos && end > 0 && named[end] == '>') {
      const std::string key(named.substr(0, end));
      cursor_ += kParameter.size() + end + 1;
      begin_value(key);
      return true;
    }
    opens = !last && end == std::string_view::npos && named.size() <= kMaxParameterName ? Match::kPartial : Match::kNo;
  }
  if (std::max({closes, reopens, opens}) == Match::kPartial) return false;
  if (!junk_.empty()) junk_ += junk_space_;
  junk_space_.clear();
  junk_ += tag[0];
  ++cursor_;
  return true;
}

bool AnswerParser::step_value(bool last) {
  if (std::exchange(value_begins_, false) && rest()[0] == '\n') {
    // An empty value may have one line break only, which is then the one before the closing tag.
    ++cursor_;
    return true;
  }
  const std::size_t plain = std::min(rest().find_first_of("\n<"), rest().size());
  if (plain > 0) {
    add_to_value(rest().substr(0, plain));
    cursor_ += plain;
    return true;
  }
  const std::size_t line_break = rest()[0] == '\n' ? 1 : 0;
  const std::string_view tag = rest().substr(line_break);
  if (tag.empty() && !last) return false;
  const Match closes = match_followed(tag, kEndParameter, {kParameter, kEndFunction, kEndCall}, last);
  const Match function_closes = match_followed(tag, kEndFunction, {kEndCall}, last);
  if (!tag.empty() && closes == Match::kYes) {
    cursor_ += line_break + kEndParameter.size();
    end_value();
    return true;
  }
  if (!tag.empty() && function_closes == Match::kYes) {  // without its own closing tag
    cursor_ += line_break;
    end_value();
    return true;
  }
  if (closes == Match::kPartial || function_closes == Match::kPartial) return false;
  add_to_value(rest().substr(0, 1));
  ++cursor_;
  return true;
}

void AnswerParser::pass_space(std::size_t length, bool at_end) {
  if (length == 0) return;
  std::string_view space = rest().substr(0, length);
  cursor_ += length;
  if (space.find('\n') != std::string_view::npos) line_start_ = true;
  if (after_tag_) space.remove_prefix(at_end ? length : space.rfind('\n') + 1);  // npos + 1 is 0: indentation stays
  emit_text(space);
}

void AnswerParser::pass_text(std::size_t length) {
  const std::string_view text = rest().substr(0, length);
  cursor_ += length;
  after_tag_ = after_call_ = false;
  const std::size_t line = text.rfind('\n');
  const std::string_view tail = text.substr(line == std::string_view::npos ? 0 : line);
  line_start_ = count_space(tail) == tail.size() && (line_start_ || line != std::string_view::npos);
  emit_text(text);
}

void AnswerParser::emit_text(std::string_view text) {
  if (text.empty()) return;
  if (state_ == State::kReasoning) {
    if (!events_.empty() && std::holds_alternative<ReasoningDelta>(events_.back()))
      std::get<ReasoningDelta>(events_.back()).text += text;
    else
      events_.emplace_back(ReasoningDelta{std::string(text)});
  } else {
    if (!events_.empty() && std::holds_alternative<ContentDelta>(events_.back()))
      std::get<ContentDelta>(events_.back()).text += text;
    else
      events_.emplace_back(ContentDelta{std::string(text)});
  }
}

void AnswerParser::emit_arguments(std::string_view text) {
  if (text.empty()) return;
  if (!events_.empty() && std::holds_alternative<ToolCallDelta>(events_.back()))
    std::get<ToolCallDelta>(events_.back()).arguments += text;
  else
    events_.emplace_back(ToolCallDelta{num_calls_ - 1, std::string(text)});
}

void AnswerParser::begin_part(State state) {
  state_ = state;
  after_tag_ = line_start_ = true;
  after_call_ = false;
}

void AnswerParser::begin_call(std::string_view name) {
  state_ = State::kBetweenParameters;
  tool_ = form_.tools->find(name);
  has_parameters_ = false;
  junk_.clear();
  junk_space_.clear();
  events_.emplace_back(ToolCallBegin{num_calls_, form_.make_id(), std::string(name)});
  ++num_calls_;
}

void AnswerParser::begin_value(std::string_view key) {
  state_ = State::kValue;
  junk_space_.clear();
  value_begins_ = true;
  value_types_ = tool_->types_of(key);
  value_.clear();
  std::string head = std::exchange(has_parameters_, true) ? ", \"" : "{\"";
  append_json_escaped(head, key);
  head += value_types_ == kStringType ? "\": \"" : "\": ";
  emit_arguments(head);
}

void AnswerParser::add_to_value(std::string_view text) {
  if (value_types_ != kStringType) {
    value_ += text;
    return;
  }
  std::string escaped;
  append_json_escaped(escaped, text);
  emit_arguments(escaped);
}

void AnswerParser::end_value() {
  emit_arguments(value_types_ == kStringType ? "\"" : argument_json(value_, value_types_));
  state_ = State::kBetweenParameters;
}

void AnswerParser::end_call(bool complete) {
  if (complete) {
    emit_arguments(has_parameters_ ? "}" : "{}");
    ++complete_calls_;
  } else {
    incomplete_call_ = true;
  }
  events_.emplace_back(ToolCallEnd{num_calls_ - 1, complete});
  begin_part(State::kContent);
  after_call_ = true;
  emit_text(junk_);
  if (form_.max_calls > 0 && complete_calls_ >= form_.max_calls) state_ = State::kEnough;
}

}  // namespace tetrad
