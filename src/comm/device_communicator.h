// A DeviceCommunicator is one rank's end of a group of ranks that compute a step on GPUs, each on a stream of
// its own. Its only operation is the exchange: a rank writes its part where all ranks can read it, and
// exchange() returns the addresses of all ranks' parts. Each collective is an exchange and a kernel that
// reads the parts (comm/device_collectives.h); a norm reads partial sums itself.
//
// All ranks of a group make the same calls in the same order, with the same sizes. Only the thread that
// launches a rank's work uses its end, except for fail(). Barriers between the threads of ranks are those of
// Communicator.
//
// A step consists of the calls between begin_step() and end_step(). For example, in the forward pass:
//   void* mine = comm.partial(m * n * 2);              // [m, n], dense; kernels write it next
//   const auto parts = comm.exchange(launch, m * n * 2);
//   …                                                  // a norm adds parts.parts[0] + parts.parts[1] + …
//
// No part is overwritten while it is read, because a rank has two places and uses them in turn, and each step
// begins with place 0. Exchange k uses place k mod 2. The kernels with which a rank reads the parts of
// exchange k precede exchange k + 1 on the rank's stream. So once all ranks have arrived at exchange k + 1,
// no rank reads the parts of exchange k any more, and part k + 2 of a rank may replace its part k. A step
// with an odd number of exchanges would end with place 0, with which the next step begins; end_step()
// therefore makes one more exchange, without a part. Thus the places that a step uses do not depend on the
// steps before it, and graphs of steps can be replayed in any order.
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

// Holds the addresses, on the device of one rank, of the memory in which all ranks exchange parts.
struct DevicePlaces {
  std::array<std::byte*, cuda::kMaxRanks>
      memory{};             // [num_ranks] of 2 · place_bytes each, on kPlaceAlignment
  int64_t place_bytes = 0;  // a multiple of kPlaceAlignment
};

// Counts the bytes that the exchanges of a step move, and their time by the model of
// comm/collective_choice.h, for profiles.
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

  // Returns device memory of `bytes` bytes, on kPlaceAlignment, for this rank's part of the next exchange.
  // Its contents are undefined. There is at most one part for each exchange. Throws if `bytes` exceeds
  // max_part_bytes().
  void* partial(int64_t bytes);
  int64_t max_part_bytes() const { return places_.place_bytes; }

  // Makes the parts of all ranks readable for kernels that are launched on the stream afterwards, and returns
  // the addresses of the parts. Kernels that read them must be launched before the next exchange.
  // `bytes_from_each` is how much this rank is going to read of each other rank's part; only tally() uses it.
  // May throw RankFailed or RankLost.
  cuda::ExchangedParts exchange(const cuda::Launch& launch, int64_t bytes_from_each);

  // Counts an exchange that a kernel makes itself because its parts are small (all_reduce_small,
  // add_rms_norm), and returns the parameters that the kernel needs. Returns null if parts of this size must
  // go through exchange() instead, because they are empty or too large, the group has no flags on the device,
  // or the threads of ranks wait for each other at every exchange (PeerGroup::end). Such an exchange does not
  // switch to the other place, because only this rank reads the part in its place.
  const cuda::ExchangeParams* small_exchange(const cuda::Launch& launch, int64_t part_bytes);

  // Throws RankLost if an exchange waited longer than its deadline; the message has the rank, the exchange
  // that was expected of it and the last exchange that it was seen to reach. Throws RankFailed after fail().
  // In both cases the results of the step are invalid. check() does not wait: call it when the step is known
  // to have ended.
  virtual void check() = 0;

  // Makes waiting exchanges of all ranks end and check() throw RankFailed with "rank R: why"; the group stays
  // unusable. A rank calls it when it cannot launch the work for which the others wait. Any thread may call
  // it.
  virtual void fail(std::string_view why) noexcept = 0;

  // Returns what has been exchanged since begin_step(), or in the last step after end_step().
  const ExchangeTally& tally() const { return tally_; }
  // Returns the largest size that partial() was called with, which is the size that a place must have.
  int64_t most_part_bytes() const { return most_part_bytes_; }

 protected:
  // The memory of `places` need not exist if nothing is launched that uses it (LoneCommunicator::measuring).
  DeviceCommunicator(int rank, int num_ranks, const DevicePlaces& places);

 private:
  virtual void begin_turn() {}
  virtual void end_turn(const cuda::Launch& /*launch*/) {}
  // Returns, or lets the stream continue, once all ranks have called this and the results of their earlier
  // work can be read.
  virtual void wait_for_all(const cuda::Launch& launch) = 0;
  // Returns the parameters of kernels that exchange small parts themselves, or null if this launch must not
  // use such kernels.
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
