#include "server/admission/cache_salt.h"

#include <openssl/sha.h>

#include <array>
#include <cstring>
#include <optional>
#include <string>

namespace hadal::server {
namespace {

// Hashes with SHA-256, so that nobody can find a second text with the same salt. The first byte separates the
// two uses.
CacheSalt hash(char use, std::string_view text) {
  const std::string whole = use + std::string(text);
  std::array<unsigned char, SHA256_DIGEST_LENGTH> digest;
  ::SHA256(reinterpret_cast<const unsigned char*>(whole.data()), whole.size(), digest.data());
  CacheSalt salt;
  std::memcpy(&salt.high, digest.data(), sizeof(salt.high));
  std::memcpy(&salt.low, digest.data() + sizeof(salt.high), sizeof(salt.low));
  return salt;
}

}  // namespace

void read_cache_salt(FieldReader& reader, std::string_view name, CacheSalt& salt) {
  std::optional<std::string> text;
  reader.text(name, text);
  if (!text || !reader.ok()) return;
  if (text->empty() || text->size() > kMaxCacheSaltBytes) {
    return reader.fail(name, fmt::format("has {} bytes; must be a string of 1 to {} bytes", text->size(),
                                         kMaxCacheSaltBytes));
  }
  salt = hash('f', *text);
}

CacheSalt salt_of_key(std::string_view key_name, const CacheSalt& salt) {
  if (key_name.empty()) return salt;
  std::string text(sizeof(salt), '\0');
  std::memcpy(text.data(), &salt, sizeof(salt));
  text += key_name;
  return hash('k', text);
}

}  // namespace hadal::server
