// Tells how much memory the system could still give, which decides what fits.
#pragma once

#include <cstddef>
#include <optional>

namespace hadal {

// Returns MemAvailable of /proc/meminfo in bytes: free memory plus caches that can be dropped. Returns
// nullopt when it cannot be read.
std::optional<size_t> available_memory_bytes();

// Returns all memory that this process can have, in bytes: that of the machine, or the limit of its control
// group if that is lower. Returns nullopt when it cannot be read.
std::optional<size_t> total_memory_bytes();

}  // namespace hadal
