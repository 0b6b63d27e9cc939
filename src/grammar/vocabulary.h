#pragma once
// The tokens of a tokenizer as a grammar sees them: bytes in a tree of common beginnings. Added tokens (special ones and tags) are not
// bytes: a grammar allows one where it names it, and nowhere else. Ids without a token are in no tree.
#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace tetrad::grammar {

class Vocabulary {
 public:
  // Plain text: printable ASCII but for quote, backslash and "<", and all other code points, each of them whole. Grammars mark places where
  // any of it leads back to the same place; the tokens that consist of it are then allowed without looking at each.
  static constexpr std::uint32_t kMaxPlainLength = 32;  // code points of a token that count as plain

  // The tokens in the order of their bytes; `end` is the node after all that begin with this one's bytes.
  struct Node {
    std::uint32_t end;
    std::uint32_t first_token;  // those that end here: up to the next node's
    std::uint16_t depth;        // bytes from the root to here, this one included
    std::uint8_t byte;
  };
  struct Tree {
    std::vector<Node> nodes;  // and one behind the last
    std::vector<int> ids;     // in order of nodes
  };

  Vocabulary(const Tokenizer& tokenizer, int vocab_size);
  // bytes: empty for an id without a token; added: ids of added tokens.
  Vocabulary(std::vector<std::string_view> bytes, std::vector<int> added, int vocab_size);

  int vocab_size() const { return vocab_size_; }  // of the logits, ids without a token included
  std::uint32_t longest_token() const { return longest_; }
  const Tree& all() const { return all_; }
  const Tree& not_plain() const { return not_plain_; }
  // Bits of the plain tokens of up to so many code points (at most kMaxPlainLength), as in a TokenMask.
  std::span<const std::uint32_t> plain_up_to(std::uint32_t length) const;
  const std::vector<int>& added() const { return added_; }
  std::string_view token_bytes(int id) const { return bytes_[static_cast<std::size_t>(id)]; }  // empty: none, or added
  bool is_added(int id) const;
  std::uint32_t rank(int id) const { return ranks_[static_cast<std::size_t>(id)]; }  // in all().ids

 private:
  void build(Tree& tree, const std::vector<int>& ids) const;

  int vocab_size_;
  std::uint32_t longest_ = 1;
  std::vector<char> text_;  // of all tokens, one after the other
  std::vector<std::string_view> bytes_;
  std::vector<int> added_;  // ascending
  Tree all_, not_plain_;
  std::vector<std::uint32_t> ranks_;
  std::vector<std::vector<std::uint32_t>> plain_;  // [length - 1]
};

}  // namespace tetrad::grammar
