// Holds the keys that open the server. They can be replaced while requests are checked.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/result.h"

namespace hadal::server {

struct ApiKey {
  std::string name;  // the client's name in logs and budgets; empty: the client is its address
  std::string key;
};

// This is the admin key's name in the audit log. No key of a file may have it.
inline constexpr std::string_view kAdminKeyName = "admin";

// Reads the text of a key file: one key per line, as "name key" or "key"; '#' begins a comment line. A key
// without a name is called line<N>. Errors (kInvalidArgument) name the line, never the key. The mistakes are
// three words in a line, a name or key that is too long or not printable ASCII, the name of the admin key, a
// key that occurs twice, and no key at all.
Result<std::vector<ApiKey>> parse_key_file(std::string_view text);
// Reads such a file. The errors are those of read_text_file, and kDataLoss for what parse_key_file refuses.
Result<std::vector<ApiKey>> load_key_file(const std::string& path);

class KeyRing {
 public:
  // Without `keys` and `admin_key` every request is admitted.
  KeyRing(std::vector<ApiKey> keys, std::string admin_key);

  enum class Rights { kNone, kUser, kAdmin };
  struct Match {
    Rights rights = Rights::kNone;
    std::string name;  // the key's name
  };
  // Looks up a client's key by its digest. So the cost does not grow with the number of keys, and the time
  // does not reveal how similar `given` is to a key.
  Match find(std::string_view given) const;
  bool needs_key() const;  // for ordinary requests
  bool has_admin_key() const { return has_admin_key_; }

  // Exchanges all keys but the admin key. Any thread may call it.
  void replace(std::vector<ApiKey> keys);

 private:
  using Digest = std::array<uint8_t, 32>;
  struct Entry {
    Digest digest;
    std::string name;
  };
  using Entries = std::unordered_multimap<uint64_t, Entry>;  // by the first bytes of the digest
  static uint64_t prefix_of(const Digest& digest);
  static Digest digest_of(std::string_view key);
  static std::shared_ptr<const Entries> make_entries(const std::vector<ApiKey>& keys);
  std::shared_ptr<const Entries> entries() const;

  mutable std::mutex mutex_;
  std::shared_ptr<const Entries> entries_;  // guarded by mutex_; what it points at never changes
  const bool has_admin_key_;
  const Digest admin_;
};

}  // namespace hadal::server
