// A DeviceCommunicator is one rank's end of a group of ranks that compute a step on GPUs, each on a stream of
// its own. The one thing that it does is an exchange: a rank writes its part where all ranks can read it, and
// an exchange returns where the parts of all ranks are. Each collective is an exchange and a kernel that
// reads the parts (comm/device_collectives.h); a norm reads partial sums itself.
//
// All ranks of a group make the same calls in the same order, with the same sizes. Only the thread that
// launches a rank's work uses its end, except for fail(). Barriers between the threads of ranks are those of
// Communicator.
//
// A step is what lies between begin_step() and end_step(). For example, in the forward pass:
//   void* mine = comm.partial(m * n * 2);              // [m, n], dense; kernels write it next
//   const auto parts = comm.exchange(launch, m * n * 2);
//   …                                                  // a norm adds parts.parts[0] + parts.parts[1] + …
//
// No part is overwritten while it is read, because a rank has two places and uses them in turn, and each step
// begins with place 0. Let exchange k use place k mod 2. A rank arrives at exchange k + 1 after its readers
// of the parts of k have ended, because they are ahead of it on its stream. Once all ranks have arrived at
// exchange k + 1, no rank reads the parts of k any more, and what a rank writes next, part k + 2, may replace
// its part k. A step with an odd number of exchanges would end with place 0, and so would the next begin;
// end_step() therefore makes one more exchange, without a part. Thus the places of a step do not depend on
// the steps before it, and graphs of steps can be replayed in any order.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "kernels/cuda/comm/parts.h"
#include "kernels/cuda/launch.h"

namespace hadal::cuda {
struct ExchangeParams;  // kernels/cuda/comm/comm.h
}

namespace hadal {

inline constexpr int64_t kPlaceAlignment = 256;  // bytes

// Holds the memory of all ranks in which parts are exchanged, as the device of one rank addresses it.
struct DevicePlaces {
  std::array<std::byte*, cuda::kMaxRanks>
      memory{};             // [num_ranks] of 2 · place_bytes each, on kPlaceAlignment
  int64_t place_bytes = 0;  // a multiple of kPlaceAlignment
};

// Holds what the exchanges of a step move and cost by the model of comm/collective_choice.h, for profiles.
struct ExchangeTally {
  int64_t num_exchanges = 0;
  int64_t bytes_received = 0;  // by this rank, from others
  double modelled_us = 0.0;
};

class DeviceCommunicator {
 public:
  virtual ~DeviceCommunicator() = default;
  DeviceCommunicator(const DeviceCommunicator&) = delete;
  DeviceCommunicator& operator=(const DeviceCommunicator&) = delete;

  int rank() const { return rank_; }
  int num_ranks() const { return num_ranks_; }

  // Returns true if a graph may capture exchanges.
  virtual bool graphs() const = 0;

  // These begin and end the launches of a step. Where ranks share one GPU in turns, begin_step() waits for
  // this rank's turn, and end_step() for the device.
  void begin_step();
  void end_step(const cuda::Launch& launch);

  // Returns device memory of `bytes` bytes, on kPlaceAlignment, for this rank's part of the next exchange; it
  // holds anything. There is at most one part for each exchange. Throws if `bytes` exceeds max_part_bytes().
  void* partial(int64_t bytes);
  int64_t max_part_bytes() const { return places_.place_bytes; }

  // Makes the parts of all ranks readable for what is launched on the stream afterwards, and returns where
  // they are. Kernels that read them are launched before the next exchange. `bytes_from_each` says how much
  // this rank is going to read of each other rank's part; it is used for tally() only. May throw RankFailed
  // or RankLost.
  cuda::ExchangedParts exchange(const cuda::Launch& launch, int64_t bytes_from_each);

  // For kernels that exchange small parts themselves (all_reduce_small, add_rms_norm): counts such an
  // exchange, and returns what the kernel needs. Returns null where parts of this size go through exchange()
  // instead, because they are empty or too large, the group has no flags on the device, or the threads of
  // ranks wait for each other at every exchange (PeerGroup::end). It uses no place: only this rank reads its
  // part.
  const cuda::ExchangeParams* small_exchange(const cuda::Launch& launch, int64_t part_bytes);

  // Throws RankLost if an exchange waited longer than its deadline, with the rank, the exchange that was
  // expected of it and the last one seen, and RankFailed after fail(). What a step computed has no meaning
  // then. It does not wait: call it when the step is known to have ended.
  virtual void check() = 0;

  // Makes waiting exchanges of all ranks end and check() throw RankFailed with "rank R: why"; the group stays
  // unusable. A rank calls it when it cannot launch what the others wait for. Any thread may call it.
  virtual void fail(std::string_view why) noexcept = 0;

  // Returns what has been exchanged since begin_step(), or in the last step after end_step().
  const ExchangeTally& tally() const { return tally_; }
  // Returns the largest part that partial() was asked for, which measures how large a place has to be.
  int64_t most_part_bytes() const { return most_part_bytes_; }

 protected:
  // The memory of `places` need not exist if nothing is launched that uses it (LoneCommunicator::measuring).
  DeviceCommunicator(int rank, int num_ranks, const DevicePlaces& places);

 private:
  virtual void begin_turn() {}
  virtual void end_turn(const cuda::Launch& /*launch*/) {}
  // Returns, or lets the stream go on, when all ranks have come here and their earlier work can be read.
  virtual void wait_for_all(const cuda::Launch& launch) = 0;
  // Returns what kernels need that exchange small parts themselves; null: there are none in this launch.
  virtual const cuda::ExchangeParams* device_params(const cuda::Launch& /*launch*/) const { return nullptr; }

  void count(int64_t bytes_from_each);

  const int rank_;
  const int num_ranks_;
  const DevicePlaces places_;
  int place_ = 0;  // of the next exchange
  bool in_step_ = false;
  int64_t most_part_bytes_ = 0;
  ExchangeTally tally_;
};

}  // namespace hadal
