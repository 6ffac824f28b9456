// A Communicator is one rank's end of a group of ranks that share a model: it exchanges the parts of a step
// that the ranks compute (tensor parallelism: arXiv 1909.08053 §3). All ranks of a group make the same calls
// in the same order with sizes that fit together; each call returns on every rank or throws on every rank.
// One thread at a time uses an end.
//
// Sums are float32, added in ascending order of rank: ((p0 + p1) + p2) + …. Every rank gets the same bits, in
// every run, whatever the sizes.
//
// A forward pass on CPU ranks uses all_reduce alone, because these ranks share the buffer of the logits. The
// other calls serve ranks that have no common memory.
#pragma once

#include <cstddef>
#include <span>

#include "base/error.h"

namespace hadal {

// RankFailed is thrown by the calls of all other ranks once one rank has failed. Its message is that of the
// first failure and names the rank.
class RankFailed : public Error {
 public:
  using Error::Error;
};

// RankLost means that a rank did not arrive before the deadline: the message names the rank, the call that
// was expected of it and the last one that was seen. Nothing that the group owns may be used any more,
// because the lost rank may still be using it.
class RankLost : public RankFailed {
 public:
  using RankFailed::RankFailed;
};

class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int num_ranks() const = 0;

  // Replaces `data` [count], of the same size on all ranks, by the sum over ranks.
  virtual void all_reduce(std::span<float> data) = 0;

  // Sums `data` [num_ranks · mine.size()] over ranks and stores part rank() of the sum in `mine`. `data` has
  // no meaning afterwards and does not overlap `mine`.
  virtual void reduce_scatter(std::span<float> data, std::span<float> mine) = 0;

  // Stores the ranks' `mine` one after another in `all`, in order of rank. Sizes may differ between ranks,
  // and be 0; they add up to all.size(). `mine` may be this rank's own part of `all`; otherwise the two must
  // not overlap.
  virtual void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) = 0;

  // Sends send[r] to rank r, and stores the data that rank r sends to this rank in receive[r]. Both have
  // num_ranks() parts, any of which may be empty. Rank a's send[b] and rank b's receive[a] have the same
  // size.
  virtual void all_to_all(std::span<const std::span<const std::byte>> send,
                          std::span<const std::span<std::byte>> receive) = 0;

  // Returns once all ranks have called it.
  virtual void barrier() = 0;
};

}  // namespace hadal
