// At what clock the multiprocessors ran between two points of a stream. Free of CUDA headers.
#pragma once

#include "tensor/cuda.h"

namespace hadal::bench {

// Of up to `most` intervals; one thread, one stream. Between begin() and end() of an interval goes what is to
// be measured.
class SmClock {
 public:
  explicit SmClock(int most);

  // Keeps the stream busy for `hold_us`, in which the host can queue what follows, and stamps.
  void begin(StreamHandle stream, int interval, int hold_us);
  void end(StreamHandle stream, int interval);
  // The mean over all multiprocessors and the first `count` intervals. Waits for the stream.
  double mhz(CudaStream& stream, int count) const;

 private:
  int num_sms_;
  DeviceBuffer stamps_;  // [most][begin, end][num_sms] of {clock, nanoseconds}
};

}  // namespace hadal::bench
