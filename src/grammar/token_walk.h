#pragma once
// Follows many tokens through a grammar at once: what was found for a byte after one beginning is remembered for the others.
#include <cstdint>
#include <deque>
#include <span>
#include <unordered_map>
#include <vector>

#include "grammar/configurations.h"
#include "grammar/vocabulary.h"

namespace tetrad::grammar {

class TokenWalk {
 public:
  // Stands at `set` over `stacks`, which the walk adds to.
  TokenWalk(const Grammar& grammar, Stacks stacks, ConfigurationSet set);

  // Of the tokens of a tree: those that may come, and those whose bytes go on after a return to kOutside and may not come otherwise; both
  // in order of their bytes.
  void walk(const Vocabulary::Tree& tree, std::vector<int>& allowed, std::vector<int>& open);
  // Of these tokens, in order of their bytes, those that may come.
  void check(const Vocabulary& vocabulary, std::span<const int> ids, std::vector<int>& allowed);

 private:
  // A state times two, plus 1 if a rule has returned to kOutside on the way there.
  using Target = std::int32_t;
  static constexpr Target kUnknown = -1;
  static constexpr std::int32_t kDead = 0, kStart = 1;
  static std::int32_t state_of(Target target) { return target >> 1; }
  static bool leaves(Target target) { return (target & 1) != 0; }

  Target next(std::int32_t state, std::uint8_t byte);
  std::int32_t state_for(const ConfigurationSet& set);

  Stepper stepper_;
  Stacks stacks_;
  std::deque<ConfigurationSet> sets_;  // by state
  std::vector<Target> targets_;        // [state][byte]
  std::unordered_multimap<std::size_t, std::int32_t> by_hash_;
  ConfigurationSet scratch_;
};

}  // namespace tetrad::grammar
