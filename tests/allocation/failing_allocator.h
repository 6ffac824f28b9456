// This binary's operator new fails where a test says so, and counts what is allocated.
#pragma once

#include <cstddef>
#include <cstdint>

namespace hadal::testing {

enum class Victims {
  kAll,     // every thread and piece of code that is not exempt
  kMarked,  // only marked threads
};

enum class Failure {
  // The allocation fails as in production: the handler of failed allocations may free memory, and the call is
  // tried again.
  kWithHandler,
  kAtOnce,  // std::bad_alloc, as if the reserve had been used up
};

// Makes the k-th call from now on fail (k from 1), once.
void fail_allocation(int64_t k, Victims victims, Failure failure);
// Stops failing, and returns whether a call has failed since fail_allocation.
bool stop_failing();

// Makes the present thread a victim of Victims::kMarked.
void mark_this_thread();

// While an Exempt lives, allocations of this thread do not fail and are not counted as calls.
class Exempt {
 public:
  Exempt();
  ~Exempt();
  Exempt(const Exempt&) = delete;
  Exempt& operator=(const Exempt&) = delete;
};

// These return the bytes that are allocated and not yet freed, and their peak since reset_peak.
int64_t live_bytes();
int64_t peak_bytes();
void reset_peak();

}  // namespace hadal::testing
