#include "server/profiler.h"

#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <system_error>

namespace hadal::server {

Result<void> Profiler::start(const std::string& output_dir, int64_t num_steps) {
  const std::lock_guard lock(mutex_);
  if (running_) return invalid_argument("a profile is running already; /stop_profile ends it");
  std::error_code error;
  std::filesystem::create_directories(output_dir, error);
  if (!std::filesystem::is_directory(output_dir, error)) {
    return invalid_argument("output_dir is '{}'; must be a directory that can be made", output_dir);
  }
  HADAL_RETURN_IF_ERROR(engine_.start_profile(num_steps));
  running_ = true;
  output_dir_ = output_dir;
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
  const std::filesystem::path path =
      std::filesystem::path(output_dir_) /
      fmt::format("hadal-{}-{}-{}.trace.json", now.count(), ::getpid(), ++num_files_);
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(trace.data(), static_cast<std::streamsize>(trace.size()));
  file.close();
  if (!file) {
    return make_status(StatusCode::kResourceExhausted, "{}: the profile could not be written", path.string());
  }
  return path.string();
}

}  // namespace hadal::server
