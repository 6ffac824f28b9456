#include "base/signal_line.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>

namespace hadal {
namespace {

// This is the thread that ends the process, or 0. It is static, because we cannot pass arguments to a
// handler.
std::atomic<pid_t> ending_thread{0};
static_assert(std::atomic<pid_t>::is_always_lock_free, "used in a signal handler");

// Writes the digits of `number` in front of `end` and returns their beginning.
char* write_digits(uintptr_t number, uintptr_t base, char* end) {
  do *--end = "0123456789abcdef"[number % base];
  while ((number /= base) != 0);
  return end;
}

}  // namespace

void SignalLine::add(std::string_view text) {
  const size_t n = std::min(text.size(), sizeof(bytes_) - size_);
  std::memcpy(bytes_ + size_, text.data(), n);
  size_ += n;
}

void SignalLine::add(size_t number) {
  char digits[20];
  char* const end = digits + sizeof(digits);
  const char* const begin = write_digits(number, 10, end);
  add({begin, static_cast<size_t>(end - begin)});
}

void SignalLine::add_hex(uintptr_t number) {
  char digits[16];
  char* const end = digits + sizeof(digits);
  const char* const begin = write_digits(number, 16, end);
  add("0x");
  add({begin, static_cast<size_t>(end - begin)});
}

void SignalLine::write_to_stderr() const {
  ::signal(SIGPIPE, SIG_IGN);
  for (size_t done = 0; done < size_;) {
    pollfd ready{STDERR_FILENO, POLLOUT, 0};
    if (::poll(&ready, 1, 1000) != 1) return;
    const ssize_t n = ::write(STDERR_FILENO, bytes_ + done, size_ - done);
    if (n <= 0) return;
    done += static_cast<size_t>(n);
  }
}

void begin_ending() {
  const pid_t self = ::gettid();
  pid_t first = 0;
  if (ending_thread.compare_exchange_strong(first, self) || first == self) return;
  while (true) ::pause();
}

}  // namespace hadal
