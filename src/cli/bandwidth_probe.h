// Measures how fast the threads of this machine read memory, which limits memory-bound work.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/thread_pool.h"
#include "tensor/buffer.h"

namespace hadal::cli {

// Returns how many bytes to read on a machine whose last-level caches have `cache_bytes` in total: four times
// as many, so that almost nothing is read from a cache, but at least 1 GiB and at most 4 GiB.
size_t probe_bytes(size_t cache_bytes);
// Returns the total size of this machine's last-level caches in bytes, or 0 if the system does not report it.
size_t last_level_cache_bytes();

// BandwidthProbe lets all threads of the pool read a buffer that is much larger than the caches. The load of
// a shared machine changes, so the bandwidth is measured again for every row of the report, and the best
// result counts.
class BandwidthProbe {
 public:
  // The constructor throws hadal::Error if there is not enough memory.
  BandwidthProbe(ThreadPool& pool, size_t size_bytes);

  // Reads the memory up to five more times, but begins no further pass after `max_seconds`. Returns the best
  // of all passes so far, in bytes per second.
  double measure(double max_seconds = 2.0);
  int num_passes() const { return num_passes_; }  // so far

 private:
  ThreadPool& pool_;
  int64_t num_grains_;
  Buffer buffer_;
  double best_ = 0.0;
  int num_passes_ = 0;
};

}  // namespace hadal::cli
