// Replaces operator new and delete by versions that count for MemoryLimit. In threads without a limit, each
// call costs one additional read of a thread-local variable.
#include <malloc.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <new>

#include "text/grammar/memory_limit.h"

namespace {

using hadal::allocation_count;

void* allocate_uncounted(size_t bytes, size_t alignment) {
  for (;;) {
    void* memory =
        alignment <= alignof(std::max_align_t)
            ? std::malloc(std::max<size_t>(bytes, 1))
            : std::aligned_alloc(alignment, (std::max<size_t>(bytes, 1) + alignment - 1) & -alignment);
    if (memory != nullptr) return memory;
    const std::new_handler handler = std::get_new_handler();
    if (handler == nullptr) throw std::bad_alloc();
    handler();
  }
}

void* allocate_counted(size_t bytes, size_t alignment) {
  auto& count = allocation_count;
  if (count.look != nullptr) count.look();
  void* memory = allocate_uncounted(bytes, alignment);
  const auto size = static_cast<int64_t>(malloc_usable_size(memory));
  if (size > count.left_bytes) {
    std::free(memory);
    throw hadal::MemoryLimitError();
  }
  count.left_bytes -= size;
  count.least_left_bytes = std::min(count.least_left_bytes, count.left_bytes);
  return memory;
}

inline void* allocate(size_t bytes, size_t alignment) {
  return allocation_count.is_active ? allocate_counted(bytes, alignment)
                                    : allocate_uncounted(bytes, alignment);
}

inline void release(void* memory) noexcept {
  if (allocation_count.is_active)
    allocation_count.left_bytes += static_cast<int64_t>(malloc_usable_size(memory));  // 0 for null
  std::free(memory);
}

}  // namespace

#if HADAL_COUNTS_MEMORY

// The library's other forms (arrays, without exceptions) call these.
void* operator new(size_t bytes) {
  return allocate(bytes, alignof(std::max_align_t));
}
void* operator new(size_t bytes, std::align_val_t alignment) {
  return allocate(bytes, static_cast<size_t>(alignment));
}
void operator delete(void* memory) noexcept {
  release(memory);
}
void operator delete(void* memory, std::align_val_t) noexcept {
  release(memory);
}
void operator delete(void* memory, size_t) noexcept {
  release(memory);
}
void operator delete(void* memory, size_t, std::align_val_t) noexcept {
  release(memory);
}

#endif
