// Lets a thread's long work end early once its result is no longer needed.
#pragma once

#include <atomic>
#include <exception>

namespace hadal {

// check_cancelled() throws this.
class CancelledError : public std::exception {
 public:
  const char* what() const noexcept override { return "the work is no longer needed"; }
};

// While a CancelScope lives, the work of its thread is cancelled as soon as `flag` or the flag of an
// enclosing scope becomes true. Scopes nest, and each is destroyed by the thread that made it.
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

// Tells whether the work of this thread is cancelled; outside every scope it never is. A call takes a few
// nanoseconds.
bool is_cancelled() noexcept;
// Throws CancelledError if the work of this thread is cancelled. Loops whose length a client chooses call
// this function every few microseconds.
void check_cancelled();

}  // namespace hadal
