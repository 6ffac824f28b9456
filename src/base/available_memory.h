// Reports the available and the total memory, from which callers decide what fits.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

namespace hadal {

// Returns MemAvailable of /proc/meminfo in bytes: free memory plus caches that can be dropped. Returns
// nullopt when it cannot be read.
std::optional<size_t> available_memory_bytes();

// Returns the most memory that this process can have, in bytes: the machine's memory, or the lowest limit of
// the process's control groups if that is lower. These are its own group and all groups above it, of version
// 1 or 2. Returns nullopt when none of these can be read. `root` is the folder that holds /proc and /sys;
// only tests pass one.
std::optional<size_t> total_memory_bytes(const std::string& root = {});

}  // namespace hadal
