#include "tests/allocation/failing_allocator.h"

#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>

namespace hadal::testing {
namespace {

std::atomic<bool> armed{false};
std::atomic<int64_t> calls_left{0};
std::atomic<bool> failed{false};
std::atomic<Victims> victims_now{Victims::kAll};
std::atomic<Failure> failure_now{Failure::kWithHandler};
std::atomic<int64_t> live{0};
std::atomic<int64_t> peak{0};
thread_local int exempt_depth = 0;
thread_local bool is_marked = false;

bool fails() {
  if (!armed.load(std::memory_order_relaxed) || exempt_depth > 0) return false;
  if (victims_now.load() == Victims::kMarked && !is_marked) return false;
  if (calls_left.fetch_sub(1) != 1) return false;
  failed = true;
  return true;
}

void* allocate(size_t bytes, size_t alignment) {
  bool fails_now = fails();
  if (fails_now && failure_now.load() == Failure::kAtOnce) throw std::bad_alloc();
  while (true) {
    void* const memory = fails_now ? nullptr
                         : alignment <= alignof(std::max_align_t)
                             ? std::malloc(std::max<size_t>(bytes, 1))
                             : std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
    fails_now = false;
    if (memory != nullptr) {
      const auto size = static_cast<int64_t>(malloc_usable_size(memory));
      const int64_t now = live.fetch_add(size) + size;
      int64_t highest = peak.load();
      while (now > highest && !peak.compare_exchange_weak(highest, now)) {
      }
      return memory;
    }
    const std::new_handler handler = std::get_new_handler();
    if (handler == nullptr) throw std::bad_alloc();
    handler();
  }
}

void* allocate_or_null(size_t bytes, size_t alignment) noexcept {
  try {
    return allocate(bytes, alignment);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

void release(void* memory) noexcept {
  if (memory == nullptr) return;
  live.fetch_sub(static_cast<int64_t>(malloc_usable_size(memory)));
  std::free(memory);
}

}  // namespace

void fail_allocation(int64_t k, Victims victims, Failure failure) {
  armed = false;
  failed = false;
  calls_left = k;
  victims_now = victims;
  failure_now = failure;
  armed = true;
}

bool stop_failing() {
  armed = false;
  return failed;
}

void mark_this_thread() {
  is_marked = true;
}

Exempt::Exempt() {
  ++exempt_depth;
}
Exempt::~Exempt() {
  --exempt_depth;
}

int64_t live_bytes() {
  return live.load();
}
int64_t peak_bytes() {
  return peak.load();
}
void reset_peak() {
  peak = live.load();
}

}  // namespace hadal::testing

void* operator new(size_t bytes) {
  return hadal::testing::allocate(bytes, 1);
}
void* operator new[](size_t bytes) {
  return hadal::testing::allocate(bytes, 1);
}
void* operator new(size_t bytes, std::align_val_t alignment) {
  return hadal::testing::allocate(bytes, static_cast<size_t>(alignment));
}
void* operator new[](size_t bytes, std::align_val_t alignment) {
  return hadal::testing::allocate(bytes, static_cast<size_t>(alignment));
}
// Callers of the form that does not throw, such as std::stable_sort, get the same failures as null pointers.
void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  return hadal::testing::allocate_or_null(bytes, 1);
}
void* operator new[](size_t bytes, const std::nothrow_t&) noexcept {
  return hadal::testing::allocate_or_null(bytes, 1);
}
void* operator new(size_t bytes, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  return hadal::testing::allocate_or_null(bytes, static_cast<size_t>(alignment));
}
void* operator new[](size_t bytes, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  return hadal::testing::allocate_or_null(bytes, static_cast<size_t>(alignment));
}
void operator delete(void* memory) noexcept {
  hadal::testing::release(memory);
}
void operator delete[](void* memory) noexcept {
  hadal::testing::release(memory);
}
void operator delete(void* memory, const std::nothrow_t&) noexcept {
  hadal::testing::release(memory);
}
void operator delete[](void* memory, const std::nothrow_t&) noexcept {
  hadal::testing::release(memory);
}
void operator delete(void* memory, size_t) noexcept {
  hadal::testing::release(memory);
}
void operator delete[](void* memory, size_t) noexcept {
  hadal::testing::release(memory);
}
void operator delete(void* memory, std::align_val_t) noexcept {
  hadal::testing::release(memory);
}
void operator delete[](void* memory, std::align_val_t) noexcept {
  hadal::testing::release(memory);
}
void operator delete(void* memory, size_t, std::align_val_t) noexcept {
  hadal::testing::release(memory);
}
void operator delete[](void* memory, size_t, std::align_val_t) noexcept {
  hadal::testing::release(memory);
}
