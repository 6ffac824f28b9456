// Lets long work of a thread end early, once nobody waits for its result any more.
#pragma once

#include <atomic>
#include <exception>

namespace hadal {

// check_cancelled() throws this.
class CancelledError : public std::exception {
 public:
  const char* what() const noexcept override { return "the work is no longer needed"; }
};

// While an object lives, the work of this thread is cancelled when `flag` becomes true, or the flag of a
// scope around this one. Objects nest; each is destroyed by the thread that made it.
class CancelScope {
 public:
  explicit CancelScope(const std::atomic<bool>& flag);
  ~CancelScope();
  CancelScope(const CancelScope&) = delete;
  CancelScope& operator=(const CancelScope&) = delete;

 private:
  friend bool is_cancelled() noexcept;
  const std::atomic<bool>& flag_;
  const CancelScope* const outer_;
};

// Tells whether the work of this thread is cancelled; without a scope it never is. Takes a few nanoseconds.
bool is_cancelled() noexcept;
// Throws CancelledError if it is. Loops whose length a client chooses call it every few microseconds.
void check_cancelled();

}  // namespace hadal
