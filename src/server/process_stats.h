// Reads the operating system's figures about this process.
#pragma once

#include <dirent.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>

namespace hadal::server {

struct ProcessStats {
  double start_time_s = 0;  // since 1970
  double cpu_s = 0;         // of all threads, in user and system mode
  int64_t resident_bytes = 0;
  int64_t virtual_bytes = 0;
  int64_t open_descriptors = 0;
  int64_t max_descriptors = 0;  // the soft limit; -1: none
};

// ProcessReader keeps two descriptors open, so that it can read even when the process may open no more files.
// Any thread may call it.
class ProcessReader {
 public:
  ProcessReader();
  ~ProcessReader();
  ProcessReader(const ProcessReader&) = delete;
  ProcessReader& operator=(const ProcessReader&) = delete;

  // Fields that /proc does not provide stay 0. Since Linux 6.2 the cost does not grow with the number of
  // descriptors. An older kernel must list them, so above a thousand the number is up to five seconds old.
  ProcessStats read();
  // Counts the open descriptors by listing them; 0 if /proc could not be opened.
  int64_t list_descriptors();

 private:
  struct CloseDirectory {
    void operator()(DIR* directory) const { ::closedir(directory); }
  };

  void read_stat(ProcessStats& out) const;
  int64_t count_descriptors();

  const int stat_;  // /proc/self/stat; -1: it could not be opened
  std::mutex mutex_;
  const std::unique_ptr<DIR, CloseDirectory>
      descriptors_;  // /proc/self/fd; its position is guarded by mutex_
  double start_time_s_ = 0;
  int64_t num_listed_ = 0;                             // guarded by mutex_
  std::chrono::steady_clock::time_point listed_at_{};  // guarded by mutex_
};

}  // namespace hadal::server
