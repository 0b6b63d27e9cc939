#include "grammar/token_walk.h"

#include <algorithm>
#include <utility>

namespace tetrad::grammar {

TokenWalk::TokenWalk(const Grammar& grammar, Stacks stacks, ConfigurationSet set) : stepper_(grammar), stacks_(std::move(stacks)) {
  state_for({});
  state_for(set);
}

std::int32_t TokenWalk::state_for(const ConfigurationSet& set) {
  std::size_t hash = set.size();
  for (const Configuration& at : set)
    hash = hash * 0x100000001B3ULL ^ (static_cast<std::size_t>(at.pc) * 0x9E3779B97F4A7C15ULL + static_cast<std::size_t>(at.stack));
  const auto [first, last] = by_hash_.equal_range(hash);
  for (auto it = first; it != last; ++it)
    if (sets_[static_cast<std::size_t>(it->second)] == set) return it->second;
  const auto state = static_cast<std::int32_t>(sets_.size());
  sets_.push_back(set);
  targets_.resize(targets_.size() + 256, kUnknown);
  by_hash_.emplace(hash, state);
  return state;
}

TokenWalk::Target TokenWalk::next(std::int32_t state, std::uint8_t byte) {
  const std::size_t at = static_cast<std::size_t>(state) * 256 + byte;
  if (targets_[at] != kUnknown) return targets_[at];
  const bool left = stepper_.by_byte(sets_[static_cast<std::size_t>(state)], byte, stacks_, scratch_);
  if (stepper_.steps() > kMaxMaskSteps || sets_.size() > kMaxMaskSteps / 256)
    fail<GrammarError>("the grammar is too ambiguous: the next token cannot be chosen in {} steps", kMaxMaskSteps);
  const Target target = state_for(scratch_) * 2 + (left ? 1 : 0);
  targets_[at] = target;
  return target;
}

void TokenWalk::walk(const Vocabulary::Tree& tree, std::vector<int>& allowed, std::vector<int>& open) {
  std::vector<std::pair<std::int32_t, bool>> path = {{kStart, false}};  // by depth: the state, and whether something was left on the way
  const std::size_t end = tree.nodes.size() - 1;
  for (std::size_t i = 0; i < end;) {
    const Vocabulary::Node& node = tree.nodes[i];
    const auto [from, left_before] = path[node.depth - 1u];
    const Target target = next(from, node.byte);
    const bool dead = state_of(target) == kDead;
    const bool left = left_before || leaves(target);
    const std::uint32_t first = node.first_token, after = tree.nodes[i + 1].first_token;
    if (first != after && (!dead || left)) {
      // A rule that returns with a token's last byte leaves a place that can go on.
      std::vector<int>& to = !dead || leaves(target) ? allowed : open;
      to.insert(to.end(), tree.ids.begin() + first, tree.ids.begin() + after);
    }
    if (!dead) {
      if (path.size() <= node.depth) path.resize(node.depth + 1u);
      path[node.depth] = {state_of(target), left};
      ++i;
      continue;
    }
    if (left) open.insert(open.end(), tree.ids.begin() + after, tree.ids.begin() + tree.nodes[node.end].first_token);
    i = node.end;
  }
}

void TokenWalk::check(const Vocabulary& vocabulary, std::span<const int> ids, std::vector<int>& allowed) {
  std::vector<std::int32_t> path = {kStart};  // by depth, of the token before, as far as it went
  std::string_view before;
  for (const int id : ids) {
    const std::string_view token = vocabulary.token_bytes(id);
    const std::size_t most = std::min({token.size(), before.size(), path.size() - 1});
    std::size_t depth = 0;
    while (depth < most && token[depth] == before[depth]) ++depth;
    path.resize(depth + 1);
    before = token;
    while (depth < token.size() && path.back() != kDead)
      path.push_back(state_of(next(path.back(), static_cast<std::uint8_t>(token[depth++]))));
    if (path.back() != kDead) allowed.push_back(id);
  }
}

}  // namespace tetrad::grammar
