// LogWriter is the log's own thread: a stopped terminal, a full pipe or a slow disk blocks this thread and
// not the threads that serve requests. When the thread cannot keep up, lines are dropped and counted.
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
  std::chrono::system_clock::time_point when;  // the time of push
  std::string text;
};

class LogWriter {
 public:
  // `write` is called by the writer's thread only, in the order of push. It may block.
  explicit LogWriter(std::function<void(const LogLine&)> write);
  // Drops the lines that have not been written, so call stop() first. If a `write` does not return, its
  // thread is left running, so `write` must not refer to anything that is destroyed.
  ~LogWriter();
  LogWriter(const LogWriter&) = delete;
  LogWriter& operator=(const LogWriter&) = delete;

  // Queues a line and never waits for `write`. Any thread may call it. Warnings and errors have reserved
  // room, so that a flood of other lines does not displace them.
  void push(LogLevel level, std::string text);
  // Waits until everything pushed before is written; returns false when that takes longer than `patience`.
  bool flush(std::chrono::milliseconds patience);
  // Does the same as flush(), and makes later pushes do nothing.
  bool stop(std::chrono::milliseconds patience);

 private:
  struct State;
  static void run(const std::shared_ptr<State>& state);

  const std::shared_ptr<State> state_;  // shared with the thread
  std::thread thread_;
};

}  // namespace hadal
