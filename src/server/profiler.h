// Serves /start_profile and /stop_profile: a Chrome trace of engine steps in a file below a directory that
// the operator chose. Any thread may call it; calls may wait for the engine and for the disk, so they belong
// on a background thread.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>

#include "base/result.h"
#include "engine/engine.h"

namespace hadal::server {

class Profiler {
 public:
  // No file is written outside of the directory `root`.
  Profiler(Engine& engine, std::string root);

  // Profiles `num_steps` steps from now on, or until stop() if 0. The file goes to `output_dir`, a directory
  // below the root (empty: the root itself), which is created if necessary. It is an error if a profile is
  // running already, or the directory is outside of the root, cannot be created or is not writable.
  Result<void> start(const std::string& output_dir, int64_t num_steps);
  // Ends the profile and returns the file's path. It is an error if none is running, or the file cannot be
  // written.
  Result<std::string> stop();
  // Returns true if a profile of a given number of steps has recorded all of them and waits only for stop().
  bool complete() const;
  bool running() const;

 private:
  Result<std::string> make_dir(const std::string& output_dir) const;

  Engine& engine_;
  const std::string root_;
  mutable std::mutex mutex_;
  bool running_ = false;
  std::string output_dir_;
  int64_t last_step_ = 0;  // EngineStats::num_steps when it will be complete; 0: unlimited
  int64_t num_files_ = 0;
};

}  // namespace hadal::server
