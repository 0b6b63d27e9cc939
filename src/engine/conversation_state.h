#pragma once
// The state of one conversation between turns, together with the tokens it stands for: the next prompt is computed from where it
// departs, not from the start.
#include <optional>
#include <span>
#include <vector>

#include "engine/sequence_state.h"

namespace tetrad {

class ConversationState {
 public:
  explicit ConversationState(StatePool& pool) : state_(pool) {}

  SequenceState& state() { return state_; }

  // Leaves in the state the longest known proper prefix of `prompt`: all of it if the prompt extends it, else the save point if the
  // prompt extends that, else nothing. Returns how many tokens that is.
  int align(std::span<const int> prompt);

  // The state now holds the first state().length() of these tokens.
  void record(std::span<const int> tokens);

  // Remembers the present point for a later align(); takes one more slot. The templates that leave the thinking of earlier turns out
  // change the prompt from the last answer on: the end of the last question is the point to keep.
  void save();

  void clear();

 private:
  SequenceState state_;
  std::vector<int> tokens_;  // in state_
  std::optional<SequenceState> saved_;
  std::vector<int> saved_tokens_;
};

}  // namespace tetrad
