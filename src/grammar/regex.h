#pragma once
// Regular expressions as JSON Schema and clients write them: a part of ECMAScript's, with the u flag, of which everything is a regular
// language. docs/structured-output.md lists what is understood; the rest is refused by name.
#include <cstdint>
#include <string_view>
#include <vector>

#include "grammar/builder.h"

namespace tetrad::grammar {

inline constexpr std::size_t kMaxRegexBytes = 16384;
inline constexpr int kMaxRegexNesting = 64;

struct RegexUse {
  TextForm form = TextForm::kPlain;
  bool search = false;  // matches anywhere in the text, but for ^ and $; else the whole of it
  // Of the text, in code points. Refused for expressions of which this cannot be told exactly.
  std::uint32_t min_length = 0, max_length = kUnbounded;
  bool without_tags = false;  // sets of several characters have no "<": the text stands between tags
};

class Regex {
 public:
  // Throws GrammarError with the byte where it is not understood.
  static Regex parse(std::string_view pattern);

  Pc emit(Builder& builder, const RegexUse& use, Pc next) const;

 private:
  friend class RegexParser;
  friend class RegexEmitter;

  enum class Kind : std::uint8_t { kSet, kSequence, kChoice, kRepeat, kStart, kEnd };
  struct Node {
    Kind kind = Kind::kSequence;
    std::vector<int> children = {};
    CodePoints points = {};
    std::uint32_t min = 0, max = 0;  // of kRepeat
  };
  // Code points that a node can match, at least and at most; kUnbounded stands for any number.
  struct Lengths {
    std::uint32_t min = 0, max = 0;
  };

  const Node& node(int id) const { return nodes_[static_cast<std::size_t>(id)]; }

  std::vector<Node> nodes_;
  std::vector<Lengths> lengths_;  // by node
  int root_ = 0;
};

}  // namespace tetrad::grammar
