#pragma once
// What restricts the tokens of an answer beside their probability: grammars, choices, budgets. A request carries any number of them; a
// token must suit all. They are asked before everything else that chooses a token.
//
// A constraint speaks of the answer's content. Stop ids are not content: they are allowed where every constraint says that the answer may
// end, and nowhere else, whatever the masks say of them.
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "engine/token_mask.h"

namespace tetrad {

// The constraints of an answer leave no token that can be chosen: the request asks for what cannot be.
class ConstraintError : public InputError {
 public:
  using InputError::InputError;
};

class TokenConstraint {
 public:
  virtual ~TokenConstraint() = default;

  virtual std::string_view name() const = 0;     // for messages
  virtual void check(int vocab_size) const = 0;  // throws InputError for a constraint that no answer can meet
  virtual std::unique_ptr<TokenConstraint> clone() const = 0;

  // Clears the ids that may not come next; adds none. False if it leaves the mask as it is, which costs nothing then. Not asked while
  // something is forced.
  virtual bool narrow(TokenMask& allowed) const = 0;
  // The ids that must come next, as far as that is known now; empty: nothing is forced. Valid until accept().
  virtual std::span<const int> forced() const { return {}; }
  virtual bool may_end() const { return true; }    // a stop id may come next
  virtual bool must_end() const { return false; }  // nothing can follow: the answer ends here, without a stop id
  virtual bool begun() const { return true; }      // what comes next is content; false: text that goes before it, as thinking does

  // The token that was chosen, not a stop id. It is one that narrow() and forced() allow.
  virtual void accept(int id) = 0;
};

// Constraints as a request holds them, in their first state: each answer to it works on copies.
using TokenConstraints = std::vector<std::shared_ptr<const TokenConstraint>>;

// All constraints of one answer.
class ConstraintSet {
 public:
  // min_tokens: no stop id before so many tokens. Everything is checked already.
  ConstraintSet(const TokenConstraints& constraints, int min_tokens, std::span<const int> stop_ids, int vocab_size);

  struct Allowed {
    std::optional<int> forced;        // this id, and no choice
    const TokenMask* mask = nullptr;  // null: every id; valid until the next call
  };
  // Of the next token. Throws ConstraintError if two force different ids or one forbids what another forces.
  Allowed next();
  void accept(int id);
  bool must_end() const;
  bool begun() const;         // what comes next is content to every constraint
  std::string names() const;  // for messages

 private:
  std::vector<std::unique_ptr<TokenConstraint>> constraints_;
  std::vector<int> stop_ids_;
  TokenMask mask_;
};

// One of several strings of token ids, just as they are given: other ids for the same text do not count.
class FixedChoice : public TokenConstraint {
 public:
  explicit FixedChoice(std::vector<std::vector<int>> choices);

  std::string_view name() const override { return "choice"; }
  void check(int vocab_size) const override;
  std::unique_ptr<TokenConstraint> clone() const override { return std::make_unique<FixedChoice>(*this); }
  bool narrow(TokenMask& allowed) const override;
  std::span<const int> forced() const override;
  bool may_end() const override;
  bool must_end() const override;
  void accept(int id) override;

 private:
  std::vector<std::vector<int>> choices_;  // those that the answer so far begins
  std::size_t length_ = 0;                 // of the answer so far
};

// After `budget` tokens of thinking the end phrase is forced, and the answer goes on. Thinking that ends on its own is left alone; when it
// begins again with the budget spent, the phrase comes at once.
class ThinkingBudget : public TokenConstraint {
 public:
  struct Options {
    int start_id = 0, end_id = 0;  // <think> and </think>; neither counts
    bool inside = true;            // the prompt has begun the thinking
    int budget = 0;                // tokens, at least 0
    std::vector<int> end_phrase;   // holds end_id
  };
  explicit ThinkingBudget(Options options) : options_(std::move(options)), inside_(options_.inside) {}

  std::string_view name() const override { return "thinking budget"; }
  void check(int vocab_size) const override;
  std::unique_ptr<TokenConstraint> clone() const override { return std::make_unique<ThinkingBudget>(*this); }
  bool narrow(TokenMask&) const override { return false; }
  std::span<const int> forced() const override;
  bool may_end() const override { return forced().empty(); }
  void accept(int id) override;
  int thinking_tokens() const { return used_; }  // those of the end phrase not counted

 private:
  Options options_;
  bool inside_;
  int used_ = 0;
  std::size_t phrase_at_ = 0;  // tokens of the phrase that have come
};

// Another constraint, from the end of the thinking on: the answer cannot end before. The separator that a template sets between the two is
// forced; an end phrase of a ThinkingBudget beside it ends in end_id and the same separator.
class AfterThinking : public TokenConstraint {
 public:
  AfterThinking(std::shared_ptr<const TokenConstraint> inner, int end_id, std::vector<int> separator);

  std::string_view name() const override { return inner_->name(); }
  void check(int vocab_size) const override;
  std::unique_ptr<TokenConstraint> clone() const override;
  bool narrow(TokenMask& allowed) const override { return begun() && inner_->narrow(allowed); }
  std::span<const int> forced() const override;
  bool may_end() const override { return begun() && inner_->may_end(); }
  bool must_end() const override { return begun() && inner_->must_end(); }
  bool begun() const override { return ended_ && separator_at_ == separator_.size(); }
  void accept(int id) override;

 private:
  std::unique_ptr<TokenConstraint> inner_;
  int end_id_;
  std::vector<int> separator_;
  bool ended_ = false;  // the thinking
  std::size_t separator_at_ = 0;
};

}  // namespace tetrad
