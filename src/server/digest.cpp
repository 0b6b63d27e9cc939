#include "server/digest.h"

#include <openssl/evp.h>

#include <cstring>

#include "base/error.h"

namespace tetrad {

struct DigestBuilder::Impl {
  EVP_MD_CTX* context = EVP_MD_CTX_new();

  ~Impl() { EVP_MD_CTX_free(context); }
  void add(const void* bytes, std::size_t size) const {
    TETRAD_CHECK(EVP_DigestUpdate(context, bytes, size) == 1, "SHA-256 of {} bytes failed", size);
  }
};

DigestBuilder::DigestBuilder() : impl_(std::make_unique<Impl>()) {
  TETRAD_CHECK(impl_->context != nullptr && EVP_DigestInit_ex(impl_->context, EVP_sha256(), nullptr) == 1, "SHA-256 is not to be had");
}

DigestBuilder::DigestBuilder(const DigestBuilder& other) : impl_(std::make_unique<Impl>()) {
  TETRAD_CHECK(impl_->context != nullptr && EVP_MD_CTX_copy_ex(impl_->context, other.impl_->context) == 1, "SHA-256 cannot be copied");
}

DigestBuilder::~DigestBuilder() = default;

DigestBuilder& DigestBuilder::add(std::string_view bytes) {
  const std::uint64_t size = bytes.size();
  impl_->add(&size, sizeof(size));
  impl_->add(bytes.data(), bytes.size());
  return *this;
}

DigestBuilder& DigestBuilder::add_ids(std::span<const int> ids) {
  impl_->add(ids.data(), ids.size_bytes());
  return *this;
}

Digest DigestBuilder::digest() const {
  const DigestBuilder copy(*this);
  Digest digest{};
  TETRAD_CHECK(EVP_DigestFinal_ex(copy.impl_->context, digest.data(), nullptr) == 1, "SHA-256 did not end");
  return digest;
}

std::size_t DigestHash::operator()(const Digest& digest) const {
  std::size_t hash = 0;
  std::memcpy(&hash, digest.data(), sizeof(hash));
  return hash;
}

}  // namespace tetrad
