#include "grammar/matcher.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

namespace tetrad::grammar {
ConfigurationSet move_to(const ConfigurationSet& set, const Stacks& from, Stacks& to) {
  std::unordered_map<StackId, StackId> moved = {{kBottom, kBottom}, {kOutside, kOutside}};
  ConfigurationSet result;
  std::vector<StackId> path;
  for (const Configuration& at : set) {
    path.clear();
    for (StackId id = at.stack; !moved.contains(id); id = from[id].below) path.push_back(id);
    for (; !path.empty(); path.pop_back()) {
      const Stacks::Frame& frame = from[path.back()];
      moved[path.back()] = to.push(frame.top, frame.count, moved.at(frame.below), frame.nesting);
    }
    result.push_back({at.pc, moved.at(at.stack)});
  }
  std::sort(result.begin(), result.end());
  return result;
}

Matcher::Matcher(GrammarPtr grammar) : grammar_(std::move(grammar)) {
  Stepper stepper(*grammar_);
  stepper.start(grammar_->start, stacks_, set_);
}

bool Matcher::accept(std::string_view bytes) {
  Stepper stepper(*grammar_);
  ConfigurationSet at = set_, next;
  for (const char c : bytes) {
    stepper.by_byte(at, static_cast<std::uint8_t>(c), stacks_, next);
    if (next.empty()) return false;
    if (stepper.steps() > kMaxMaskSteps)
      fail<GrammarError>("the grammar is too ambiguous: a token takes more than {} steps", kMaxMaskSteps);
    at.swap(next);
  }
  set_ = std::move(at);
  forget_old_stacks();
  return true;
}

bool Matcher::accept_symbol(int token_id) {
  Stepper stepper(*grammar_);
  ConfigurationSet next;
  stepper.by_symbol(set_, token_id, stacks_, next);
  if (next.empty()) return false;
  set_ = std::move(next);
  forget_old_stacks();
  return true;
}

bool Matcher::may_end() const {
  return std::any_of(set_.begin(), set_.end(), [&](const Configuration& at) { return at.stack == kBottom && at.pc == kEndPc; });
}

bool Matcher::must_end() const { return set_.size() == 1 && may_end(); }

void Matcher::forget_old_stacks() {
  if (stacks_.size() < forget_at_) return;
  Stacks kept;
  set_ = move_to(set_, stacks_, kept);
  stacks_ = std::move(kept);
  forget_at_ = std::max(kManyStacks, 2 * stacks_.size());
}

}  // namespace tetrad::grammar
