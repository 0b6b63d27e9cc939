#include "engine/conversation_state.h"

#include <algorithm>
#include <utility>

namespace tetrad {
namespace {

bool extends(std::span<const int> prompt, std::span<const int> prefix) {
  return prefix.size() < prompt.size() && std::equal(prefix.begin(), prefix.end(), prompt.begin());
}

}  // namespace

int ConversationState::align(std::span<const int> prompt) {
  // A state whose length disagrees with its tokens was cleared under us, by a fault.
  if (state_.length() == static_cast<int>(tokens_.size()) && extends(prompt, tokens_)) return state_.length();
  if (saved_ && extends(prompt, saved_tokens_)) {
    state_ = std::move(*saved_);
    tokens_ = saved_tokens_;
    saved_.reset();
    save();
    return state_.length();
  }
  clear();
  return 0;
}

void ConversationState::record(std::span<const int> tokens) {
  TETRAD_CHECK(static_cast<int>(tokens.size()) >= state_.length(), "{} tokens recorded for a state of {}", tokens.size(), state_.length());
  const auto held = tokens.first(static_cast<std::size_t>(state_.length()));
  tokens_.assign(held.begin(), held.end());
}

void ConversationState::save() {
  saved_.reset();
  saved_.emplace(state_.fork());
  saved_tokens_ = tokens_;
}

void ConversationState::clear() {
  state_.clear();
  tokens_.clear();
  saved_.reset();
  saved_tokens_.clear();
}

}  // namespace tetrad
