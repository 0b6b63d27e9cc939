// Any text as an answer: whole and cut at places the input chooses, with the same outcome; arguments of complete calls are JSON.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "server/answer_parser.h"
#include "text/unicode.h"

namespace {

using namespace tetrad;

const ToolSet& tools() {
  static const ToolSet set = [] {
    ToolSet offered;
    const auto schema = nlohmann::ordered_json::parse(
        R"({"properties": {"s": {"type": "string"}, "i": {"type": "integer"}, "a": {"type": ["array", "null"]}, "x": {}}})");
    offered.add(OfferedTool::from_schema("f", schema, "f"));
    offered.add(OfferedTool::from_schema("fg", nullptr, "fg"));
    return offered;
  }();
  return set;
}

struct Outcome {
  std::string reasoning, content, calls;
  std::vector<std::string> arguments;
  std::vector<bool> complete;
  friend bool operator==(const Outcome&, const Outcome&) = default;

  void add(const std::vector<AnswerEvent>& events) {
    for (const AnswerEvent& event : events) {
      if (const auto* r = std::get_if<ReasoningDelta>(&event)) reasoning += r->text;
      if (const auto* c = std::get_if<ContentDelta>(&event)) content += c->text;
      if (const auto* begin = std::get_if<ToolCallBegin>(&event)) {
        calls += begin->name + ' ';
        arguments.emplace_back();
      }
      if (const auto* delta = std::get_if<ToolCallDelta>(&event)) arguments.at(static_cast<std::size_t>(delta->index)) += delta->arguments;
      if (const auto* end = std::get_if<ToolCallEnd>(&event)) complete.push_back(end->complete);
    }
  }
};

void require(bool condition) {
  if (!condition) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  AnswerForm form{(data[0] & 1) != 0, (data[0] & 2) != 0 ? nullptr : &tools(), (data[0] >> 2) & 1, [] { return std::string("id"); }};
  form.content = static_cast<ContentRule>((data[0] >> 4) % 3);
  form.content_is_told = (data[0] & 64) != 0;
  const bool ended_by_model = (data[0] & 8) != 0;
  const std::size_t piece = 1 + data[1] % 32;
  const std::string_view answer(reinterpret_cast<const char*>(data) + 2, size - 2);
  // Where the grammar began: behind one of the tags and its separator, or nowhere.
  std::size_t content_at = 0;
  for (int tag = data[1] >> 6; tag >= 0 && content_at != std::string_view::npos; --tag) {
    content_at = answer.find(kEndThink, content_at);
    if (content_at != std::string_view::npos) content_at += kEndThink.size();
  }
  for (int line = 0; line < 2 && content_at < answer.size() && answer[content_at] == '\n'; ++line) ++content_at;

  Outcome whole, cut;
  AnswerParser one(form), many(form);
  if (content_at != std::string_view::npos) one.content_begins_at(content_at);
  whole.add(one.feed(answer));
  whole.add(one.finish(ended_by_model));
  for (std::size_t at = 0; at < answer.size(); at += piece) {
    if (content_at != std::string_view::npos && at + piece >= content_at) many.content_begins_at(content_at);
    cut.add(many.feed(answer.substr(at, piece)));
  }
  cut.add(many.finish(ended_by_model));
  require(whole == cut);
  require(whole.complete.size() == whole.arguments.size());
  if (text::find_invalid_utf8(answer) != std::string_view::npos) return 0;  // the engine never makes such text
  for (std::size_t i = 0; i < whole.complete.size(); ++i)
    require(!whole.complete[i] || !nlohmann::json::parse(whole.arguments[i], nullptr, false).is_discarded());
  return 0;
}
