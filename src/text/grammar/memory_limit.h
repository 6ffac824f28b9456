// Limits the memory that a thread holds during work whose needs are not known beforehand, such as compiling a
// client's grammar with a library. counted_new.cpp replaces operator new and delete to count the memory.
#pragma once

#include <cstdint>
#include <new>

// A build with AddressSanitizer has no limit, because it keeps AddressSanitizer's own operator new.
#if defined(__SANITIZE_ADDRESS__)
#define HADAL_COUNTS_MEMORY 0
#elif defined(__has_feature)
#define HADAL_COUNTS_MEMORY !__has_feature(address_sanitizer)
#else
#define HADAL_COUNTS_MEMORY 1
#endif

namespace hadal {

// MemoryLimitError is thrown by the allocation that would exceed a limit.
class MemoryLimitError : public std::bad_alloc {
 public:
  const char* what() const noexcept override { return "the work needs more memory than it may have"; }
};

// While a MemoryLimit lives, operator new throws MemoryLimitError in its thread when the memory that the
// thread has allocated since then and not freed would exceed `bytes`. `look`, if not null, is called before
// each allocation and may throw. Objects do not nest.
class MemoryLimit {
 public:
  explicit MemoryLimit(int64_t bytes, void (*look)() = nullptr);
  ~MemoryLimit();
  MemoryLimit(const MemoryLimit&) = delete;
  MemoryLimit& operator=(const MemoryLimit&) = delete;

  // Returns the number of bytes that the thread may still allocate.
  int64_t left_bytes() const;
  // Returns the most bytes that were held at once, up to now.
  int64_t peak_bytes() const;

 private:
  const int64_t bytes_;
};

// AllocationCount is the count of one thread, which counted_new.cpp updates.
struct AllocationCount {
  bool is_active = false;
  int64_t left_bytes = 0;
  int64_t least_left_bytes = 0;
  void (*look)() = nullptr;
};
extern constinit thread_local AllocationCount allocation_count;

}  // namespace hadal
