// Loops that wait for other threads. A wait that lasts longer than kSpinDeadlineCycles is a bug, so every
// such loop ends there; the caller decides how, usually by __trap(), which turns a lost arrival into
// an error of the launch instead of a hang.
#pragma once

#include <cstdint>

namespace hadal::cuda {

#ifdef HADAL_SANITIZE_KERNELS
// compute-sanitizer can make a kernel a thousand times slower; a block may then wait minutes for another.
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

// The same for code that holds many waits: instead of the clock it counts calls of done(), which sleeps for
// up to some microseconds itself (mbarrier_try_wait). The limit is reached after some seconds.
template <typename Done, typename Late>
__device__ __forceinline__ void spin_until_in_tries(const Done& done, const Late& late) {
  for (uint32_t tries = 0; !done(); ++tries) {
    if (tries == kSpinTries) late();
  }
}

}  // namespace hadal::cuda
