// Measures the speed of a download over the last seconds, and formats it for users. One thread uses an
// object.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <string>

namespace hadal::hub {

class TransferRate {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // Notes how many bytes have arrived at this time. Times must not decrease.
  void note(Time now, int64_t bytes);

  // Returns the mean rate of the last ten seconds, or since the first note; 0 while it is unknown.
  double bytes_per_s() const;

 private:
  struct Sample {
    Time time;
    int64_t bytes;
  };
  std::deque<Sample> samples_;
};

// Returns "3.2 of 12.0 GB at 512 MB/s". GB and MB are powers of ten, as on the hub's pages. The rate is left
// out while it is 0.
std::string describe_progress(int64_t done_bytes, int64_t total_bytes, double bytes_per_s);

}  // namespace hadal::hub
