#pragma once
// The parts that run a grammar: stacks that share what they have in common, and the step of a set of configurations by one byte.
#include <cstdint>
#include <span>
#include <vector>

#include "grammar/grammar.h"

namespace tetrad::grammar {

using StackId = std::int32_t;
inline constexpr StackId kBottom = 0;   // the empty stack: a rule that returns here has come to the end
inline constexpr StackId kOutside = 1;  // stands for a stack that is not known: a rule that returns here leaves what is known

// Frames, each with the stack below it. Equal stacks have equal ids.
class Stacks {
 public:
  struct Frame {
    std::int32_t top = 0;     // where a call returns to, or -1 - loop for a counter
    std::uint32_t count = 0;  // of a counter
    StackId below = kBottom;
    std::uint32_t nesting = 0;  // objects and arrays that are open
    bool is_counter() const { return top < 0; }
    std::size_t loop() const { return static_cast<std::size_t>(-1 - top); }
  };

  Stacks();
  StackId push(std::int32_t top, std::uint32_t count, StackId below, std::uint32_t nesting);
  const Frame& operator[](StackId id) const { return frames_[static_cast<std::size_t>(id)]; }
  std::size_t size() const { return frames_.size(); }
  void set_outside_nesting(std::uint32_t nesting) { frames_[kOutside].nesting = nesting; }
  void clear();

 private:
  std::size_t slot_of(const Frame& frame) const;
  void rehash(std::size_t slots);

  std::vector<Frame> frames_;
  std::vector<StackId> table_;  // open addressing; -1: free
};

struct Configuration {
  Pc pc = 0;
  StackId stack = kBottom;
  friend auto operator<=>(const Configuration&, const Configuration&) = default;
};

// Ordered, without repeats; every pc reads something, is a return at the bottom, or a text mark.
using ConfigurationSet = std::vector<Configuration>;

class Stepper {
 public:
  explicit Stepper(const Grammar& grammar) : grammar_(&grammar) {}

  // Where `pc` with the empty stack stands before anything is read.
  void start(Pc pc, Stacks& stacks, ConfigurationSet& to);
  // Returns whether a rule returned to kOutside: then the byte may be followed by what is not known here. Throws GrammarError if there are
  // too many configurations.
  bool by_byte(std::span<const Configuration> from, std::uint8_t byte, Stacks& stacks, ConfigurationSet& to);
  bool by_symbol(std::span<const Configuration> from, int token_id, Stacks& stacks, ConfigurationSet& to);

  std::size_t steps() const { return steps_; }  // configurations moved, since this was made
  const Grammar& grammar() const { return *grammar_; }

 private:
  void add(Pc pc, StackId stack);
  bool mark_seen(std::uint64_t key);
  bool close(Stacks& stacks, ConfigurationSet& to);
  bool follow(Configuration at, Stacks& stacks, ConfigurationSet& to);

  const Grammar* grammar_;
  std::size_t steps_ = 0;
  std::vector<Configuration> work_;
  std::vector<std::uint64_t> seen_;  // open addressing: configurations met in the step that goes on
  std::vector<std::uint32_t> seen_in_;
  std::size_t num_seen_ = 0;
  std::uint32_t round_ = 1;
};

}  // namespace tetrad::grammar
