#include "text/grammar/memory_limit.h"

namespace hadal {

constinit thread_local AllocationCount allocation_count;

MemoryLimit::MemoryLimit(int64_t bytes, void (*look)()) : bytes_(bytes) {
  allocation_count = {.is_active = true, .left_bytes = bytes, .least_left_bytes = bytes, .look = look};
}

MemoryLimit::~MemoryLimit() {
  allocation_count = {};
}

int64_t MemoryLimit::left_bytes() const {
  return allocation_count.left_bytes;
}

int64_t MemoryLimit::peak_bytes() const {
  return bytes_ - allocation_count.least_left_bytes;
}

}  // namespace hadal
