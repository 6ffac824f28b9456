// Reports a whole range of memory to ThreadSanitizer at once, because checking each access of a hot loop
// would take most of a test's time. A function with such a loop is marked HADAL_UNCHECKED_BY_TSAN and reports
// its ranges itself. In other builds these functions do nothing.
#pragma once

#include <cstddef>

#ifdef __SANITIZE_THREAD__
extern "C" void __tsan_read_range(void* address, unsigned long bytes);
extern "C" void __tsan_write_range(void* address, unsigned long bytes);
#define HADAL_UNCHECKED_BY_TSAN __attribute__((no_sanitize("thread")))
#else
#define HADAL_UNCHECKED_BY_TSAN
#endif

namespace hadal {

// Reports that the calling thread reads `bytes` bytes from `address` on.
inline void tsan_reads([[maybe_unused]] const void* address, [[maybe_unused]] size_t bytes) {
#ifdef __SANITIZE_THREAD__
  __tsan_read_range(const_cast<void*>(address), bytes);
#endif
}

// Reports that the calling thread writes `bytes` bytes from `address` on.
inline void tsan_writes([[maybe_unused]] void* address, [[maybe_unused]] size_t bytes) {
#ifdef __SANITIZE_THREAD__
  __tsan_write_range(address, bytes);
#endif
}

}  // namespace hadal
