// Has a few threads for work that is too slow for an I/O thread and does not belong to the engine. One pool
// compiles grammars, another parses large bodies and a third executes operators' requests. Any thread may
// post.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/semaphore.h"

namespace hadal::server {

class BackgroundPool {
 public:
  struct Options {
    int num_threads = 1;       // ≥ 1
    size_t max_queued = 1024;  // tasks that may wait
    // These limit the waiting and the running tasks of one client, so that other clients find a free thread.
    size_t max_queued_per_client = std::numeric_limits<size_t>::max();
    int max_running_per_client = std::numeric_limits<int>::max();
    bool low_priority = false;  // yields to every other thread while the processors are busy
  };

  explicit BackgroundPool(const Options& options);
  explicit BackgroundPool(int num_threads) : BackgroundPool(Options{.num_threads = num_threads}) {}
  // Calls stop().
  ~BackgroundPool();
  BackgroundPool(const BackgroundPool&) = delete;
  BackgroundPool& operator=(const BackgroundPool&) = delete;

  // Clients take turns, and the tasks of one client begin in order. Returns the task's number, which is not
  // 0. Returns 0, and does nothing, if the queue or the client's share of it is full or the pool has stopped.
  // A task should not throw; an exception is only logged.
  uint64_t post(std::function<void()> task, const std::string& client = {});
  // Drops a task of `client` that has not begun. The objects that the task owns are destroyed before this
  // returns. Returns false, and does nothing, if there is no such task.
  bool drop(uint64_t number, const std::string& client = {});

  // Finishes running tasks, which are cancelled (base/cancel.h), and drops waiting ones. Repeated calls do
  // nothing.
  void stop();
  // Announces that stop() will follow. From now on every task is cancelled, even if it has not begun. The
  // tasks still run, so that each can answer its request.
  void announce_stop() { stopping_ = true; }
  // Returns true if the end has been announced or has begun.
  bool stopping() const { return stopping_; }
  // Waits until no task waits or runs. Returns false if the deadline comes first.
  bool wait_idle(std::chrono::steady_clock::time_point deadline);
  // Runs tasks on the caller's thread until none may begin. After announce_stop(), waiting tasks then need
  // not wait for the pool's own threads, which may be busy for long.
  void help();

 private:
  struct Client {
    std::map<uint64_t, std::function<void()>> tasks;  // in the order of post(), by their numbers
    int running = 0;
    bool has_turn = false;  // its name is in turns_: it has a task that may begin
  };
  using Clients = std::map<std::string, Client>;

  void work();
  void run_next(std::unique_lock<std::mutex>& lock);
  void give_turn(Clients::value_type& entry);
  void forget_if_idle(Clients::iterator entry);

  const Options options_;
  std::mutex mutex_;
  Semaphore wake_;                // threads that post are more urgent than those of the pool
  std::condition_variable idle_;  // clients_ may have become empty
  Clients clients_;               // clients with a task that waits or runs
  std::deque<Clients::value_type*> turns_;
  size_t num_queued_ = 0;
  uint64_t last_number_ = 0;
  bool stopped_ = false;
  std::atomic<bool> stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace hadal::server
