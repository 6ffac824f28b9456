#include <cstdint>
#include <vector>

#include "bench/cuda/sm_clock.h"
#include "kernels/cuda/common/launch.cuh"

namespace hadal::bench {
namespace {

struct Stamp {
  int64_t clock;
  int64_t ns;
};

__device__ int64_t nanoseconds() {
  int64_t ns;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
  return ns;
}

// The grid has one block of one thread per multiprocessor. Two blocks on one multiprocessor overwrite each
// other's stamp, and a multiprocessor without a block keeps its zeros.
__global__ void stamp_kernel(Stamp* stamps, int64_t hold_ns) {
  for (const int64_t begin = nanoseconds(); nanoseconds() - begin < hold_ns;) {
  }
  unsigned sm;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
  stamps[sm] = {static_cast<int64_t>(clock64()), nanoseconds()};
}

}  // namespace

SmClock::SmClock(int most)
    : num_sms_(cuda_device_info(0).num_sms), stamps_(size_t(most) * 2 * num_sms_ * sizeof(Stamp)) {
  HADAL_CUDA_CHECK(cudaMemset(stamps_.data(), 0, stamps_.size()));
}

void SmClock::begin(StreamHandle stream, int interval, int hold_us) {
  auto* stamps = stamps_.as<Stamp>() + interval * 2 * num_sms_;
  stamp_kernel<<<num_sms_, 1, 0, static_cast<cudaStream_t>(stream.native)>>>(stamps, hold_us * 1000);
  HADAL_CUDA_CHECK(cudaGetLastError());
}

void SmClock::end(StreamHandle stream, int interval) {
  auto* stamps = stamps_.as<Stamp>() + (interval * 2 + 1) * num_sms_;
  stamp_kernel<<<num_sms_, 1, 0, static_cast<cudaStream_t>(stream.native)>>>(stamps, 0);
  HADAL_CUDA_CHECK(cudaGetLastError());
}

double SmClock::mhz(CudaStream& stream, int count) const {
  std::vector<Stamp> stamps(size_t(count) * 2 * num_sms_);
  stream.synchronize();
  HADAL_CUDA_CHECK(
      cudaMemcpy(stamps.data(), stamps_.data(), stamps.size() * sizeof(Stamp), cudaMemcpyDeviceToHost));
  double clocks = 0.0;
  double ns = 0.0;
  for (int interval = 0; interval < count; ++interval) {
    for (int sm = 0; sm < num_sms_; ++sm) {
      const Stamp& begin = stamps[interval * 2 * num_sms_ + sm];
      const Stamp& end = stamps[(interval * 2 + 1) * num_sms_ + sm];
      if (begin.ns == 0 || end.ns <= begin.ns) continue;
      clocks += static_cast<double>(end.clock - begin.clock);
      ns += static_cast<double>(end.ns - begin.ns);
    }
  }
  return ns > 0.0 ? clocks / ns * 1e3 : 0.0;
}

}  // namespace hadal::bench
