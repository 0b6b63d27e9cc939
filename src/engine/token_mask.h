#pragma once
// A set of token ids, one bit each: id i is bit i % 32 of word i / 32. Bits past the vocabulary are clear.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tetrad {

// Ids in a mask. Sums of bits in fields of growing width: the compiler makes vectors of it, which it does not of a popcount for the oldest
// x86-64.
inline std::size_t count_ids(std::span<const std::uint32_t> words) {
  std::uint32_t total = 0;
  for (std::uint32_t bits : words) {
    bits -= (bits >> 1) & 0x55555555u;
    bits = (bits & 0x33333333u) + ((bits >> 2) & 0x33333333u);
    bits = (bits + (bits >> 4)) & 0x0f0f0f0fu;
    bits += bits >> 8;
    total += (bits + (bits >> 16)) & 0x3fu;
  }
  return total;
}

class TokenMask {
 public:
  explicit TokenMask(int vocab_size = 0) : vocab_size_(vocab_size), words_((static_cast<std::size_t>(vocab_size) + 31) / 32) {}

  int vocab_size() const { return vocab_size_; }
  std::span<std::uint32_t> words() { return words_; }
  std::span<const std::uint32_t> words() const { return words_; }

  void allow_all() {
    std::fill(words_.begin(), words_.end(), ~std::uint32_t{0});
    if (vocab_size_ % 32 != 0) words_.back() >>= 32 - vocab_size_ % 32;
  }
  void forbid_all() { std::fill(words_.begin(), words_.end(), 0u); }
  // Ids in [0, vocab_size).
  bool allows(int id) const { return (words_[word_of(id)] & bit_of(id)) != 0; }
  void set(int id, bool allowed) {
    if (allowed)
      words_[word_of(id)] |= bit_of(id);
    else
      words_[word_of(id)] &= ~bit_of(id);
  }
  void intersect(const TokenMask& other) {  // of the same vocabulary
    for (std::size_t i = 0; i < words_.size(); ++i) words_[i] &= other.words_[i];
  }
  int count() const { return static_cast<int>(count_ids(words_)); }

 private:
  static std::size_t word_of(int id) { return static_cast<std::size_t>(id) / 32; }
  static std::uint32_t bit_of(int id) { return std::uint32_t{1} << (static_cast<unsigned>(id) % 32); }

  int vocab_size_;
  std::vector<std::uint32_t> words_;
};

}  // namespace tetrad
