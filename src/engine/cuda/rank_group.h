// RankGroup owns one object for each rank of a group, which only the rank's thread makes and uses.
// RankGroupExecutor and RankGroupRunner are such groups.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "comm/rank_threads.h"

namespace hadal {

// The ranks' objects live until the last of the ranks' threads has ended, because a lost rank may still use
// its own.
template <typename Rank>
class RankGroup {
 public:
  // Makes the object of a rank; `host` is the rank's communicator among the threads, which outlives the
  // object's use.
  using Make = std::function<std::unique_ptr<Rank>(int rank, Communicator& host)>;

  // Calls make on all ranks' threads at once. It throws what the first rank that failed has thrown, or
  // RankLost. `deadline` is that of RankThreads.
  RankGroup(int num_ranks, std::chrono::milliseconds deadline, Make make)
      : ranks_(std::make_shared<Ranks>(num_ranks, std::move(make))), threads_(num_ranks, deadline, ranks_) {
    threads_.run([ranks = ranks_.get()](int rank, Communicator& host) {
      ranks->made[rank] = ranks->make(rank, host);
    });
  }

  int num_ranks() const { return threads_.num_ranks(); }

  // Throws RankLost if a rank is lost. Call it before changing anything that the ranks use.
  void check_usable() { threads_.check_usable(); }

  // Calls body(rank, its object) on every rank's thread, as RankThreads::run does.
  void run(std::function<void(int rank, Rank& object)> body) {
    threads_.run([ranks = ranks_.get(), body = std::move(body)](int rank, Communicator&) {
      body(rank, *ranks->made[rank]);
    });
  }

 private:
  struct Ranks {
    Ranks(int num_ranks, Make maker) : make(std::move(maker)), made(num_ranks) {}
    const Make make;                          // owns what the objects need, and so is destroyed after them
    std::vector<std::unique_ptr<Rank>> made;  // [num_ranks]
  };

  const std::shared_ptr<Ranks> ranks_;
  RankThreads threads_;
};

}  // namespace hadal
