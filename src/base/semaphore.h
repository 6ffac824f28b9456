// Semaphore counts how often threads that wait may go on. Unlike a condition variable it never makes the
// thread that wakes others wait for them: pthread_cond_signal may wait until threads that were woken before
// have run, which takes long if they have a low priority.
#pragma once

#include <semaphore.h>

#include <cerrno>

#include "base/check.h"

namespace hadal {

class Semaphore {
 public:
  Semaphore() { HADAL_CHECK_EQ(::sem_init(&semaphore_, 0, 0), 0); }
  ~Semaphore() { ::sem_destroy(&semaphore_); }
  Semaphore(const Semaphore&) = delete;
  Semaphore& operator=(const Semaphore&) = delete;

  // Lets one wait() return, now or later. Any thread may call it.
  void post() noexcept { ::sem_post(&semaphore_); }
  // Returns after a post() that no other wait() has used.
  void wait() noexcept {
    while (::sem_wait(&semaphore_) != 0 && errno == EINTR) {
    }
  }

 private:
  ::sem_t semaphore_;
};

}  // namespace hadal
