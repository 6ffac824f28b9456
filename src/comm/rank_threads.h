// RankThreads runs one function on a thread for each rank of a LoopbackGroup, a step at a time. It is the
// only place that turns the failures of ranks into the exception that the caller of a step receives.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "comm/loopback.h"

namespace hadal {

class RankThreads {
 public:
  // Each rank's thread keeps its own reference to `owner`, which owns everything that the bodies of `run`
  // use, so that `owner` stays alive for a rank that never returns. The last reference may be released on a
  // lost rank's thread. `owner` must not own this object, which would then own itself.
  RankThreads(int num_ranks, std::chrono::milliseconds deadline, std::shared_ptr<void> owner);
  // Joins the threads, except that a lost rank's thread is detached.
  ~RankThreads();
  RankThreads(const RankThreads&) = delete;
  RankThreads& operator=(const RankThreads&) = delete;

  int num_ranks() const;

  // Throws RankLost if a rank is lost. Call it before changing anything that the bodies use.
  void check_usable();

  // Calls body(rank, its communicator) on every rank's thread and returns when all have returned. If some
  // throw, the others' collectives fail (LoopbackGroup::fail); then the first failure is rethrown, with its
  // own type, and the group is usable again. If some ranks have returned, and then no other rank returns for
  // `deadline`, the missing ranks are lost: this call and all later ones throw RankLost, and the body is kept
  // for the lost ranks. The same happens if a collective call exceeds its deadline. One thread at a time
  // calls run().
  void run(std::function<void(int rank, Communicator& comm)> body);

 private:
  struct Shared;
  void stop() noexcept;

  std::shared_ptr<Shared> shared_;
  std::vector<std::thread> threads_;  // [num_ranks]
};

}  // namespace hadal
