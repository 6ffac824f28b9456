// Says whether the server accepts work: one word that every thread may read and write.
#pragma once

#include <atomic>

namespace hadal::server {

enum class ServerPhase {
  kStarting,  // the socket listens, but no token has been generated yet
  kReady,
  kDraining,  // SIGTERM: running requests finish, new ones are refused
  kStalled,   // the watchdog found a step that does not end
  kFailed,    // the engine has failed for good
};

class ServerStatus {
 public:
  ServerPhase phase() const { return phase_.load(std::memory_order_relaxed); }
  void set(ServerPhase phase) { phase_.store(phase, std::memory_order_relaxed); }

 private:
  std::atomic<ServerPhase> phase_{ServerPhase::kStarting};
};

inline const char* to_string(ServerPhase phase) {
  switch (phase) {
    case ServerPhase::kStarting:
      return "starting";
    case ServerPhase::kReady:
      return "ready";
    case ServerPhase::kDraining:
      return "draining";
    case ServerPhase::kStalled:
      return "stalled";
    case ServerPhase::kFailed:
      return "failed";
  }
  return "";
}

}  // namespace hadal::server
