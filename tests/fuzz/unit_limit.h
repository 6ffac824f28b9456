// Limits the processor time of one input, so that a slow input is a finding and not just fewer inputs a
// second. libFuzzer's -timeout counts the time of the wall clock, which other programs lengthen, so it only
// finds inputs that hang. Memory is limited by scripts/fuzz (-rss_limit_mb, -malloc_limit_mb).
#pragma once

#include <cstdio>
#include <cstdlib>
#include <ctime>

namespace hadal::fuzz {

class UnitLimit {
 public:
  // The build is instrumented, so everything takes several times as long as in a release.
  explicit UnitLimit(double seconds) : seconds_(seconds), begin_(now()) {}
  ~UnitLimit() {
    const double used = now() - begin_;
    if (used <= seconds_) return;
    std::fprintf(stderr, "the input took %.2f s of processor time; at most %g s are allowed\n", used,
                 seconds_);
    std::abort();
  }
  UnitLimit(const UnitLimit&) = delete;
  UnitLimit& operator=(const UnitLimit&) = delete;

 private:
  static double now() {
    timespec time{};
    ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  }

  const double seconds_;
  const double begin_;
};

}  // namespace hadal::fuzz
