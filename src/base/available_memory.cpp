#include "base/available_memory.h"

#include <fstream>
#include <string>

namespace hadal {

std::optional<size_t> available_memory_bytes() {
  std::ifstream file("/proc/meminfo");
  std::string key, unit;
  size_t kilobytes = 0;
  while (file >> key >> kilobytes >> unit) {
    if (key == "MemAvailable:") return kilobytes * 1024;
  }
  return std::nullopt;
}

}  // namespace hadal
