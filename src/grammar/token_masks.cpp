#include "grammar/token_masks.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "grammar/token_walk.h"

namespace tetrad::grammar {
namespace {

// A count that allows the same in as many bytes as the longest token has; so most counts share what is found for one of them.
std::uint32_t canonical_count(std::uint32_t count, const Loop& loop, std::uint32_t longest) {
  if (count < loop.min) return loop.min - count > longest ? loop.min - longest - 1 : count;
  if (loop.max != kUnbounded && loop.max - count > longest) return loop.max - longest - 1;
  return count;
}

void set_bits(std::span<std::uint32_t> words, std::span<const int> ids) {
  for (const int id : ids) words[static_cast<std::size_t>(id) / 32] |= std::uint32_t{1} << (id % 32);
}

// How much plain text may come, in code points: 0 if that is not marked, or if there is more to it.
std::uint32_t plain_room(const Grammar& grammar, const Stacks& stacks, const ConfigurationSet& set) {
  std::uint32_t best = 0;
  StackId stack = kBottom;
  for (const Configuration& at : set) {
    const Instruction& in = grammar.code[static_cast<std::size_t>(at.pc)];
    if (in.op != Op::kText) continue;
    std::uint32_t room = kUnbounded;
    if (in.b != 0) {
      const Stacks::Frame& frame = stacks[at.stack];
      const std::uint32_t max = grammar.loops[frame.loop()].max;
      if (max != kUnbounded) room = max - frame.count;
    }
    if (room > best) {
      best = room;
      stack = at.stack;
    }
  }
  if (best >= Vocabulary::kMaxPlainLength) return best;
  // Longer plain tokens are left out: nothing else may allow them.
  const bool alone = std::all_of(set.begin(), set.end(), [&](const Configuration& at) { return at.stack == stack; });
  return alone ? best : 0;
}

}  // namespace

void TokenMasks::PlaceMask::set_allowed(std::vector<int> allowed, int vocab_size) {
  const std::size_t num_words = (static_cast<std::size_t>(vocab_size) + 31) / 32;
  if (allowed.size() > num_words) {
    words.resize(num_words);
    set_bits(words, allowed);
  } else {
    ids = std::move(allowed);
    ids.shrink_to_fit();
  }
}

std::size_t TokenMasks::KeyHash::operator()(const Key& key) const {
  std::size_t hash = key.size();
  for (const std::int32_t part : key) hash = (hash ^ static_cast<std::uint32_t>(part)) * 0x100000001B3ULL;
  return hash ^ (hash >> 32);
}

TokenMasks::TokenMasks(std::shared_ptr<const Vocabulary> vocabulary, std::size_t cache_bytes)
    : vocabulary_(std::move(vocabulary)), cache_bytes_(cache_bytes) {}

TokenMasks::Counts TokenMasks::counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

std::vector<TokenMasks::Place> TokenMasks::places_of(const Matcher& matcher) {
  const Stacks& stacks = matcher.stacks();
  std::vector<Place> places;
  std::unordered_map<StackId, std::size_t> index;
  for (const Configuration& at : matcher.configurations()) {
    StackId base = at.stack;
    while (stacks[base].is_counter()) base = stacks[base].below;
    const auto [it, fresh] = index.try_emplace(base, places.size());
    if (fresh) places.push_back({base, {}});
    places[it->second].configurations.push_back(at);
  }
  return places;
}

TokenMasks::Key TokenMasks::key_of(const Matcher& matcher, const Place& place) const {
  const Grammar& grammar = matcher.grammar();
  const Stacks& stacks = matcher.stacks();
  const std::uint32_t longest = vocabulary_->longest_token();
  Key key(2);  // for the grammar
  const bool at_bottom = place.base == kBottom;
  key.push_back(at_bottom ? -1 : static_cast<std::int32_t>(std::min(kMaxNesting - stacks[place.base].nesting, longest)));
  bool in_prelude = !at_bottom;
  for (const Configuration& at : place.configurations) {
    in_prelude = in_prelude && at.pc < grammar.prelude_end;
    key.push_back(at.pc);
    for (StackId id = at.stack; id != place.base; id = stacks[id].below) {
      const Stacks::Frame& frame = stacks[id];
      key.push_back(frame.top);  // negative, so that it is not taken for a pc
      key.push_back(static_cast<std::int32_t>(canonical_count(frame.count, grammar.loops[frame.loop()], longest)));
    }
  }
  if (!in_prelude) {
    key[0] = static_cast<std::int32_t>(grammar.id >> 32);
    key[1] = static_cast<std::int32_t>(grammar.id);
  }
  return key;
}

TokenMasks::PlaceMaskPtr TokenMasks::make(const Matcher& matcher, const Place& place) const {
  const Grammar& grammar = matcher.grammar();
  const Stacks& from = matcher.stacks();
  const std::uint32_t longest = vocabulary_->longest_token();
  Stacks stacks;
  const bool at_bottom = place.base == kBottom;
  const std::uint32_t nesting = at_bottom ? 0 : kMaxNesting - std::min(kMaxNesting - from[place.base].nesting, longest);
  stacks.set_outside_nesting(nesting);
  ConfigurationSet set;
  std::vector<StackId> counters;
  for (const Configuration& at : place.configurations) {
    counters.clear();
    for (StackId id = at.stack; id != place.base; id = from[id].below) counters.push_back(id);
    StackId stack = at_bottom ? kBottom : kOutside;
    for (; !counters.empty(); counters.pop_back()) {
      const Stacks::Frame& frame = from[counters.back()];
      stack = stacks.push(frame.top, canonical_count(frame.count, grammar.loops[frame.loop()], longest), stack, nesting);
    }
    set.push_back({at.pc, stack});
  }
  std::sort(set.begin(), set.end());
  set.erase(std::unique(set.begin(), set.end()), set.end());

  const std::uint32_t room = plain_room(grammar, stacks, set);
  std::vector<int> allowed;
  auto mask = std::make_shared<PlaceMask>();
  TokenWalk walk(grammar, std::move(stacks), std::move(set));
  walk.walk(room > 0 ? vocabulary_->not_plain() : vocabulary_->all(), allowed, mask->open);
  if (room > 0) {
    const std::span<const std::uint32_t> plain = vocabulary_->plain_up_to(room);
    mask->words.assign(plain.begin(), plain.end());
    set_bits(mask->words, allowed);
  } else {
    mask->set_allowed(std::move(allowed), vocabulary_->vocab_size());
  }
  mask->open.shrink_to_fit();
  return mask;
}

TokenMasks::PlaceMaskPtr TokenMasks::find(const Key& key) {
  const std::lock_guard lock(mutex_);
  const auto it = index_.find(key);
  if (it == index_.end()) return nullptr;
  entries_.splice(entries_.begin(), entries_, it->second);
  ++counts_.found;
  return it->second->mask;
}

void TokenMasks::keep(Key key, const PlaceMaskPtr& mask) {
  const std::lock_guard lock(mutex_);
  ++counts_.made;
  if (index_.contains(key)) return;  // another thread was faster
  const auto cost = [](const Entry& entry) { return entry.mask->bytes() + 2 * entry.key.size() * sizeof(std::int32_t) + 128; };
  entries_.push_front({std::move(key), mask});
  index_.emplace(entries_.front().key, entries_.begin());
  counts_.bytes += cost(entries_.front());
  while (counts_.bytes > cache_bytes_ && entries_.size() > 1) {
    counts_.bytes -= cost(entries_.back());
    index_.erase(entries_.back().key);
    entries_.pop_back();
    ++counts_.dropped;
  }
}

TokenMasks::PlaceMaskPtr TokenMasks::find_or_make(const Matcher& matcher, const Place& place) {
  Key key = key_of(matcher, place);
  if (PlaceMaskPtr mask = find(key)) return mask;
  PlaceMaskPtr mask = make(matcher, place);
  keep(std::move(key), mask);
  return mask;
}

TokenMasks::Key TokenMasks::whole_key(const Matcher& matcher) const {
  constexpr std::size_t kMaxKey = 2048;
  const Grammar& grammar = matcher.grammar();
  const Stacks& stacks = matcher.stacks();
  const std::uint32_t longest = vocabulary_->longest_token();
  Key key = {static_cast<std::int32_t>(grammar.id >> 32), static_cast<std::int32_t>(grammar.id), std::numeric_limits<std::int32_t>::min()};
  for (const Configuration& at : matcher.configurations()) {
    key.push_back(at.pc);
    key.push_back(static_cast<std::int32_t>(std::min(kMaxNesting - stacks[at.stack].nesting, longest)));
    for (StackId id = at.stack; id != kBottom; id = stacks[id].below) {
      if (key.size() > kMaxKey) return {};
      const Stacks::Frame& frame = stacks[id];
      key.push_back(frame.top);
      if (frame.is_counter()) key.push_back(static_cast<std::int32_t>(canonical_count(frame.count, grammar.loops[frame.loop()], longest)));
    }
    key.push_back(std::numeric_limits<std::int32_t>::min());
  }
  return key;
}

std::vector<int> TokenMasks::check_open(const Matcher& matcher, std::span<const PlaceMaskPtr> masks) const {
  std::vector<int> open, allowed;
  for (const PlaceMaskPtr& mask : masks) open.insert(open.end(), mask->open.begin(), mask->open.end());
  if (masks.size() > 1) {
    std::sort(open.begin(), open.end(), [&](int a, int b) { return vocabulary_->rank(a) < vocabulary_->rank(b); });
    open.erase(std::unique(open.begin(), open.end()), open.end());
  }
  TokenWalk(matcher.grammar(), matcher.stacks(), matcher.configurations()).check(*vocabulary_, open, allowed);
  return allowed;
}

TokenMasks::PlaceMaskPtr TokenMasks::find_or_check(const Matcher& matcher, std::span<const PlaceMaskPtr> masks) {
  constexpr std::size_t kManyOpen = 256;  // fewer are looked at as quickly as they are found
  std::size_t num_open = 0;
  for (const PlaceMaskPtr& mask : masks) num_open += mask->open.size();
  if (num_open == 0) return nullptr;
  Key key = num_open > kManyOpen ? whole_key(matcher) : Key();
  if (!key.empty())
    if (PlaceMaskPtr found = find(key)) return found;
  auto checked = std::make_shared<PlaceMask>();
  checked->set_allowed(check_open(matcher, masks), vocabulary_->vocab_size());
  if (!key.empty()) keep(std::move(key), checked);
  return checked;
}

void TokenMasks::narrow(const Matcher& matcher, std::span<std::uint32_t> words) {
  TETRAD_CHECK(words.size() * 32 >= static_cast<std::size_t>(vocabulary_->vocab_size()), "a mask of {} words for {} ids", words.size(),
               vocabulary_->vocab_size());
  const Grammar& grammar = matcher.grammar();
  std::vector<PlaceMaskPtr> masks;
  for (const Place& place : places_of(matcher)) masks.push_back(find_or_make(matcher, place));
  if (PlaceMaskPtr checked = find_or_check(matcher, masks)) masks.push_back(std::move(checked));
  std::vector<std::uint32_t> dense;
  std::vector<int> ids;
  for (const PlaceMaskPtr& mask : masks) {
    if (dense.empty()) {
      dense = mask->words;
    } else {
      for (std::size_t i = 0; i < mask->words.size(); ++i) dense[i] |= mask->words[i];
    }
    ids.insert(ids.end(), mask->ids.begin(), mask->ids.end());
  }
  for (const Configuration& at : matcher.configurations()) {
    const Instruction& in = grammar.code[static_cast<std::size_t>(at.pc)];
    if (in.op == Op::kSymbol && in.b < vocabulary_->vocab_size()) ids.push_back(in.b);
    if (in.op == Op::kAnySymbol) ids.insert(ids.end(), vocabulary_->added().begin(), vocabulary_->added().end());
  }
  if (dense.empty()) {
    std::erase_if(ids, [&](int id) { return (words[static_cast<std::size_t>(id) / 32] >> (id % 32) & 1) == 0; });
    std::fill(words.begin(), words.end(), 0u);
    set_bits(words, ids);
  } else {
    set_bits(dense, ids);
    for (std::size_t i = 0; i < dense.size(); ++i) words[i] &= dense[i];
    std::fill(words.begin() + static_cast<std::ptrdiff_t>(dense.size()), words.end(), 0u);
  }
}

}  // namespace tetrad::grammar
