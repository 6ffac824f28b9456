// Makes the salts of the prefix cache from a request's field and its key's name. All functions are pure.
#pragma once

#include <string_view>

#include "engine/engine.h"
#include "server/json/json_fields.h"

namespace hadal::server {

inline constexpr size_t kMaxCacheSaltBytes = 256;

// Reads vLLM's field `name`, a string of 1 to kMaxCacheSaltBytes bytes. There is no salt when the field is
// absent.
void read_cache_salt(FieldReader& reader, std::string_view name, CacheSalt& salt);

// Returns the salt of a request with `salt` whose key is called `key_name`, so that each key has prefixes of
// its own. Without a name it returns `salt`.
CacheSalt salt_of_key(std::string_view key_name, const CacheSalt& salt);

}  // namespace hadal::server
