// Holds several ranks on one GPU, each on a stream of its own. One thread launches all of them.
#pragma once

#include <chrono>
#include <functional>
#include <vector>

#include "comm/peer_group.h"
#include "kernels/cuda/launch.h"
#include "tensor/cuda.h"
#include "tests/cuda/comm/test_parts.h"
#include "tests/cuda/device_array.h"

namespace hadal::testing {

// This is the deadline where no rank is meant to be lost. compute-sanitizer can make a kernel a thousand
// times slower.
constexpr std::chrono::milliseconds kPatient = std::chrono::minutes(5);

class VirtualRanks {
 public:
  VirtualRanks(int num_ranks, int64_t place_bytes, std::chrono::milliseconds deadline = kPatient)
      : group_(std::vector<int>(num_ranks, 0), place_bytes, deadline), streams_(num_ranks) {
    load_test_kernels();
  }

  int size() const { return group_.num_ranks(); }
  DeviceCommunicator& end(int rank) { return group_.end(rank); }
  CudaStream& stream(int rank) { return streams_[rank]; }
  cuda::Launch launch(int rank) const {
    static const int num_sms = cuda_device_info(0).num_sms;
    return {.stream = streams_[rank].handle(), .num_sms = num_sms};
  }

  // Launches a step on all ranks, beginning with a different one each time, and waits for it. `body` must not
  // wait for a stream.
  void step(const std::function<void(int rank, DeviceCommunicator& end, const cuda::Launch& launch)>& body) {
    for (int i = 0; i < size(); ++i) {
      const int rank = (first_ + i) % size();
      end(rank).begin_step();
      body(rank, end(rank), launch(rank));
      end(rank).end_step(launch(rank));
    }
    first_ = (first_ + 1) % size();
    synchronize();
  }
  void synchronize() const {
    for (const CudaStream& stream : streams_) stream.synchronize();
  }

 private:
  PeerGroup group_;
  std::vector<CudaStream> streams_;  // [num_ranks]
  int first_ = 0;
};

}  // namespace hadal::testing
