#pragma once
// Builds the code of a grammar from its end to its start: each call emits what matches one thing and then goes on at `next`, and returns
// where that begins. Every call throws GrammarError when a limit of grammar.h is passed.
//
// The prelude comes first in every grammar, and is the same in all: the rules of JSON without a schema, and the text of a call's parameter.
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "grammar/code_points.h"
#include "grammar/grammar.h"

namespace tetrad::grammar {

// How characters are written down.
enum class TextForm {
  kPlain,
  kJson,  // inside a JSON string: quotes, backslashes and control characters escaped, each in one way
};

// White space between the parts of JSON text: none, one space, or a line break and up to this much indentation.
inline constexpr std::uint32_t kMaxIndentation = 64;
// Digits of a number before the point, and after it, where nothing else bounds them.
inline constexpr int kMaxDigits = 18;

class Builder {
 public:
  Builder();

  Pc emit(Instruction instruction);
  Pc reserve() { return emit({}); }  // for what leads back to itself: patched later
  void patch(Pc pc, Instruction instruction) { grammar_.code[static_cast<std::size_t>(pc)] = instruction; }

  Pc nowhere() const { return kFailPc; }
  Pc end() const { return kEndPc; }  // of a rule
  Pc range(unsigned low, unsigned high, Pc next);
  Pc byte(char c, Pc next) { return range(static_cast<unsigned char>(c), static_cast<unsigned char>(c), next); }
  Pc set(const ByteSet& bytes, Pc next);
  Pc literal(std::string_view text, Pc next);
  Pc digits(int min, int max, Pc next);  // max -1: kMaxDigits
  Pc symbol(int token_id, Pc next) { return emit({.op = Op::kSymbol, .a = next, .b = token_id}); }
  Pc split(Pc a, Pc b);
  Pc choice(std::span<const Pc> ways);
  Pc choice(std::initializer_list<Pc> ways) { return choice(std::span(ways.begin(), ways.size())); }
  Pc call(int rule, Pc next) { return emit({.op = Op::kCall, .a = next, .b = rule}); }
  Pc text_mark(bool counted) { return emit({.op = Op::kText, .b = counted ? 1 : 0}); }

  // `body` leads to the loop's tick; a loop begins at the push that this returns.
  struct OpenLoop {
    int loop = 0;
    Pc head = 0, tick = 0;
  };
  OpenLoop open_loop(std::uint32_t min, std::uint32_t max);
  Pc close_loop(const OpenLoop& open, Pc body, Pc next);

  // One character of the set; a set that holds all of plain text is marked where `loop_head` says that it leads back there.
  Pc characters(const CodePoints& points, TextForm form, Pc next);
  Pc text(std::string_view utf8, TextForm form, Pc next);  // valid UTF-8
  // One of several texts, valid UTF-8; common beginnings are shared.
  Pc one_of(std::vector<std::string> texts, TextForm form, Pc next);

  Pc space_or_break(Pc next);  // after { [ and , and before } and ]
  Pc space(Pc next);           // after :
  Pc json_character(Pc next);  // any one of a JSON string, however it is written
  Pc json_string(std::uint32_t min, std::uint32_t max, Pc next);
  // The text of a parameter of a call, with the tag that ends it (grammar/tool_calls.h).
  Pc parameter_text(std::uint32_t min, std::uint32_t max, Pc next);

  int add_rule(bool nests);
  void define(int rule, Pc start) { grammar_.rules[static_cast<std::size_t>(rule)].start = start; }
  // Of the prelude.
  int any_value() const { return any_value_; }
  int any_object() const { return any_object_; }
  int any_array() const { return any_array_; }
  int any_string() const { return any_string_; }
  int any_number() const { return any_number_; }
  int any_integer() const { return any_integer_; }
  int any_parameter_text() const { return any_parameter_text_; }

  std::size_t size() const { return grammar_.code.size(); }
  // Throws GrammarError if no text matches, or if a rule begins with itself.
  GrammarPtr finish(Pc start);

 private:
  void build_prelude();
  Pc text_loop_to_tag(Pc exit, const OpenLoop* counted);

  Grammar grammar_;
  std::unordered_map<std::uint64_t, Pc> ranges_;
  int any_value_ = 0, any_object_ = 0, any_array_ = 0, any_string_ = 0, any_number_ = 0, any_integer_ = 0, any_parameter_text_ = 0;
};

// The characters of plain text (vocabulary.h).
const CodePoints& plain_text();

}  // namespace tetrad::grammar
