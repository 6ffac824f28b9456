// Reads which requests an engine's scheduler got and what it planned, so that a test can check that the case
// which it is about has occurred.
#pragma once

#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>

namespace hadal::testing {

// RecordedPlans is a file for EngineOptions::record_plans, which is removed at the end.
class RecordedPlans {
 public:
  RecordedPlans() = default;
  RecordedPlans(const RecordedPlans&) = delete;
  RecordedPlans& operator=(const RecordedPlans&) = delete;
  ~RecordedPlans() { std::filesystem::remove(path_); }

  std::string path() const { return path_.string(); }

  // Returns how often the record has this text. The engine must have ended, because the record is complete
  // then.
  int64_t count(std::string_view part) const {
    std::ostringstream stream;
    stream << std::ifstream(path_).rdbuf();
    const std::string text = stream.str();
    int64_t count = 0;
    for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size()))
      ++count;
    return count;
  }

 private:
  static std::filesystem::path new_path() {
    static std::atomic<int> num_paths = 0;
    return std::filesystem::temp_directory_path() / fmt::format("hadal-plans-{}-{}", getpid(), ++num_paths);
  }

  const std::filesystem::path path_ = new_path();
};

}  // namespace hadal::testing
