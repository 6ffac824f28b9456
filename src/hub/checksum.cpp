#include "hub/checksum.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include "base/check.h"

namespace hadal::hub {

struct Checksum::Context {
  EVP_MD_CTX* digest = EVP_MD_CTX_new();
  ~Context() { EVP_MD_CTX_free(digest); }
};

Checksum::Checksum(const std::string& wanted, int64_t size) : context_(std::make_unique<Context>()) {
  const bool is_sha256 = wanted.size() == 64;
  HADAL_CHECK(EVP_DigestInit_ex(context_->digest, is_sha256 ? EVP_sha256() : EVP_sha1(), nullptr) == 1);
  if (is_sha256) return;
  const std::string header = fmt::format("blob {}", size);
  add(std::as_bytes(std::span(header.c_str(), header.size() + 1)));
}

Checksum::~Checksum() = default;
Checksum::Checksum(Checksum&&) noexcept = default;
Checksum& Checksum::operator=(Checksum&&) noexcept = default;

void Checksum::add(std::span<const std::byte> piece) {
  HADAL_CHECK(EVP_DigestUpdate(context_->digest, piece.data(), piece.size()) == 1);
}

std::string Checksum::finish() {
  unsigned char bytes[EVP_MAX_MD_SIZE];
  unsigned int count = 0;
  HADAL_CHECK(EVP_DigestFinal_ex(context_->digest, bytes, &count) == 1);
  std::string digits;
  for (unsigned int i = 0; i < count; ++i) digits += fmt::format("{:02x}", bytes[i]);
  return digits;
}

}  // namespace hadal::hub
