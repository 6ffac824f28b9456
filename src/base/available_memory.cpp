#include "base/available_memory.h"

#include <algorithm>
#include <fstream>
#include <string>
#include <string_view>

namespace hadal {
namespace {

std::optional<size_t> from_meminfo(std::string_view wanted) {
  std::ifstream file("/proc/meminfo");
  std::string key, unit;
  size_t kilobytes = 0;
  while (file >> key >> kilobytes >> unit) {
    if (key == wanted) return kilobytes * 1024;
  }
  return std::nullopt;
}

}  // namespace

std::optional<size_t> available_memory_bytes() {
  return from_meminfo("MemAvailable:");
}

std::optional<size_t> total_memory_bytes() {
  std::optional<size_t> total = from_meminfo("MemTotal:");
  // These are the files of control groups of versions 2 and 1; without a limit they have the word "max" or a
  // very large number.
  for (const char* path : {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    size_t limit = 0;
    if (std::ifstream(path) >> limit && limit > 0) total = total ? std::min(*total, limit) : limit;
  }
  return total;
}

}  // namespace hadal
