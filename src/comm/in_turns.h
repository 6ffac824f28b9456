// InTurns is the end of a rank that shares one GPU with the other ranks of its group: one rank computes at a
// time, because kernels whose blocks wait for each other must not share a GPU. A rank has the turn from one
// exchange to the next and waits for its stream before it passes the turn on. Exchanges therefore need no
// flags on the device, and graphs cannot capture them. InTurns serves to check that several ranks compute the
// right results, not to measure their speed.
//
// Turns use only barriers between the ranks' threads. Between two exchanges all ranks pass the barrier
// num_ranks times, and rank r computes after it has passed r of these barriers and before it passes the next
// one.
//
// Each rank has its own thread, which alone uses its end.
#pragma once

#include <functional>

#include "base/stream_handle.h"
#include "comm/communicator.h"
#include "comm/device_communicator.h"

namespace hadal {

class InTurns final : public DeviceCommunicator {
 public:
  // `host` is this rank's end among the threads, and outlives this object. When a rank throws, or keeps its
  // turn longer than the deadline of `host`, the other ranks get RankFailed or RankLost from begin_step(),
  // exchange() or end_step(). `synchronize` returns when all work on a stream has ended, and throws if that
  // work has failed.
  InTurns(Communicator& host, const DevicePlaces& places, std::function<void(StreamHandle)> synchronize);

  bool graphs() const override { return false; }
  void check() override {}  // a failure has already been thrown
  // The caller's thread throws as well, and RankThreads then fails the group of `host`.
  void fail(std::string_view /*why*/) noexcept override {}

 private:
  void begin_turn() override;
  void end_turn(const cuda::Launch& launch) override;
  void wait_for_all(const cuda::Launch& launch) override;

  Communicator& host_;
  const std::function<void(StreamHandle)> synchronize_;
};

}  // namespace hadal
