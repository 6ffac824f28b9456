// Controls admission to the engine: it counts the places of the queue, closes it for good, and waits until
// all requests have ended. Any thread may call it.
//
// A place is taken from enter() until the request that uses it runs for the first time or has ended. One
// client has at most 7/8 of the places, so that a place is always left for other clients.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <unordered_map>

#include "base/result.h"
#include "engine/queue_places.h"

namespace hadal {

class Gate {
 public:
  // `max_waiting` is the number of places; 0 means no limit.
  explicit Gate(int64_t max_waiting) : max_waiting_(max_waiting) {}

  // Takes `count` places (≥ 1) for `client`, all of them or none. The error is kInvalidArgument if the client
  // may never have that many, kResourceExhausted if they are not free now, or the reason for which the gate
  // is closed.
  Result<QueuePlaces> enter(int64_t count, uint64_t client);

  // Counts a request that uses one of `places`, which must not be empty. If the gate is closed, it fails with
  // the reason, and the place remains among `places`. After a success, left() must be called once.
  Result<void> use(QueuePlaces& places);

  // Records that a waiting request runs for the first time.
  void admitted(uint64_t client);

  // Records that a request has ended and its final chunk has been delivered.
  void left(bool was_admitted, uint64_t client);

  // Makes enter and use fail with `why` from now on; the first reason is kept.
  void close(Status why);

  // Returns true when all requests have ended before `timeout` is over.
  bool wait_empty(std::chrono::milliseconds timeout);

  // Returns how many places `client` may have. Client 0 stands for all unknown clients and has no limit of
  // its own. In a queue of fewer than 8 places no client has a limit of its own, so the limit is that of the
  // whole queue. 0 means no limit.
  int64_t places_of(uint64_t client) const;

 private:
  friend class QueuePlaces;
  // Frees places of the queue. The caller holds the mutex.
  void free_places(int64_t count, uint64_t client);
  void give_back(int64_t count, uint64_t client);

  const int64_t max_waiting_;
  std::mutex mutex_;
  std::condition_variable empty_;
  int64_t waiting_ = 0;                              // places that are taken
  std::unordered_map<uint64_t, int64_t> by_client_;  // places of each client that has a limit; never 0
  int64_t inside_ = 0;                               // requests that have not ended
  std::optional<Status> closed_;
};

}  // namespace hadal
