#include "base/fatal_signals.h"

#include <signal.h>
#include <string.h>
#include <unistd.h>

#include <cstdint>

#include "base/signal_line.h"
#include "base/version.h"

namespace hadal {
namespace {

constexpr int kSignals[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT};

void on_signal(int signal, siginfo_t* info, void*) {
  begin_ending();
  const bool from_kernel = info->si_code > 0;
  SignalLine line;
  line.add("hadal: error: SIG");
  line.add(::sigabbrev_np(signal));  // this function may be called in a handler
  if (from_kernel) {
    line.add(" at address ");
    line.add_hex(reinterpret_cast<uintptr_t>(info->si_addr));
  } else if (info->si_pid == ::getpid()) {
    line.add(", raised by the process itself,");
  } else {
    line.add(", sent by process ");
    line.add(static_cast<size_t>(info->si_pid));
    line.add(",");
  }
  line.add(" in thread ");
  line.add(static_cast<size_t>(::gettid()));
  line.add(", version ");
  line.add(version());
  line.add("\n");
  line.write_to_stderr();
  // After this handler returns, an instruction that failed is run and fails again by itself, but a signal
  // that a process has sent must be raised again.
  ::signal(signal, SIG_DFL);
  if (!from_kernel) ::raise(signal);
}

}  // namespace

void tell_fatal_signals() {
  struct sigaction action = {};
  action.sa_sigaction = &on_signal;
  action.sa_flags = SA_SIGINFO;
  // All of these signals are blocked in the handler, so an instruction that fails there ends the process at
  // once.
  sigemptyset(&action.sa_mask);
  for (const int signal : kSignals) sigaddset(&action.sa_mask, signal);
  for (const int signal : kSignals) {
    struct sigaction before = {};
    ::sigaction(signal, nullptr, &before);
    const bool is_default = (before.sa_flags & SA_SIGINFO) == 0 && before.sa_handler == SIG_DFL;
    if (is_default) ::sigaction(signal, &action, nullptr);
  }
}

}  // namespace hadal
