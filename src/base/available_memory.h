// Tells how much memory the system could still give, which decides what fits.
#pragma once

#include <cstddef>
#include <optional>

namespace hadal {

// Returns MemAvailable of /proc/meminfo in bytes: free memory plus caches that can be dropped. Returns
// nullopt when it cannot be read.
std::optional<size_t> available_memory_bytes();

}  // namespace hadal
