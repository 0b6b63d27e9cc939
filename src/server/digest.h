#pragma once
// SHA-256, for keys that must not collide whatever clients send.
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

namespace tetrad {

using Digest = std::array<unsigned char, 32>;

class DigestBuilder {
 public:
  DigestBuilder();
  DigestBuilder(const DigestBuilder& other);
  DigestBuilder& operator=(const DigestBuilder&) = delete;
  ~DigestBuilder();

  DigestBuilder& add(std::string_view bytes);        // with its length: "ab", "c" is not "a", "bc"
  DigestBuilder& add_ids(std::span<const int> ids);  // without: pieces make the digest of the whole
  Digest digest() const;                             // of what was added so far; more may follow

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

struct DigestHash {
  std::size_t operator()(const Digest& digest) const;
};

}  // namespace tetrad
