// LoneCommunicator is the end of one rank that computes without the others, so that its weights and kernels
// can be measured: what it computes has no meaning. It never waits. One thread uses it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "comm/device_communicator.h"

namespace hadal {

class LoneCommunicator final : public DeviceCommunicator {
 public:
  // `memory` has 2 · place_bytes bytes on the device; this rank's part stands for the parts of all ranks.
  LoneCommunicator(int rank, int num_ranks, std::byte* memory, int64_t place_bytes);

  // Returns an end without memory, which measures what a step needs (most_part_bytes()): for parts of any
  // size it returns addresses that must not be used.
  static LoneCommunicator measuring(int rank, int num_ranks);

  bool graphs() const override { return true; }
  void check() override {}
  void fail(std::string_view /*why*/) noexcept override {}

 private:
  void wait_for_all(const cuda::Launch& /*launch*/) override {}
};

}  // namespace hadal
