// PeerGroup connects ranks on GPUs of one machine that read each other's memory (NVLink, or PCIe where the
// driver allows it). Several ranks may share a GPU, each on a stream of its own, as long as no kernel between
// their exchanges waits for blocks that find no room: that is for tests. docs/kernels/cuda-comm.md explains
// the protocol. Only builds with CUDA have it.
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
  // memory is reserved and all code is loaded here, so that later nothing on a device waits for anything but
  // the exchanges. Throws hadal::Error if GPUs are missing, do not reach each other, or have too little
  // memory.
  PeerGroup(std::span<const int> devices, int64_t place_bytes, std::chrono::milliseconds deadline);
  ~PeerGroup();
  PeerGroup(const PeerGroup&) = delete;
  PeerGroup& operator=(const PeerGroup&) = delete;

  // Returns the bytes that a group reserves on the GPU of each rank, before rounding to pages of 2 MiB.
  static int64_t bytes_per_rank(int64_t place_bytes);

  int num_ranks() const;
  // Returns the end of a rank, which lives as long as the group. `host` is the rank's end among the ranks'
  // threads; null: one thread launches the work of all ranks. With it, ranks launch an exchange together,
  // unless a graph captures it: none before all have launched what precedes it, and none goes on before all
  // have launched it. Otherwise a call that waits for all devices (a library that loads a kernel, memory that
  // is reserved) could wait for a device that waits for the caller's next exchange.
  DeviceCommunicator& end(int rank, Communicator* host = nullptr);

 private:
  struct Shared;
  class End;
  std::unique_ptr<Shared> shared_;
};

}  // namespace hadal
