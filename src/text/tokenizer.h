#pragma once
// Byte-level BPE as tokenizer.json describes it (docs/model.md, "Tokenizer"): added tokens are cut out first (longest match), the rest is
// normalised (NFC), split by the expression stated in the file, and merged. Text is UTF-8; invalid bytes are InputError with their offset.
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tetrad {

class Tokenizer {
 public:
  // Throws LoadError naming the file and the construct that is malformed or not supported.
  static Tokenizer load(const std::filesystem::path& tokenizer_json);
  static Tokenizer parse(std::string_view json, std::string_view where);
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // With added_tokens false, the text of an added token is encoded as ordinary text (user content that must not forge control tokens).
  std::vector<int> encode(std::string_view text, bool added_tokens = true) const;
  // Ids without a token (padding rows of the vocabulary) and ids out of range throw InputError. Incomplete UTF-8 becomes U+FFFD.
  std::string decode(std::span<const int> ids, bool skip_special = false) const;

  std::string_view token_bytes(int id) const;  // raw bytes the token stands for; empty for an id without a token
  bool is_added(int id) const;
  bool is_special(int id) const;  // an added token with special=true
  std::optional<int> added_token(std::string_view content) const;
  int size() const;  // one past the largest id that has a token

 private:
  struct Impl;
  explicit Tokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Turns a stream of ids into text, holding back bytes that do not yet form a whole code point.
class StreamDetokenizer {
 public:
  explicit StreamDetokenizer(const Tokenizer& tokenizer, bool skip_special = false);
  std::string feed(int id);  // the text that became complete
  std::string finish();      // what is left, incomplete bytes as U+FFFD

 private:
  const Tokenizer* tokenizer_;
  bool skip_special_;
  std::string pending_;
};

}  // namespace tetrad
