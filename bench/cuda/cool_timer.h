// Measures a call on a card that is not hot from earlier work. After a second of heavy decode an H200 reaches
// its limit of 700 W, its multiprocessors run at 1,515 MHz, and a kernel of 224 us takes 270 us. A rest of
// 50 ms restores the clock, and bursts of 25 ms with equal rests between them never lower it.
#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <thread>
#include <vector>

#include "bench/cuda/graph_timer.h"
#include "bench/cuda/sm_clock.h"

namespace hadal::bench {

struct CoolTime {
  double us = 0.0;   // per call
  double mhz = 0.0;  // clock of the multiprocessors, the mean over the measured time
};

// Returns the calls per graph for a call that takes `once_us` and rotates over `sets` inputs.
// mla_flash_mla.py uses the same number, with the same replays and rests.
inline int cool_calls(double once_us, int sets) {
  return std::max(once_us < 300.0 ? 16 : 12, sets);
}

// Measures calls for one thread and one device.
class CoolTimer {
 public:
  // Returns the median over replays of a graph of `calls` calls, each of about once_us, after two replays
  // that do not count. Before the first replay the card rests three times as long as it was busy for the
  // previous measurement or will be for this one, whichever is longer. The graph is queued after a kernel
  // that blocks the stream, so the time does not include the host's launch.
  CoolTime time(CudaStream& stream, const std::function<void(int)>& call, int calls, double once_us) {
    const CudaGraph graph = graph_of_calls(stream, call, calls);
    const double busy_us = once_us * calls * (kReplays + 2);
    const double rest_s = 3e-6 * std::max(busy_us, last_busy_us_);
    last_busy_us_ = busy_us;
    std::this_thread::sleep_for(std::chrono::duration<double>(std::clamp(rest_s, 0.005, 0.3)));
    std::vector<double> times;
    for (int replay = -2; replay < kReplays; ++replay) {
      CudaEvent begin(true);
      CudaEvent end(true);
      clock_.begin(stream.handle(), std::max(replay, 0), kHoldMicroseconds);
      begin.record(stream.handle());
      graph.launch(stream.handle());
      end.record(stream.handle());
      clock_.end(stream.handle(), std::max(replay, 0));
      end.wait();
      if (replay >= 0) times.push_back(static_cast<double>(end.ms_since(begin)) * 1e3 / calls);
    }
    std::sort(times.begin(), times.end());
    return {times[times.size() / 2], clock_.mhz(stream, kReplays)};
  }

 private:
  static constexpr int kReplays = 5;
  static constexpr int kHoldMicroseconds = 100;  // longer than the host needs to launch a graph

  SmClock clock_{kReplays};
  double last_busy_us_ = 0.0;
};

}  // namespace hadal::bench
