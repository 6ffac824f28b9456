// The ceiling of memory-bound work on this machine: how fast its threads read memory.
#pragma once

#include <cstddef>

#include "base/thread_pool.h"

namespace hadal::cli {

// Bytes a second of the best of five streaming reads, by all threads of the pool, over `size_bytes` of memory
// (far more than the caches hold). Throws hadal::Error when the memory cannot be had.
double read_bandwidth(ThreadPool& pool, size_t size_bytes);

}  // namespace hadal::cli
