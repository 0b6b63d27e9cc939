#include "grammar/code_check.h"

#include <algorithm>
#include <utility>

namespace tetrad::grammar {
namespace {

// Which code leads to an end: a least fixed point, found backwards from the returns. A loop leads where its exit leads, whether or not its
// body can be passed; loops that must pass a body that cannot are `blocked`.
class Liveness {
 public:
  explicit Liveness(const Grammar& grammar) : grammar_(grammar), live_(grammar.code.size()), blocked_(grammar.code.size()) {
    link();
    run();
    while (block_loops()) run();
  }
  bool live(Pc pc) const { return pc >= 0 && live_[static_cast<std::size_t>(pc)]; }

 private:
  // To each place the places whose state depends on it, as one array cut by first_.
  void link() {
    std::vector<std::pair<Pc, Pc>> edges;  // what is depended on, what depends
    for (std::size_t i = 0; i < grammar_.code.size(); ++i) {
      const Instruction& in = grammar_.code[i];
      const Pc pc = static_cast<Pc>(i);
      if (in.op == Op::kSplit) {
        edges.emplace_back(in.a, pc);
        edges.emplace_back(in.b, pc);
      } else if (in.op == Op::kLoop) {
        edges.emplace_back(in.b, pc);
      } else if (in.a >= 0) {
        edges.emplace_back(in.a, pc);
        if (in.op == Op::kCall) edges.emplace_back(grammar_.rules[static_cast<std::size_t>(in.b)].start, pc);
      }
    }
    std::sort(edges.begin(), edges.end());
    first_.assign(grammar_.code.size() + 1, 0);
    for (const auto& [on, pc] : edges) {
      ++first_[static_cast<std::size_t>(on) + 1];
      dependents_.push_back(pc);
    }
    for (std::size_t i = 1; i < first_.size(); ++i) first_[i] += first_[i - 1];
  }

  bool leads_on(Pc pc) const {
    const Instruction& in = grammar_.code[static_cast<std::size_t>(pc)];
    if (blocked_[static_cast<std::size_t>(pc)]) return false;
    switch (in.op) {
      case Op::kReturn: return true;
      case Op::kFail:
      case Op::kText: return false;
      case Op::kSplit: return live(in.a) || live(in.b);
      case Op::kLoop: return live(in.b);
      case Op::kCall: return live(in.a) && live(grammar_.rules[static_cast<std::size_t>(in.b)].start);
      default: return live(in.a);
    }
  }

  void run() {
    std::fill(live_.begin(), live_.end(), false);
    std::vector<Pc> work;
    for (std::size_t i = 0; i < live_.size(); ++i)
      if (grammar_.code[i].op == Op::kReturn) work.push_back(static_cast<Pc>(i));
    while (!work.empty()) {
      const Pc pc = work.back();
      work.pop_back();
      if (live(pc) || !leads_on(pc)) continue;
      live_[static_cast<std::size_t>(pc)] = true;
      const auto i = static_cast<std::size_t>(pc);
      work.insert(work.end(), dependents_.begin() + first_[i], dependents_.begin() + first_[i + 1]);
    }
  }

  // A loop that must go round and cannot. Its counter belongs to the push that leads to it.
  bool block_loops() {
    bool changed = false;
    for (std::size_t i = 0; i < grammar_.code.size(); ++i) {
      const Instruction& in = grammar_.code[i];
      if (in.op != Op::kPush || blocked_[i] || grammar_.loops[static_cast<std::size_t>(in.b)].min == 0) continue;
      const Instruction& head = grammar_.code[static_cast<std::size_t>(in.a)];
      if (head.op != Op::kLoop || live(head.a)) continue;
      blocked_[i] = changed = true;
    }
    return changed;
  }

  const Grammar& grammar_;
  std::vector<bool> live_, blocked_;
  std::vector<std::ptrdiff_t> first_;
  std::vector<Pc> dependents_;
};

// Rules reachable from a rule's start without reading anything. Called rules never match the empty text, so nothing behind a call counts.
std::vector<int> first_calls(const Grammar& grammar, int rule, std::vector<int>& seen_by) {
  std::vector<int> calls;
  std::vector<Pc> work = {grammar.rules[static_cast<std::size_t>(rule)].start};
  while (!work.empty()) {
    const Pc pc = work.back();
    work.pop_back();
    if (std::exchange(seen_by[static_cast<std::size_t>(pc)], rule) == rule) continue;
    const Instruction& in = grammar.code[static_cast<std::size_t>(pc)];
    if (in.op == Op::kSplit || in.op == Op::kLoop) work.push_back(in.b);
    if (in.op == Op::kSplit || in.op == Op::kLoop || in.op == Op::kPush || in.op == Op::kTick) work.push_back(in.a);
    if (in.op == Op::kCall) calls.push_back(in.b);
    TETRAD_CHECK(in.op != Op::kReturn, "rule {} of a grammar matches the empty text", rule);
  }
  return calls;
}

}  // namespace

void remove_dead_code(Grammar& grammar) {
  const Liveness liveness(grammar);
  if (!liveness.live(grammar.start)) fail<GrammarError>("no text can match it");
  for (std::size_t i = 0; i < grammar.code.size(); ++i)
    if (!liveness.live(static_cast<Pc>(i)) && grammar.code[i].op != Op::kText) grammar.code[i] = {};
}

void check_recursion(const Grammar& grammar) {
  std::vector<int> seen_by(grammar.code.size(), -1);
  enum : char { kNew, kOpen, kDone };
  std::vector<char> state(grammar.rules.size(), kNew);
  struct Visit {
    int rule;
    std::vector<int> calls;
  };
  for (std::size_t r = 0; r < grammar.rules.size(); ++r) {
    if (state[r] != kNew) continue;
    std::vector<Visit> path;
    const auto enter = [&](int rule) {
      state[static_cast<std::size_t>(rule)] = kOpen;
      path.push_back({rule, first_calls(grammar, rule, seen_by)});
    };
    enter(static_cast<int>(r));
    while (!path.empty()) {
      if (path.back().calls.empty()) {
        state[static_cast<std::size_t>(path.back().rule)] = kDone;
        path.pop_back();
        continue;
      }
      const int next = path.back().calls.back();
      path.back().calls.pop_back();
      if (state[static_cast<std::size_t>(next)] == kOpen) fail<GrammarError>("it refers to itself with nothing in between");
      if (state[static_cast<std::size_t>(next)] == kNew) enter(next);
    }
  }
}

}  // namespace tetrad::grammar
