#pragma once
// Reads a text by a grammar, byte by byte, and says what it has come to. A copy goes on by itself.
#include <memory>
#include <string_view>

#include "grammar/configurations.h"

namespace tetrad::grammar {

class Matcher {
 public:
  explicit Matcher(GrammarPtr grammar);

  // Each false leaves the matcher as it was: the text does not go on like that. Throw GrammarError where the text is too ambiguous.
  bool accept(std::string_view bytes);
  bool accept_symbol(int token_id);  // an added token

  bool may_end() const;   // the text is complete
  bool must_end() const;  // and nothing can follow

  const Grammar& grammar() const { return *grammar_; }
  const GrammarPtr& grammar_ptr() const { return grammar_; }
  const Stacks& stacks() const { return stacks_; }
  const ConfigurationSet& configurations() const { return set_; }

 private:
  static constexpr std::size_t kManyStacks = 4096;
  void forget_old_stacks();

  GrammarPtr grammar_;
  Stacks stacks_;
  ConfigurationSet set_;
  std::size_t forget_at_ = kManyStacks;
};

// Copies what configurations stand on from one to another, so that what is not in use is left behind.
ConfigurationSet move_to(const ConfigurationSet& set, const Stacks& from, Stacks& to);

}  // namespace tetrad::grammar
