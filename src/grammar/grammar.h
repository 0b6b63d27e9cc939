#pragma once
// A grammar over bytes, ready to run: a nondeterministic pushdown automaton in which counted repetitions are counters and not copies.
//
// A configuration is a place in the code and a stack of frames. A frame is where a rule returns to, or a counter of an open repetition;
// the automaton is in a set of configurations at a time. Made by a Builder, run by a Matcher; nothing in it changes, so threads share it.
#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/error.h"

namespace tetrad::grammar {

// A schema, expression or list of choices that cannot be compiled, or that asks for more than the limits allow.
class GrammarError : public InputError {
 public:
  using InputError::InputError;
};

using Pc = std::int32_t;
using ByteSet = std::array<std::uint64_t, 4>;  // bit b % 64 of word b / 64
inline bool contains(const ByteSet& set, unsigned byte) { return (set[byte / 64] >> (byte % 64) & 1) != 0; }

enum class Op : std::uint8_t {
  kRange,      // a byte in [low, high], then a
  kSet,        // a byte in sets[b], then a
  kSymbol,     // the added token with id b, then a
  kAnySymbol,  // any added token, then a
  kText,       // not a way on: says that plain text (vocabulary.h) leads back here; b: each of its characters counts for the top counter
  kSplit,      // a or b
  kCall,       // rules[b], then a
  kReturn,     // from a rule; at the bottom of the stack: the end
  kPush,       // a counter of loops[b] at 0, then a
  kLoop,       // of the top counter: a while it may go up; without the counter, b if it is high enough
  kTick,       // the top counter goes up, then a
  kFail,       // nowhere
};

struct Instruction {
  Op op = Op::kFail;
  std::uint8_t low = 0, high = 0;
  Pc a = -1, b = -1;
};

inline constexpr Pc kFailPc = 0, kEndPc = 1;  // of every grammar: kFail, kReturn

struct Rule {
  Pc start = -1;
  bool nests = false;  // a JSON object or array: counts for kMaxNesting
};

inline constexpr std::uint32_t kUnbounded = UINT32_MAX;
struct Loop {
  std::uint32_t min = 0, max = kUnbounded;
};

struct Grammar {
  std::vector<Instruction> code;
  std::vector<ByteSet> sets;
  std::vector<Rule> rules;
  std::vector<Loop> loops;
  Pc start = -1;
  Pc prelude_end = 0;    // code before it is the same in every grammar
  std::uint64_t id = 0;  // no other grammar of this process has it
};
using GrammarPtr = std::shared_ptr<const Grammar>;

// Limits of one grammar. What passes them is refused with the name of the limit.
inline constexpr std::size_t kMaxInstructions = 400'000;
inline constexpr std::size_t kMaxRules = 20'000;
inline constexpr std::size_t kMaxLoops = 20'000;
inline constexpr std::uint32_t kMaxNesting = 256;           // of objects and arrays in an answer
inline constexpr std::size_t kMaxConfigurations = 4096;     // at a time: what is more ambiguous fails its request
inline constexpr std::size_t kMaxMaskSteps = 300'000;       // configurations moved for one mask, or for one token
inline constexpr std::uint32_t kMaxRepetitions = 1u << 24;  // minLength, maxItems, {n,m}

}  // namespace tetrad::grammar
