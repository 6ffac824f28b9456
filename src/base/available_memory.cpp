#include "base/available_memory.h"

#include <algorithm>
#include <fstream>
#include <string>
#include <string_view>

namespace hadal {
namespace {

std::optional<size_t> from_meminfo(std::string_view wanted, const std::string& root = {}) {
  std::ifstream file(root + "/proc/meminfo");
  std::string key, unit;
  size_t kilobytes = 0;
  while (file >> key >> kilobytes >> unit) {
    if (key == wanted) return kilobytes * 1024;
  }
  return std::nullopt;
}

void lower_to(std::optional<size_t>& total, size_t limit) {
  total = total ? std::min(*total, limit) : limit;
}

// Lowers `total` to the lowest limit of the group `path` and of the groups above it, up to the mount point.
void apply_limits(const std::string& mount, std::string path, const char* file,
                  std::optional<size_t>& total) {
  while (path.ends_with('/')) path.pop_back();
  while (true) {
    // Without a limit the file has the word "max" or a very large number.
    size_t limit = 0;
    if (std::ifstream(mount + path + "/" + file) >> limit && limit > 0) lower_to(total, limit);
    if (path.empty()) return;
    const size_t slash = path.rfind('/');
    path.erase(slash == path.npos ? 0 : slash);
  }
}

// Tells whether a list of controllers like "cpu,memory" contains the memory controller.
bool has_memory(std::string_view controllers) {
  while (true) {
    const size_t comma = std::min(controllers.find(','), controllers.size());
    if (controllers.substr(0, comma) == "memory") return true;
    if (comma == controllers.size()) return false;
    controllers.remove_prefix(comma + 1);
  }
}

}  // namespace

std::optional<size_t> available_memory_bytes() {
  return from_meminfo("MemAvailable:");
}

std::optional<size_t> total_memory_bytes(const std::string& root) {
  std::optional<size_t> total = from_meminfo("MemTotal:", root);
  const std::string mount = root + "/sys/fs/cgroup";
  // In a container, the mount point often is the container's own group, whatever the path in /proc says.
  std::string v2, v1;
  std::ifstream groups(root + "/proc/self/cgroup");
  // A line is "number:controllers:path"; version 2 has the number 0 and no controllers.
  for (std::string line; std::getline(groups, line);) {
    const size_t first = line.find(':');
    const size_t second = first == line.npos ? line.npos : line.find(':', first + 1);
    if (second == line.npos) continue;
    const std::string_view controllers = std::string_view(line).substr(first + 1, second - first - 1);
    if (line.starts_with("0::")) v2 = line.substr(second + 1);
    if (has_memory(controllers)) v1 = line.substr(second + 1);
  }
  apply_limits(mount, v2, "memory.max", total);
  apply_limits(mount + "/memory", v1, "memory.limit_in_bytes", total);
  return total;
}

}  // namespace hadal
