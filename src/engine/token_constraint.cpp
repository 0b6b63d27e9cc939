#include "engine/token_constraint.h"

#include <algorithm>
#include <string>
#include <utility>

namespace tetrad {
namespace {

class MinTokens : public TokenConstraint {
 public:
  explicit MinTokens(int tokens) : left_(tokens) {}
  std::string_view name() const override { return "min_tokens"; }
  void check(int) const override {}
  std::unique_ptr<TokenConstraint> clone() const override { return std::make_unique<MinTokens>(*this); }
  bool narrow(TokenMask&) const override { return false; }
  bool may_end() const override { return left_ == 0; }
  void accept(int) override { left_ -= left_ > 0 ? 1 : 0; }

 private:
  int left_;
};

void check_ids(std::string_view what, std::span<const int> ids, int vocab_size) {
  for (const int id : ids)
    if (id < 0 || id >= vocab_size) fail<InputError>("{}: token id {} is outside the vocabulary [0, {})", what, id, vocab_size);
}

}  // namespace

ConstraintSet::ConstraintSet(const TokenConstraints& constraints, int min_tokens, std::span<const int> stop_ids, int vocab_size) {
  for (const auto& constraint : constraints) constraints_.push_back(constraint->clone());
  if (min_tokens > 0) constraints_.push_back(std::make_unique<MinTokens>(min_tokens));
  if (constraints_.empty()) return;
  for (const int id : stop_ids)
    if (id >= 0 && id < vocab_size) stop_ids_.push_back(id);
  mask_ = TokenMask(vocab_size);
}

ConstraintSet::Allowed ConstraintSet::next() {
  if (constraints_.empty()) return {};
  std::optional<int> forced;
  bool may_end = true;
  for (const auto& constraint : constraints_) {
    may_end = may_end && constraint->may_end();
    const std::span<const int> ids = constraint->forced();
    if (ids.empty()) continue;
    if (forced && *forced != ids.front())
      fail<ConstraintError>("the constraints of the answer ({}) force different tokens: ids {} and {}", names(), *forced, ids.front());
    forced = ids.front();
  }
  mask_.allow_all();
  bool narrowed = false;
  for (const auto& constraint : constraints_)
    if (constraint->forced().empty()) narrowed = constraint->narrow(mask_) || narrowed;
  if (forced) {
    if (!mask_.allows(*forced))
      fail<ConstraintError>("the constraints of the answer ({}) force token id {} and forbid it", names(), *forced);
    return {forced, nullptr};
  }
  if (!narrowed && may_end) return {};
  for (const int id : stop_ids_) mask_.set(id, may_end);
  return {{}, &mask_};
}

void ConstraintSet::accept(int id) {
  if (std::find(stop_ids_.begin(), stop_ids_.end(), id) != stop_ids_.end()) return;
  for (const auto& constraint : constraints_) constraint->accept(id);
}

bool ConstraintSet::must_end() const {
  return std::any_of(constraints_.begin(), constraints_.end(), [](const auto& constraint) { return constraint->must_end(); });
}

bool ConstraintSet::begun() const {
  return std::all_of(constraints_.begin(), constraints_.end(), [](const auto& constraint) { return constraint->begun(); });
}

std::string ConstraintSet::names() const {
  std::string names;
  for (const auto& constraint : constraints_) {
    if (!names.empty()) names += ", ";
    names += constraint->name();
  }
  return names;
}

FixedChoice::FixedChoice(std::vector<std::vector<int>> choices) : choices_(std::move(choices)) {}

void FixedChoice::check(int vocab_size) const {
  if (choices_.empty()) fail<InputError>("choice: at least one is needed");
  for (std::size_t i = 0; i < choices_.size(); ++i) {
    if (choices_[i].empty()) fail<InputError>("choice {} is empty: at least one token is needed", i);
    check_ids(fmt::format("choice {}", i), choices_[i], vocab_size);
  }
}

bool FixedChoice::narrow(TokenMask& allowed) const {
  std::vector<int> next;
  for (const std::vector<int>& choice : choices_)
    if (choice.size() > length_ && allowed.allows(choice[length_])) next.push_back(choice[length_]);
  allowed.forbid_all();
  for (const int id : next) allowed.set(id, true);
  return true;
}

std::span<const int> FixedChoice::forced() const {
  const std::vector<int>& first = choices_.front();
  std::size_t common = first.size();
  for (const std::vector<int>& choice : choices_) {
    const auto end = std::min(common, choice.size());
    common = static_cast<std::size_t>(std::mismatch(first.begin(), first.begin() + static_cast<std::ptrdiff_t>(end), choice.begin()).first -
                                      first.begin());
  }
  // Where a choice ends, going on is not the only way.
  return may_end() ? std::span<const int>() : std::span(first).subspan(length_, common - length_);
}

bool FixedChoice::may_end() const {
  return std::any_of(choices_.begin(), choices_.end(), [&](const auto& choice) { return choice.size() == length_; });
}

bool FixedChoice::must_end() const {
  return std::all_of(choices_.begin(), choices_.end(), [&](const auto& choice) { return choice.size() == length_; });
}

void FixedChoice::accept(int id) {
  std::erase_if(choices_, [&](const auto& choice) { return choice.size() <= length_ || choice[length_] != id; });
  TETRAD_CHECK(!choices_.empty(), "token id {} begins none of the choices at {}", id, length_);
  ++length_;
}

void ThinkingBudget::check(int vocab_size) const {
  if (options_.budget < 0) fail<InputError>("the thinking budget must be at least 0 tokens, got {}", options_.budget);
  check_ids("thinking budget", std::vector<int>{options_.start_id, options_.end_id}, vocab_size);
  check_ids("end phrase of the thinking budget", options_.end_phrase, vocab_size);
  if (std::find(options_.end_phrase.begin(), options_.end_phrase.end(), options_.end_id) == options_.end_phrase.end())
    fail<InputError>("the end phrase of the thinking budget does not end the thinking: it has no token id {}", options_.end_id);
  if (std::find(options_.end_phrase.begin(), options_.end_phrase.end(), options_.start_id) != options_.end_phrase.end())
    fail<InputError>("the end phrase of the thinking budget begins to think: it has token id {}", options_.start_id);
}

std::span<const int> ThinkingBudget::forced() const {
  const bool begins = inside_ && used_ >= options_.budget;
  return phrase_at_ > 0 || begins ? std::span<const int>(options_.end_phrase).subspan(phrase_at_) : std::span<const int>();
}

void ThinkingBudget::accept(int id) {
  if (const std::span<const int> phrase = forced(); !phrase.empty()) {
    TETRAD_CHECK(id == phrase.front(), "token id {} came where {} was forced", id, phrase.front());
    phrase_at_ = phrase.size() == 1 ? 0 : phrase_at_ + 1;
    inside_ = phrase_at_ > 0;
  } else if (inside_) {
    inside_ = id != options_.end_id;
    used_ += inside_ ? 1 : 0;
  } else {
    inside_ = id == options_.start_id;
  }
}

AfterThinking::AfterThinking(std::shared_ptr<const TokenConstraint> inner, int end_id, std::vector<int> separator)
    : inner_(inner->clone()), end_id_(end_id), separator_(std::move(separator)) {}

void AfterThinking::check(int vocab_size) const {
  check_ids("end of thinking", {&end_id_, 1}, vocab_size);
  check_ids("separator after thinking", separator_, vocab_size);
  inner_->check(vocab_size);
}

std::unique_ptr<TokenConstraint> AfterThinking::clone() const {
  auto copy = std::make_unique<AfterThinking>(std::shared_ptr<const TokenConstraint>(inner_->clone()), end_id_, separator_);
  copy->ended_ = ended_;
  copy->separator_at_ = separator_at_;
  return copy;
}

std::span<const int> AfterThinking::forced() const {
  if (!ended_) return {};
  return begun() ? inner_->forced() : std::span<const int>(separator_).subspan(separator_at_);
}

void AfterThinking::accept(int id) {
  if (!ended_) {
    ended_ = id == end_id_;
  } else if (!begun()) {
    TETRAD_CHECK(id == separator_[separator_at_], "token id {} came where {} was forced", id, separator_[separator_at_]);
    ++separator_at_;
  } else {
    inner_->accept(id);
  }
}

}  // namespace tetrad
