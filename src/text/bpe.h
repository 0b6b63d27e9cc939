#pragma once
// The merge loop of byte-pair encoding over the bytes of one word.
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace tetrad::text {

struct Merge {
  int left, right, result;  // token ids
};

// Immutable but for a bounded cache of words, which locks for itself: encode may be called from any number of threads at once.
class Bpe {
 public:
  // byte_ids: the token of each byte, -1 where there is none. merges: in order of rank, no pair twice, ids in 0..num_ids-1.
  Bpe(const std::array<int, 256>& byte_ids, const std::vector<Merge>& merges, int num_ids);
  Bpe(Bpe&&) noexcept;
  Bpe& operator=(Bpe&&) noexcept;
  ~Bpe();

  // Words found here become their id without any merging (ignore_merges).
  void set_whole_words(std::unordered_map<std::string, int> words);

  // Appends the ids of `word`; O(n log n) in its bytes. The lowest rank goes first, of equal ranks the leftmost.
  // Throws InternalError on a byte without a token.
  void encode(std::string_view word, std::vector<int>& ids) const;

 private:
  struct Rule {
    int right, result;
    std::uint32_t rank;
  };
  struct Cache;

  const Rule* find(int left, int right) const;
  void merge(std::string_view word, std::vector<int>& ids) const;

  std::array<int, 256> byte_ids_;
  std::vector<std::uint32_t> first_rule_;  // [num_ids + 1]: the rules of a left token are rules_[first_rule_[left] .. first_rule_[left + 1])
  std::vector<Rule> rules_;                // by left, then right
  std::unordered_map<std::string, int> whole_words_;
  std::unique_ptr<Cache> cache_;
};

}  // namespace tetrad::text
