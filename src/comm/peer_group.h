// PeerGroup connects ranks on GPUs of one machine that read each other's memory (NVLink, or PCIe where the
// driver allows it). Tests may put several ranks on one GPU, each on a stream of its own. Then no kernel
// between their exchanges may wait for blocks that do not fit on the GPU at the same time.
// docs/kernels/cuda-comm.md explains the protocol. Only builds with CUDA have it.
//
// The group is made and destroyed by one thread, while nothing that uses it runs on the devices. Each end is
// used by the thread that launches its rank's work, with the rank's device current.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>

#include "comm/communicator.h"
#include "comm/device_communicator.h"

namespace hadal {

class PeerGroup {
 public:
  // devices [num_ranks] has each rank's GPU. A part may have up to `place_bytes` bytes, a multiple of
  // kPlaceAlignment. An exchange waits for at most `deadline` (at most 24 hours), counted on the device. All
  // memory is reserved and all code is loaded here, so that later the exchanges are the only waits on a
  // device. Throws hadal::Error if GPUs are missing, cannot access each other's memory, or have too little
  // memory.
  PeerGroup(std::span<const int> devices, int64_t place_bytes, std::chrono::milliseconds deadline);
  ~PeerGroup();
  PeerGroup(const PeerGroup&) = delete;
  PeerGroup& operator=(const PeerGroup&) = delete;

  // Returns the bytes that a group reserves on the GPU of each rank, before rounding to pages of 2 MiB.
  static int64_t bytes_per_rank(int64_t place_bytes);

  int num_ranks() const;
  // Returns the end of a rank, which lives as long as the group. `host` is the rank's end among the ranks'
  // threads, or null if one thread launches the work of all ranks. With `host`, the ranks' threads have a
  // barrier before and after the launch of each exchange, unless a graph captures it. Without these barriers,
  // a call that waits for all devices (a library that loads a kernel, or a memory allocation) could wait for
  // a device that itself waits for the caller's next exchange.
  DeviceCommunicator& end(int rank, Communicator* host = nullptr);

 private:
  struct Shared;
  class End;
  std::unique_ptr<Shared> shared_;
};

}  // namespace hadal
