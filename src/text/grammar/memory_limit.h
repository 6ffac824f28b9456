// Limits the memory that a thread holds during a piece of work whose needs nobody can tell beforehand, such
// as compiling a client's grammar with a library. counted_new.cpp replaces operator new and delete to count
// it.
#pragma once

#include <cstdint>
#include <new>

// AddressSanitizer has its own operator new, which is kept, so that there is no limit in such a build.
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

// While an object lives, operator new throws MemoryLimitError in this thread when what the thread has
// allocated since then and not freed would exceed `bytes`. `look`, if not null, is called before each
// allocation and may throw. Objects do not nest.
class MemoryLimit {
 public:
  explicit MemoryLimit(int64_t bytes, void (*look)() = nullptr);
  ~MemoryLimit();
  MemoryLimit(const MemoryLimit&) = delete;
  MemoryLimit& operator=(const MemoryLimit&) = delete;

  // Returns what the thread may still allocate, in bytes.
  int64_t left_bytes() const;
  // Returns the most bytes that were held at once, up to now.
  int64_t peak_bytes() const;

 private:
  const int64_t bytes_;
};

// This is a thread's count, for counted_new.cpp.
struct AllocationCount {
  bool is_active = false;
  int64_t left_bytes = 0;
  int64_t least_left_bytes = 0;
  void (*look)() = nullptr;
};
extern constinit thread_local AllocationCount allocation_count;

}  // namespace hadal
