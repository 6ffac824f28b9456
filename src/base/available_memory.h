// Tells how much memory the system could still give, which decides what fits.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

namespace hadal {

// Returns MemAvailable of /proc/meminfo in bytes: free memory plus caches that can be dropped. Returns
// nullopt when it cannot be read.
std::optional<size_t> available_memory_bytes();

// Returns all memory that this process can have, in bytes: that of the machine, or the lowest limit of its
// control groups (its own and all above it, of version 1 or 2) if that is lower. Returns nullopt when none of
// them can be read. Tests give another `root` than "", below which /proc and /sys are looked for.
std::optional<size_t> total_memory_bytes(const std::string& root = {});

}  // namespace hadal
