// /start_profile and /stop_profile: a Chrome trace of engine steps in a file. Any thread; calls may wait for
// the engine and for the disk, so they belong on a background thread.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>

#include "base/result.h"
#include "engine/engine.h"

namespace hadal::server {

class Profiler {
 public:
  explicit Profiler(Engine& engine) : engine_(engine) {}

  // `num_steps` steps from now on, 0: until stop(). The file goes to `output_dir`, which is made if need be.
  // Errors: one is running already; the directory cannot be made.
  Result<void> start(const std::string& output_dir, int64_t num_steps);
  // Ends it and returns the file's path. Errors: none is running; the file cannot be written.
  Result<std::string> stop();
  // Whether a profile of a given number of steps has them all and only waits for stop().
  bool complete() const;
  bool running() const;

 private:
  Engine& engine_;
  mutable std::mutex mutex_;
  bool running_ = false;
  std::string output_dir_;
  int64_t last_step_ = 0;  // EngineStats::num_steps when it will be complete; 0: open end
  int64_t num_files_ = 0;
};

}  // namespace hadal::server
