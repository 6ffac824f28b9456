// Tells ThreadSanitizer of a whole range of memory at once, where checking each access of a hot loop would be
// most of a test's time: such a function is marked HADAL_UNCHECKED_BY_TSAN and names its ranges itself. In
// other builds nothing is left of this.
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

// The calling thread reads `bytes` from `address`.
inline void tsan_reads([[maybe_unused]] const void* address, [[maybe_unused]] size_t bytes) {
#ifdef __SANITIZE_THREAD__
  __tsan_read_range(const_cast<void*>(address), bytes);
#endif
}

// The calling thread writes `bytes` to `address`.
inline void tsan_writes([[maybe_unused]] void* address, [[maybe_unused]] size_t bytes) {
#ifdef __SANITIZE_THREAD__
  __tsan_write_range(address, bytes);
#endif
}

}  // namespace hadal
