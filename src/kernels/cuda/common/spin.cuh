// Holds loops that wait for other threads. A wait that lasts longer than kSpinDeadlineCycles is a bug, so
// every such loop ends at this deadline. The caller decides how it ends, usually by __trap(), which turns a
// lost arrival into a launch error instead of a hang.
#pragma once

#include <cstdint>

namespace hadal::cuda {

#ifdef HADAL_SANITIZE_KERNELS
// compute-sanitizer can make a kernel a thousand times slower; a block may then wait for another block for
// minutes.
inline constexpr long long kSpinDeadlineCycles = 1'000'000'000'000LL;  // about eight minutes
inline constexpr uint32_t kSpinTries = 1U << 30;
#else
inline constexpr long long kSpinDeadlineCycles = 20'000'000'000LL;  // about ten seconds
inline constexpr uint32_t kSpinTries = 1U << 22;
#endif

class SpinDeadline {
 public:
  __device__ __forceinline__ SpinDeadline() { begin_ = clock64(); }
  __device__ __forceinline__ bool has_passed() const { return clock64() - begin_ > kSpinDeadlineCycles; }

 private:
  long long begin_;
};

// Returns once done() is true. Calls late() each time done() is false after the deadline.
template <typename Done, typename Late>
__device__ __forceinline__ void spin_until(const Done& done, const Late& late) {
  if (done()) return;
  const SpinDeadline deadline;
  while (!done()) {
    if (deadline.has_passed()) late();
  }
}

// Does the same for code that contains many waits. It counts calls of done() instead of reading the clock.
// done() must itself sleep for up to a few microseconds (mbarrier_try_wait), so the limit is reached after
// some seconds.
template <typename Done, typename Late>
__device__ __forceinline__ void spin_until_in_tries(const Done& done, const Late& late) {
  for (uint32_t tries = 0; !done(); ++tries) {
    if (tries == kSpinTries) late();
  }
}

}  // namespace hadal::cuda
