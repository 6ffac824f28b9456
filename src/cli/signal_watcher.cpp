#include "cli/signal_watcher.h"

#include <pthread.h>
#include <unistd.h>

#include <csignal>
#include <ctime>
#include <utility>

namespace hadal::cli {
namespace {

sigset_t watched_signals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  return set;
}

}  // namespace

SignalWatcher::SignalWatcher() {
  const sigset_t set = watched_signals();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  std::signal(SIGPIPE, SIG_IGN);  // a client that goes away is an error of its connection
  thread_ = std::thread([this] { watch(); });
}

SignalWatcher::~SignalWatcher() {
  stop_ = true;
  thread_.join();
  const sigset_t set = watched_signals();
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
}

void SignalWatcher::arm() {
  armed_ = true;
}

void SignalWatcher::watch() {
  const sigset_t set = watched_signals();
  const timespec patience{.tv_sec = 0, .tv_nsec = 100'000'000};
  int seen = 0;
  while (!stop_) {
    const int signal = sigtimedwait(&set, nullptr, &patience);
    if (signal < 0) continue;
    if (!armed_ || ++seen > 1) _exit(128 + signal);
    notify(signal == SIGTERM ? "SIGTERM" : "SIGINT");
  }
}

void SignalWatcher::notify(std::string why) {
  {
    const std::lock_guard lock(mutex_);
    if (why_.empty()) why_ = std::move(why);
  }
  wake_.notify_all();
}

std::string SignalWatcher::wait() {
  std::unique_lock lock(mutex_);
  wake_.wait(lock, [this] { return !why_.empty(); });
  return why_;
}

}  // namespace hadal::cli
