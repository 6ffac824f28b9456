// How much memory the system could still give, for deciding what fits.
#pragma once

#include <cstddef>
#include <optional>

namespace hadal {

// MemAvailable of /proc/meminfo, bytes: free memory plus caches that can be dropped. nullopt when it cannot
// be read.
std::optional<size_t> available_memory_bytes();

}  // namespace hadal
