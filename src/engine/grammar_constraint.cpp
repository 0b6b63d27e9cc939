#include "engine/grammar_constraint.h"

#include <utility>

namespace tetrad {

GrammarConstraint::GrammarConstraint(std::string name, grammar::GrammarPtr grammar, std::shared_ptr<grammar::TokenMasks> masks)
    : name_(std::move(name)), matcher_(std::move(grammar)), masks_(std::move(masks)) {}

void GrammarConstraint::check(int vocab_size) const {
  const int known = masks_->vocabulary().vocab_size();
  if (vocab_size != known) fail<InputError>("{}: made for a vocabulary of {} ids, the model has {}", name_, known, vocab_size);
}

bool GrammarConstraint::narrow(TokenMask& allowed) const {
  try {
    masks_->narrow(matcher_, allowed.words());
  } catch (const grammar::GrammarError& error) {
    fail<ConstraintError>("{}: {}", name_, error.what());
  }
  return true;
}

void GrammarConstraint::accept(int id) {
  const grammar::Vocabulary& vocabulary = masks_->vocabulary();
  bool taken = false;
  try {
    taken = vocabulary.is_added(id) ? matcher_.accept_symbol(id) : matcher_.accept(vocabulary.token_bytes(id));
  } catch (const grammar::GrammarError& error) {
    fail<ConstraintError>("{}: {}", name_, error.what());
  }
  TETRAD_CHECK(taken, "token id {} is not one that {} allows", id, name_);
}

}  // namespace tetrad
