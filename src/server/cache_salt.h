// The salts of the prefix cache, of what clients send and of who they are. Pure functions.
#pragma once

#include <string_view>

#include "engine/engine.h"
#include "server/json_fields.h"

namespace hadal::server {

inline constexpr size_t kMaxCacheSaltBytes = 256;

// Reads vLLM's field `name`, a string of 1 to kMaxCacheSaltBytes bytes. Absent: no salt.
void read_cache_salt(FieldReader& reader, std::string_view name, CacheSalt& salt);

// Returns the salt of a request with `salt` from the owner of the key `key_name` where each key has prefixes
// of its own. No name: `salt`.
CacheSalt salt_of_key(std::string_view key_name, const CacheSalt& salt);

}  // namespace hadal::server
