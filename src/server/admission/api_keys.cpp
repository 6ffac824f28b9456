#include "server/admission/api_keys.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <set>
#include <utility>

#include "base/mapped_file.h"
#include "base/printable.h"

namespace hadal::server {
namespace {

constexpr size_t kMaxKeys = 10'000;
constexpr size_t kMaxKeyBytes = 1024;
constexpr size_t kMaxNameBytes = 64;
constexpr size_t kMaxFileBytes = size_t{16} << 20;

std::vector<std::string_view> words_of(std::string_view line) {
  std::vector<std::string_view> words;
  constexpr std::string_view kSpace = " \t\r";
  for (size_t at = line.find_first_not_of(kSpace); at != line.npos; at = line.find_first_not_of(kSpace, at)) {
    const size_t end = std::min(line.find_first_of(kSpace, at), line.size());
    words.push_back(line.substr(at, end - at));
    at = end;
  }
  return words;
}

}  // namespace

Result<std::vector<ApiKey>> parse_key_file(std::string_view text) {
  std::vector<ApiKey> keys;
  std::set<std::string_view> seen;
  for (int number = 1; !text.empty(); ++number) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::vector<std::string_view> words = words_of(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    if (words.empty() || words[0].starts_with('#')) continue;
    if (words.size() > 2)
      return invalid_argument("line {} has {} words; must be a key, or a name and a key", number,
                              words.size());
    const std::string_view key = words.back();
    const std::string name = words.size() == 2 ? std::string(words[0]) : fmt::format("line{}", number);
    if (key.size() > kMaxKeyBytes || !is_visible_ascii(key))
      return invalid_argument("line {}: the key must be at most {} printable ASCII characters", number,
                              kMaxKeyBytes);
    if (name.size() > kMaxNameBytes || !is_visible_ascii(name))
      return invalid_argument("line {}: the name must be at most {} printable ASCII characters", number,
                              kMaxNameBytes);
    if (name == kAdminKeyName)
      return invalid_argument("line {}: the name is {}; must be another, because the admin key has this one",
                              number, name);
    if (!seen.insert(key).second)
      return invalid_argument("line {} repeats the key of an earlier line", number);
    if (keys.size() >= kMaxKeys)
      return invalid_argument("the file has more than {0} keys; at most {0} are allowed", kMaxKeys);
    keys.push_back({name, std::string(key)});
  }
  if (keys.empty()) return invalid_argument("the file has no key; must have at least one line with a key");
  return keys;
}

Result<std::vector<ApiKey>> load_key_file(const std::string& path) {
  auto file = read_text_file(path, kMaxFileBytes);
  if (!file.ok()) return make_status(file.status().code, "key file {}", file.status().message);
  std::string text = std::move(file).value();
  auto keys = parse_key_file(text);
  OPENSSL_cleanse(text.data(), text.size());
  if (!keys.ok()) return data_loss("key file '{}': {}", path, keys.status().message);
  return keys;
}

KeyRing::KeyRing(std::vector<ApiKey> keys, std::string admin_key)
    : entries_(make_entries(keys)), has_admin_key_(!admin_key.empty()), admin_(digest_of(admin_key)) {}

KeyRing::Digest KeyRing::digest_of(std::string_view key) {
  Digest digest;
  ::SHA256(reinterpret_cast<const unsigned char*>(key.data()), key.size(), digest.data());
  return digest;
}

uint64_t KeyRing::prefix_of(const Digest& digest) {
  uint64_t prefix = 0;
  std::memcpy(&prefix, digest.data(), sizeof(prefix));
  return prefix;
}

std::shared_ptr<const KeyRing::Entries> KeyRing::make_entries(const std::vector<ApiKey>& keys) {
  auto entries = std::make_shared<Entries>();
  entries->reserve(keys.size());
  for (const ApiKey& key : keys) {
    const Digest digest = digest_of(key.key);
    entries->emplace(prefix_of(digest), Entry{digest, key.name});
  }
  return entries;
}

std::shared_ptr<const KeyRing::Entries> KeyRing::entries() const {
  const std::lock_guard lock(mutex_);
  return entries_;
}

bool KeyRing::needs_key() const {
  return !entries()->empty();
}

KeyRing::Match KeyRing::find(std::string_view given) const {
  if (given.empty() || given.size() > kMaxKeyBytes) return {};
  const Digest digest = digest_of(given);
  const bool admin = has_admin_key_ && CRYPTO_memcmp(digest.data(), admin_.data(), digest.size()) == 0;
  const auto entries = this->entries();
  const Entry* found = nullptr;
  const auto [begin, end] = entries->equal_range(prefix_of(digest));
  for (auto it = begin; it != end; ++it)
    if (CRYPTO_memcmp(digest.data(), it->second.digest.data(), digest.size()) == 0) found = &it->second;
  if (admin) return {Rights::kAdmin, {}};
  if (found != nullptr) return {Rights::kUser, found->name};
  return {};
}

void KeyRing::replace(std::vector<ApiKey> keys) {
  auto entries = make_entries(keys);
  const std::lock_guard lock(mutex_);
  entries_ = std::move(entries);
}

}  // namespace hadal::server
