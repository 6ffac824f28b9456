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
  line.add(::sigabbrev_np(signal));  // it may be called in a handler
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
  // When this returns, an instruction fails again by itself, but a signal that a process has sent must be
  // sent again.
  ::signal(signal, SIG_DFL);
  if (!from_kernel) ::raise(signal);
}

}  // namespace

void tell_fatal_signals() {
  struct sigaction action = {};
  action.sa_sigaction = &on_signal;
  action.sa_flags = SA_SIGINFO;
  // An instruction of the handler that fails ends the process at once, because its signal is blocked.
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
