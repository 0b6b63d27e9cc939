#pragma once
// Which tokens may come next by a grammar, as bits over the vocabulary.
//
// A token may come if its bytes may. What a place in a grammar allows is found by walking the tree of all tokens, once: the result is kept
// under the place alone, without the stack that led there. Tokens whose bytes go on behind the end of the rule that is open depend on that
// stack; they are kept as a list and looked at again each time, or, where they are many, kept once more under the whole stack: every token
// inside a string finds the same one. Places of the prelude are the same in all grammars, and so are their results.
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

#include "grammar/matcher.h"
#include "grammar/vocabulary.h"

namespace tetrad::grammar {

class TokenMasks {
 public:
  static constexpr std::size_t kCacheBytes = 64u << 20;

  explicit TokenMasks(std::shared_ptr<const Vocabulary> vocabulary, std::size_t cache_bytes = kCacheBytes);

  const Vocabulary& vocabulary() const { return *vocabulary_; }
  const std::shared_ptr<const Vocabulary>& vocabulary_ptr() const { return vocabulary_; }

  // Clears the bits of the tokens that cannot come next. words: of vocabulary().vocab_size() bits, in words of 32. Throws GrammarError
  // if finding out takes too long (kMaxMaskSteps). Every member may be called from any thread.
  void narrow(const Matcher& matcher, std::span<std::uint32_t> words);

  struct Counts {
    std::size_t found = 0, made = 0, dropped = 0, bytes = 0;
  };
  Counts counts() const;

 private:
  struct PlaceMask {
    std::vector<std::uint32_t> words;  // of the tokens that may come whatever the stack is; empty where `ids` has them
    std::vector<int> ids;
    std::vector<int> open;  // those that depend on the stack, in order of their bytes
    void set_allowed(std::vector<int> allowed, int vocab_size);
    std::size_t bytes() const { return sizeof(PlaceMask) + words.size() * 4 + (ids.size() + open.size()) * sizeof(int); }
  };
  using PlaceMaskPtr = std::shared_ptr<const PlaceMask>;
  using Key = std::vector<std::int32_t>;
  struct KeyHash {
    std::size_t operator()(const Key& key) const;
  };
  struct Entry {
    Key key;
    PlaceMaskPtr mask;
  };
  // The configurations that stand on one frame of a call.
  struct Place {
    StackId base = kBottom;
    std::vector<Configuration> configurations;
  };

  static std::vector<Place> places_of(const Matcher& matcher);
  Key key_of(const Matcher& matcher, const Place& place) const;
  PlaceMaskPtr find(const Key& key);  // null if it is not there
  void keep(Key key, const PlaceMaskPtr& mask);
  // Of everything the matcher stands on; empty if that is too long to be looked up.
  Key whole_key(const Matcher& matcher) const;
  std::vector<int> check_open(const Matcher& matcher, std::span<const PlaceMaskPtr> masks) const;
  PlaceMaskPtr find_or_check(const Matcher& matcher, std::span<const PlaceMaskPtr> masks);  // null if no token is open
  PlaceMaskPtr find_or_make(const Matcher& matcher, const Place& place);
  PlaceMaskPtr make(const Matcher& matcher, const Place& place) const;

  std::shared_ptr<const Vocabulary> vocabulary_;
  std::size_t cache_bytes_;
  mutable std::mutex mutex_;
  std::list<Entry> entries_;  // the one used last first
  std::unordered_map<Key, std::list<Entry>::iterator, KeyHash> index_;
  Counts counts_;
};

}  // namespace tetrad::grammar
