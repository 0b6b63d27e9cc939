#pragma once
// An answer whose text a grammar describes. Starts at the first token that it sees: AfterThinking lets reasoning go before.
#include <memory>

#include "engine/token_constraint.h"
#include "grammar/matcher.h"
#include "grammar/token_masks.h"

namespace tetrad {

class GrammarConstraint : public TokenConstraint {
 public:
  // `name` is what the request calls it, for messages.
  GrammarConstraint(std::string name, grammar::GrammarPtr grammar, std::shared_ptr<grammar::TokenMasks> masks);

  std::string_view name() const override { return name_; }
  void check(int vocab_size) const override;
  std::unique_ptr<TokenConstraint> clone() const override { return std::make_unique<GrammarConstraint>(*this); }
  bool narrow(TokenMask& allowed) const override;  // throws ConstraintError where the grammar is too ambiguous
  bool may_end() const override { return matcher_.may_end(); }
  bool must_end() const override { return matcher_.must_end(); }
  void accept(int id) override;

  const grammar::Matcher& matcher() const { return matcher_; }

 private:
  std::string name_;
  grammar::Matcher matcher_;
  std::shared_ptr<grammar::TokenMasks> masks_;
};

}  // namespace tetrad
