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

// Immutable but for a pool of scratch memory, which locks for itself: any number of threads may hold an Encoder each.
class Bpe {
 public:
  // byte_ids: the token of each byte, -1 where there is none. merges: in order of rank, no pair twice, ids in 0..num_ids-1.
  Bpe(const std::array<int, 256>& byte_ids, const std::vector<Merge>& merges, int num_ids);
  Bpe(Bpe&&) noexcept;
  Bpe& operator=(Bpe&&) noexcept;
  ~Bpe();

  // Words found here become their id without any merging (ignore_merges).
  void set_whole_words(std::unordered_map<std::string, int> words);

  // Encodes words, remembering recent ones. Borrows its memory (a fixed-size cache of words among it) from the pool for its lifetime; the
  // Bpe outlives it and is not moved meanwhile. One thread at a time.
  class Encoder {
   public:
    explicit Encoder(const Bpe& bpe);
    ~Encoder();
    Encoder(const Encoder&) = delete;
    Encoder& operator=(const Encoder&) = delete;

    // Appends the ids of `word`; O(n log n) in its bytes. The lowest rank goes first, of equal ranks the leftmost.
    // Throws InternalError on a byte without a token.
    void encode(std::string_view word, std::vector<int>& ids);

   private:
    void encode_uncached(std::string_view word, std::vector<int>& ids);
    void merge(std::string_view word, std::vector<int>& ids);

    const Bpe* bpe_;
    struct Scratch;
    std::unique_ptr<Scratch> scratch_;
    friend class Bpe;
  };

 private:
  struct Rule {
    int right, result;
    std::uint32_t rank;
  };
  struct Pool;

  const Rule* find(int left, int right) const;

  std::array<int, 256> byte_ids_;
  std::vector<std::uint32_t>
      first_rule_;           // [num_ids + 1]: the rules of a left token are rules_[first_rule_[left] .. first_rule_[left + 1])
  std::vector<Rule> rules_;  // by left, then right
  std::unordered_map<std::string, int> whole_words_;
  std::unique_ptr<Pool> pool_;
};

}  // namespace tetrad::text
