// The log's own thread: a terminal that is stopped, a full pipe or a slow disk holds up this thread, not
// those that serve. When it cannot keep up, lines are dropped and counted.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "base/log.h"

namespace hadal {

struct LogLine {
  LogLevel level = LogLevel::kInfo;
  std::chrono::system_clock::time_point when;  // of push
  std::string text;
};

class LogWriter {
 public:
  // `write` is called by the writer's thread only, in the order of push, and may block for as long as it
  // likes.
  explicit LogWriter(std::function<void(const LogLine&)> write);
  // Gives up what is not written: stop() first. A `write` that does not return is left behind, and must not
  // refer to anything that goes away.
  ~LogWriter();
  LogWriter(const LogWriter&) = delete;
  LogWriter& operator=(const LogWriter&) = delete;

  // Any thread; never waits for `write`. Warnings and errors have room of their own, so that a flood of
  // other lines does not displace them.
  void push(LogLevel level, std::string text);
  // Waits until everything pushed before is written; false when that takes longer than `patience`.
  bool flush(std::chrono::milliseconds patience);
  // The same, and nothing is taken any more.
  bool stop(std::chrono::milliseconds patience);

 private:
  struct State;
  static void run(const std::shared_ptr<State>& state);

  const std::shared_ptr<State> state_;  // the thread's as well
  std::thread thread_;
};

}  // namespace hadal
