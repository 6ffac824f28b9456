// Measures the clock of the multiprocessors between two points of a stream. This header includes no CUDA
// header.
#pragma once

#include "tensor/cuda.h"

namespace hadal::bench {

// Measures up to `most` intervals for one thread and one stream. The measured work goes between begin() and
// end() of an interval.
class SmClock {
 public:
  explicit SmClock(int most);

  // Keeps the stream busy for `hold_us`, during which the host can queue the work, and stamps.
  void begin(StreamHandle stream, int interval, int hold_us);
  void end(StreamHandle stream, int interval);
  // Returns the mean over all multiprocessors and the first `count` intervals. Waits for the stream.
  double mhz(CudaStream& stream, int count) const;

 private:
  int num_sms_;
  DeviceBuffer stamps_;  // [most][begin, end][num_sms] of {clock, nanoseconds}
};

}  // namespace hadal::bench
