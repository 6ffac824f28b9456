// The ceiling of memory-bound work on this machine: how fast its threads read memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/thread_pool.h"
#include "tensor/buffer.h"

namespace hadal::cli {

// Streaming reads by all threads of the pool over memory far larger than the caches. Neighbours on a shared
// machine come and go, so the ceiling is measured again beside every row and the best reading counts.
class BandwidthProbe {
 public:
  // Throws hadal::Error when the memory cannot be had.
  BandwidthProbe(ThreadPool& pool, size_t size_bytes);

  // Takes the best of five more readings and returns the best of all so far, bytes a second.
  double measure();

 private:
  ThreadPool& pool_;
  int64_t num_grains_;
  Buffer buffer_;
  double best_ = 0.0;
};

}  // namespace hadal::cli
