// The access log's own thread: a terminal that is stopped or a slow disk holds up this thread, not those that
// serve. When it cannot keep up, lines are dropped and counted.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace hadal::server {

class AccessLog {
 public:
  AccessLog();
  ~AccessLog();  // writes what is queued

  // Any thread; never waits for the output.
  void push(std::string line);

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> lines_;
  size_t dropped_ = 0;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace hadal::server
