#include "server/profiler.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>

namespace hadal::server {

namespace fs = std::filesystem;

Profiler::Profiler(Engine& engine, std::string root) : engine_(engine), root_(std::move(root)) {}

// Symbolic links are resolved before anything is created, because a link out of the root is as bad as "..".
Result<std::string> Profiler::make_dir(const std::string& output_dir) const {
  std::error_code error;
  fs::path root = fs::weakly_canonical(fs::absolute(root_), error);
  if (!root.has_filename()) root = root.parent_path();  // "dir/"
  const fs::path dir = error ? fs::path() : fs::weakly_canonical(root / output_dir, error);
  const auto end = std::mismatch(root.begin(), root.end(), dir.begin(), dir.end()).first;
  const fs::path asked = output_dir;
  const bool climbs = std::find(asked.begin(), asked.end(), "..") != asked.end();
  if (error || climbs || end != root.end()) {
    return invalid_argument("output_dir is '{}'; must be a directory below {} (--profile-dir)", output_dir,
                            root_);
  }
  fs::create_directories(dir, error);
  const fs::path probe = dir / fmt::format(".hadal-{}-probe", ::getpid());
  std::ofstream file(probe, std::ios::binary | std::ios::trunc);
  file << "probe" << std::flush;
  const bool writes = file.good();
  file.close();
  fs::remove(probe, error);
  if (!writes)
    return invalid_argument("output_dir is '{}'; no file can be written in {}", output_dir, dir.string());
  return dir.string();
}

Result<void> Profiler::start(const std::string& output_dir, int64_t num_steps) {
  const std::lock_guard lock(mutex_);
  if (running_) return invalid_argument("a profile is already running; /stop_profile ends it");
  HADAL_ASSIGN_OR_RETURN(std::string dir, make_dir(output_dir));
  HADAL_RETURN_IF_ERROR(engine_.start_profile(num_steps));
  running_ = true;
  output_dir_ = std::move(dir);
  last_step_ = num_steps > 0 ? engine_.stats().num_steps + num_steps : 0;
  return {};
}

bool Profiler::complete() const {
  const std::lock_guard lock(mutex_);
  return running_ && last_step_ > 0 && engine_.stats().num_steps >= last_step_;
}

bool Profiler::running() const {
  const std::lock_guard lock(mutex_);
  return running_;
}

Result<std::string> Profiler::stop() {
  const std::lock_guard lock(mutex_);
  if (!running_) return invalid_argument("no profile is running; /start_profile begins one");
  running_ = false;
  HADAL_ASSIGN_OR_RETURN(const std::string trace, engine_.stop_profile());
  const auto now =
      std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch());
  const fs::path path =
      fs::path(output_dir_) / fmt::format("hadal-{}-{}-{}.trace.json", now.count(), ::getpid(), ++num_files_);
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(trace.data(), static_cast<std::streamsize>(trace.size()));
  file.close();
  if (!file) {
    return make_status(StatusCode::kResourceExhausted, "{}: the profile could not be written", path.string());
  }
  return path.string();
}

}  // namespace hadal::server
