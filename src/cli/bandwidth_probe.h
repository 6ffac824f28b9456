// Measures how fast the threads of this machine read memory, which limits memory-bound work.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/thread_pool.h"
#include "tensor/buffer.h"

namespace hadal::cli {

// Returns how many bytes to read where the caches of the last level have `cache_bytes` together: four times
// as many, so that almost nothing is read from them again, but at least 1 GiB and at most 4 GiB.
size_t probe_bytes(size_t cache_bytes);
// Returns the bytes of all caches of the last level of this machine, each counted once; 0 if it does not
// tell.
size_t last_level_cache_bytes();

// BandwidthProbe lets all threads of the pool read memory that is much larger than the caches. The load of a
// shared machine changes, so the bandwidth is measured again for every row, and the best result counts.
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
