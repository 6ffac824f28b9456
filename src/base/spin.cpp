#include "base/spin.h"

#include <sched.h>

#include <algorithm>

namespace hadal {

// hardware_concurrency may respect taskset and cgroup cpusets only as they were at start; sched_getaffinity
// returns the cores of this moment.
int available_cores() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

}  // namespace hadal
