// Reads what the operating system says of this process. Any thread may call it.
#pragma once

#include <cstdint>

namespace hadal::server {

struct ProcessStats {
  double start_time_s = 0;  // since 1970
  double cpu_s = 0;         // of all threads, in user and system mode
  int64_t resident_bytes = 0;
  int64_t virtual_bytes = 0;
  int64_t open_descriptors = 0;
  int64_t max_descriptors = 0;  // the soft limit; -1: none
};

// What /proc does not tell stays 0.
ProcessStats read_process_stats();

}  // namespace hadal::server
