#include "base/spin.h"

#include <sched.h>

#include <algorithm>

namespace hadal {

// hardware_concurrency may reflect taskset and cgroup cpusets as they were when the process started;
// sched_getaffinity returns the cores that are allowed now.
int available_cores() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

}  // namespace hadal
