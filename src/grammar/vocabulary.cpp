#include "grammar/vocabulary.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/error.h"
#include "text/unicode.h"

namespace tetrad::grammar {
namespace {

std::vector<std::string_view> bytes_of_all(const Tokenizer& tokenizer, int vocab_size) {
  std::vector<std::string_view> bytes;
  for (int id = 0; id < std::min(vocab_size, tokenizer.size()); ++id) bytes.push_back(tokenizer.token_bytes(id));
  return bytes;
}

std::vector<int> added_of_all(const Tokenizer& tokenizer, int vocab_size) {
  std::vector<int> added;
  for (int id = 0; id < std::min(vocab_size, tokenizer.size()); ++id)
    if (tokenizer.is_added(id) || tokenizer.is_special(id)) added.push_back(id);
  return added;
}

// Code points of a token of plain text, 0 of any other.
std::uint32_t plain_length(std::string_view token) {
  std::uint32_t length = 0;
  while (!token.empty()) {
    const text::Utf8Step step = text::utf8_step(token);
    const char32_t c = step.code_point;
    if (step.kind != text::Utf8Step::Kind::kCodePoint || c < 0x20 || c == 0x7F || c == '"' || c == '\\' || c == '<') return 0;
    token.remove_prefix(step.length);
    ++length;
  }
  return length;
}

}  // namespace

Vocabulary::Vocabulary(const Tokenizer& tokenizer, int vocab_size)
    : Vocabulary(bytes_of_all(tokenizer, vocab_size), added_of_all(tokenizer, vocab_size), vocab_size) {}

Vocabulary::Vocabulary(std::vector<std::string_view> bytes, std::vector<int> added, int vocab_size)
    : vocab_size_(vocab_size), bytes_(std::move(bytes)), added_(std::move(added)) {
  TETRAD_CHECK(static_cast<int>(bytes_.size()) <= vocab_size, "{} tokens for a vocabulary of {}", bytes_.size(), vocab_size);
  bytes_.resize(static_cast<std::size_t>(vocab_size));
  std::sort(added_.begin(), added_.end());
  for (const int id : added_) bytes_[static_cast<std::size_t>(id)] = {};
  constexpr std::size_t kLongest = 4096;  // a longer one is no word of any language: it is never allowed
  std::size_t total = 0;
  for (std::string_view& token : bytes_) {
    if (token.size() > kLongest) token = {};
    total += token.size();
    longest_ = std::max(longest_, static_cast<std::uint32_t>(token.size()));
  }
  text_.reserve(total);
  for (std::string_view& token : bytes_) {
    const std::size_t at = text_.size();
    text_.insert(text_.end(), token.begin(), token.end());
    token = std::string_view(text_.data() + at, token.size());
  }

  std::vector<int> sorted, not_plain;
  plain_.assign(kMaxPlainLength, std::vector<std::uint32_t>((static_cast<std::size_t>(vocab_size) + 31) / 32));
  for (int id = 0; id < vocab_size; ++id) {
    const std::string_view token = token_bytes(id);
    if (token.empty()) continue;
    sorted.push_back(id);
    const std::uint32_t length = plain_length(token);
    for (std::uint32_t n = std::max(length, 1u); length > 0 && n <= kMaxPlainLength; ++n)
      plain_[n - 1][static_cast<std::size_t>(id) / 32] |= std::uint32_t{1} << (id % 32);
  }
  std::sort(sorted.begin(), sorted.end(), [&](int a, int b) { return std::pair(token_bytes(a), a) < std::pair(token_bytes(b), b); });
  for (const int id : sorted) {
    const std::uint32_t length = plain_length(token_bytes(id));
    if (length == 0 || length > kMaxPlainLength) not_plain.push_back(id);
  }
  ranks_.resize(static_cast<std::size_t>(vocab_size));
  for (std::size_t i = 0; i < sorted.size(); ++i) ranks_[static_cast<std::size_t>(sorted[i])] = static_cast<std::uint32_t>(i);
  build(all_, sorted);
  build(not_plain_, not_plain);
}

std::span<const std::uint32_t> Vocabulary::plain_up_to(std::uint32_t length) const {
  TETRAD_CHECK(length > 0, "plain text of no characters");
  return plain_[std::min(length, kMaxPlainLength) - 1];
}

bool Vocabulary::is_added(int id) const { return std::binary_search(added_.begin(), added_.end(), id); }

void Vocabulary::build(Tree& tree, const std::vector<int>& ids) const {
  std::vector<std::size_t> open;  // nodes from the root to the last
  std::string_view before;
  const auto close_to = [&](std::size_t depth) {
    for (; open.size() > depth; open.pop_back()) tree.nodes[open.back()].end = static_cast<std::uint32_t>(tree.nodes.size());
  };
  for (const int id : ids) {
    const std::string_view token = token_bytes(id);
    const auto common =
        static_cast<std::size_t>(std::mismatch(token.begin(), token.end(), before.begin(), before.end()).first - token.begin());
    close_to(common);
    for (std::size_t depth = common; depth < token.size(); ++depth) {
      open.push_back(tree.nodes.size());
      tree.nodes.push_back(
          {0, static_cast<std::uint32_t>(tree.ids.size()), static_cast<std::uint16_t>(depth + 1), static_cast<std::uint8_t>(token[depth])});
    }
    tree.ids.push_back(id);
    before = token;
  }
  close_to(0);
  tree.nodes.push_back({static_cast<std::uint32_t>(tree.nodes.size() + 1), static_cast<std::uint32_t>(tree.ids.size()), 1, 0});
}

}  // namespace tetrad::grammar
