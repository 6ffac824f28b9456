// Measures how fast the threads of this machine read memory, which limits memory-bound work.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/thread_pool.h"
#include "tensor/buffer.h"

namespace hadal::cli {

// BandwidthProbe lets all threads of the pool read memory that is much larger than the caches. The load of a
// shared machine changes, so the bandwidth is measured again for every row, and the best result counts.
class BandwidthProbe {
 public:
  // The constructor throws hadal::Error if there is not enough memory.
  BandwidthProbe(ThreadPool& pool, size_t size_bytes);

  // Measures five more times and returns the best of all results so far, in bytes per second.
  double measure();

 private:
  ThreadPool& pool_;
  int64_t num_grains_;
  Buffer buffer_;
  double best_ = 0.0;
};

}  // namespace hadal::cli
