// Measures the time of every op of one eager step with events around it. Only the engine thread may use it.
#pragma once

#include <vector>

#include "engine/step_executor.h"
#include "model/cuda/device_decoder.h"

namespace hadal {

class OpProfile final : public OpObserver {
 public:
  explicit OpProfile(StreamHandle stream) : stream_(stream) {}

  void begin(const char* name, double bytes, double flops) override;
  void end() override;

  // Call this when the step has ended. It returns the total of all calls of each name, in the order of their
  // first call.
  std::vector<OpTiming> timings() const;

 private:
  struct Call {
    const char* name;
    double bytes, flops;
    CudaEvent begin{true}, end{true};
  };
  const StreamHandle stream_;
  std::vector<Call> calls_;
};

}  // namespace hadal
