// Passes commands from other threads to the engine thread, in order. The engine thread takes all commands at
// once, and sleeps here while there is nothing to do.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "engine/loop/sequence.h"

namespace hadal {

// Exactly one of the three is set.
struct Command {
  std::unique_ptr<Sequence> submit;
  RequestId abort = 0;
  std::function<void()> call;
};

class Inbox {
 public:
  void push(Command command) {
    {
      const std::lock_guard lock(mutex_);
      commands_.push_back(std::move(command));
    }
    wake_.notify_one();
  }

  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stopped_ = true;
    }
    wake_.notify_one();
  }

  // Swaps the queued commands into `commands`, which must be empty. Returns false once stop has been called.
  bool take(std::vector<Command>& commands) {
    const std::lock_guard lock(mutex_);
    commands.swap(commands_);
    return !stopped_;
  }

  // Ends the present or the next wait().
  void wake() {
    {
      const std::lock_guard lock(mutex_);
      woken_ = true;
    }
    wake_.notify_one();
  }

  // Sleeps until there is something to take, or wake() has been called.
  void wait() {
    std::unique_lock lock(mutex_);
    wake_.wait(lock, [&] { return stopped_ || woken_ || !commands_.empty(); });
    woken_ = false;
  }

 private:
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<Command> commands_;
  bool stopped_ = false;
  bool woken_ = false;
};

}  // namespace hadal
