#include "cli/signal_watcher.h"

#include <pthread.h>
#include <unistd.h>

#include <csignal>
#include <ctime>
#include <exception>
#include <utility>

#include "base/log.h"
#include "base/memory_reserve.h"
#include "cli/run.h"

namespace hadal::cli {
namespace {

sigset_t watched_signals(bool hangup) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  if (hangup) sigaddset(&set, SIGHUP);
  return set;
}

}  // namespace

SignalWatcher::SignalWatcher(std::function<void()> on_hangup) : on_hangup_(std::move(on_hangup)) {
  const sigset_t set = watched_signals(on_hangup_ != nullptr);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  std::signal(SIGPIPE, SIG_IGN);  // a client that disconnects then only fails its own connection
  thread_ = std::thread([this] { watch(); });
}

SignalWatcher::~SignalWatcher() {
  stop_ = true;
  thread_.join();
  const sigset_t set = watched_signals(on_hangup_ != nullptr);
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
}

void SignalWatcher::arm() {
  armed_ = true;
}

void SignalWatcher::watch() {
  const MemoryReserve::Scope reserve;  // a signal must be handled without free memory, too
  const sigset_t set = watched_signals(on_hangup_ != nullptr);
  const timespec patience{.tv_sec = 0, .tv_nsec = 100'000'000};
  int seen = 0;
  while (!stop_) {
    exit_when_due();
    const int signal = sigtimedwait(&set, nullptr, &patience);
    if (signal < 0) continue;
    if (signal == SIGHUP) {
      hang_up();
      continue;
    }
    if (!armed_ || ++seen > 1) _exit(128 + signal);
    notify(signal == SIGTERM ? "SIGTERM" : "SIGINT");
  }
}

// Runs `on_hangup`. A file that cannot be read again leaves its previous content in force.
void SignalWatcher::hang_up() noexcept {
  try {
    try {
      on_hangup_();
    } catch (const std::exception& error) {
      log_error("SIGHUP was not carried out error=\"{}\"", error.what());
    }
  } catch (const std::exception&) {
    write_last_line("SIGHUP was not carried out", "no memory");
  }
}

void SignalWatcher::notify(std::string why) {
  {
    const std::lock_guard lock(mutex_);
    if (why_.empty()) why_ = std::move(why);
  }
  wake_.notify_all();
}

void SignalWatcher::exit_at(Clock::time_point time, std::string why) {
  const std::lock_guard lock(mutex_);
  if (exit_at_ && *exit_at_ <= time) return;
  exit_at_ = time;
  exit_why_ = std::move(why);
}

void SignalWatcher::exit_when_due() {
  const std::lock_guard lock(mutex_);
  if (!exit_at_ || Clock::now() < *exit_at_) return;
  try {
    log_error("server ended reason=\"{}\"", exit_why_);
    flush_log(std::chrono::seconds(1));
  } catch (const std::exception&) {
    write_last_line("server ended", "no memory for the reason");
  }
  _exit(kExitFailure);
}

std::string SignalWatcher::wait() {
  std::unique_lock lock(mutex_);
  wake_.wait(lock, [this] { return !why_.empty(); });
  return why_;
}

}  // namespace hadal::cli
