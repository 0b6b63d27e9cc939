#include "grammar/configurations.h"

#include <algorithm>
#include <utility>

namespace tetrad::grammar {
namespace {

constexpr std::size_t kFewSlots = 64;

std::uint64_t mixed(std::uint64_t x) {
  x ^= x >> 31;
  x *= 0x9E3779B97F4A7C15ULL;
  return x ^ (x >> 29);
}

}  // namespace

Stacks::Stacks() { clear(); }

void Stacks::clear() {
  frames_.assign(2, {});  // kBottom, kOutside
  table_.assign(kFewSlots, -1);
}

std::size_t Stacks::slot_of(const Frame& frame) const {
  const std::uint64_t key =
      mixed(std::uint64_t{static_cast<std::uint32_t>(frame.top)} << 32 | static_cast<std::uint32_t>(frame.below)) + frame.count;
  std::size_t slot = mixed(key) & (table_.size() - 1);
  while (table_[slot] >= 0) {
    const Frame& other = (*this)[table_[slot]];
    if (other.top == frame.top && other.count == frame.count && other.below == frame.below) break;
    slot = (slot + 1) & (table_.size() - 1);
  }
  return slot;
}

StackId Stacks::push(std::int32_t top, std::uint32_t count, StackId below, std::uint32_t nesting) {
  const Frame frame{top, count, below, nesting};
  const std::size_t slot = slot_of(frame);
  if (table_[slot] >= 0) return table_[slot];
  const auto id = static_cast<StackId>(frames_.size());
  table_[slot] = id;
  frames_.push_back(frame);
  if (frames_.size() * 2 > table_.size()) rehash(table_.size() * 2);
  return id;
}

void Stacks::rehash(std::size_t slots) {
  table_.assign(slots, -1);
  for (std::size_t id = 2; id < frames_.size(); ++id) table_[slot_of(frames_[id])] = static_cast<StackId>(id);
}

void Stepper::start(Pc pc, Stacks& stacks, ConfigurationSet& to) {
  add(pc, kBottom);
  close(stacks, to);
}

bool Stepper::by_byte(std::span<const Configuration> from, std::uint8_t byte, Stacks& stacks, ConfigurationSet& to) {
  steps_ += from.size();
  for (const Configuration& at : from) {
    const Instruction& in = grammar_->code[static_cast<std::size_t>(at.pc)];
    if (in.op == Op::kRange ? byte >= in.low && byte <= in.high
                            : in.op == Op::kSet && contains(grammar_->sets[static_cast<std::size_t>(in.b)], byte))
      add(in.a, at.stack);
  }
  return close(stacks, to);
}

bool Stepper::by_symbol(std::span<const Configuration> from, int token_id, Stacks& stacks, ConfigurationSet& to) {
  steps_ += from.size();
  for (const Configuration& at : from) {
    const Instruction& in = grammar_->code[static_cast<std::size_t>(at.pc)];
    if (in.op == Op::kAnySymbol || (in.op == Op::kSymbol && in.b == token_id)) add(in.a, at.stack);
  }
  return close(stacks, to);
}

// Puts a configuration on the work list, once in a step.
void Stepper::add(Pc pc, StackId stack) {
  if (pc == kFailPc) return;
  if (num_seen_ * 2 >= seen_.size()) {
    const std::size_t slots = std::max(kFewSlots, seen_.size() * 2);
    const std::vector<std::uint64_t> before = std::exchange(seen_, std::vector<std::uint64_t>(slots));
    const std::vector<std::uint32_t> before_in = std::exchange(seen_in_, std::vector<std::uint32_t>(slots));
    const std::uint32_t round = std::exchange(round_, 1);
    for (std::size_t i = 0; i < before.size(); ++i)
      if (before_in[i] == round) mark_seen(before[i]);
  }
  if (!mark_seen(std::uint64_t{static_cast<std::uint32_t>(pc)} << 32 | static_cast<std::uint32_t>(stack))) return;
  ++num_seen_;
  work_.push_back({pc, stack});
}

bool Stepper::mark_seen(std::uint64_t key) {
  std::size_t slot = mixed(key) & (seen_.size() - 1);
  for (; seen_in_[slot] == round_; slot = (slot + 1) & (seen_.size() - 1))
    if (seen_[slot] == key) return false;
  seen_[slot] = key;
  seen_in_[slot] = round_;
  return true;
}

bool Stepper::close(Stacks& stacks, ConfigurationSet& to) {
  to.clear();
  bool left = false;
  std::size_t followed = 0;
  while (!work_.empty()) {
    const Configuration at = work_.back();
    work_.pop_back();
    // Splits and calls come between configurations that read: some times as many are followed.
    if (++followed > 8 * kMaxConfigurations || to.size() > kMaxConfigurations) {
      work_.clear();
      fail<GrammarError>("the grammar is too ambiguous: more than {} ways to read the answer so far", kMaxConfigurations);
    }
    left = follow(at, stacks, to) || left;
  }
  steps_ += followed;
  std::sort(to.begin(), to.end());
  to.erase(std::unique(to.begin(), to.end()), to.end());
  num_seen_ = 0;
  if (++round_ == 0) {
    std::fill(seen_in_.begin(), seen_in_.end(), 0);
    round_ = 1;
  }
  return left;
}

// Goes on from a configuration without reading; those that read are added to the set. True if a rule returned to what is not known.
bool Stepper::follow(Configuration at, Stacks& stacks, ConfigurationSet& to) {
  const Instruction& in = grammar_->code[static_cast<std::size_t>(at.pc)];
  const Stacks::Frame frame = stacks[at.stack];
  switch (in.op) {
    case Op::kRange:
    case Op::kSet:
    case Op::kSymbol:
    case Op::kAnySymbol:
    case Op::kText: to.push_back(at); return false;
    case Op::kSplit:
      add(in.a, at.stack);
      add(in.b, at.stack);
      return false;
    case Op::kCall: {
      const Rule& rule = grammar_->rules[static_cast<std::size_t>(in.b)];
      const std::uint32_t nesting = frame.nesting + (rule.nests ? 1 : 0);
      if (nesting <= kMaxNesting) add(rule.start, stacks.push(in.a, 0, at.stack, nesting));
      return false;
    }
    case Op::kReturn:
      if (at.stack == kOutside) return true;
      if (at.stack == kBottom)
        to.push_back(at);
      else
        add(frame.top, frame.below);
      return false;
    case Op::kPush: add(in.a, stacks.push(-1 - in.b, 0, at.stack, frame.nesting)); return false;
    case Op::kLoop: {
      const Loop& loop = grammar_->loops[frame.loop()];
      if (frame.count < loop.max) add(in.a, at.stack);
      if (frame.count >= loop.min) add(in.b, frame.below);
      return false;
    }
    case Op::kTick: {
      const Loop& loop = grammar_->loops[frame.loop()];
      const bool at_most = loop.max == kUnbounded && frame.count >= loop.min;  // higher counts make no difference
      add(in.a, at_most ? at.stack : stacks.push(frame.top, frame.count + 1, frame.below, frame.nesting));
      return false;
    }
    case Op::kFail: return false;
  }
  return false;
}

}  // namespace tetrad::grammar
