// Tests how much memory this process can have: the machine's, or the lowest limit of a control group above
// it.
#include "base/available_memory.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace hadal {
namespace {

constexpr size_t kGiB = size_t{1} << 30;

// Root is a folder that stands in for the root of the file system, and is removed with the object.
class Root {
 public:
  Root() {
    std::string pattern = ::testing::TempDir() + "hadal_memory_XXXXXX";
    path_ = ::mkdtemp(pattern.data());
  }
  ~Root() { std::filesystem::remove_all(path_); }
  Root(const Root&) = delete;
  Root& operator=(const Root&) = delete;

  void write(const std::string& name, const std::string& text) {
    const std::filesystem::path file = path_ + name;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  void limit(const std::string& name, size_t bytes) { write(name, std::to_string(bytes) + "\n"); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

class TotalMemory : public ::testing::Test {
 protected:
  TotalMemory() { root_.write("/proc/meminfo", "MemTotal:       67108864 kB\nMemFree: 1 kB\n"); }
  size_t total() const { return total_memory_bytes(root_.path()).value_or(0); }

  Root root_;
};

TEST_F(TotalMemory, IsTheMachinesWithoutALimit) {
  EXPECT_EQ(total(), 64 * kGiB);
  root_.write("/proc/self/cgroup", "0::/user.slice/session-1.scope\n");
  root_.write("/sys/fs/cgroup/user.slice/memory.max", "max\n");
  root_.write("/sys/fs/cgroup/user.slice/session-1.scope/memory.max", "max\n");
  EXPECT_EQ(total(), 64 * kGiB);
}

TEST_F(TotalMemory, IsTheLimitOfTheServicesOwnGroup) {
  root_.write("/proc/self/cgroup", "0::/system.slice/hadal.service\n");
  root_.limit("/sys/fs/cgroup/system.slice/hadal.service/memory.max", kGiB);
  EXPECT_EQ(total(), kGiB);
}

TEST_F(TotalMemory, IsTheLowestLimitOfTheGroupsAbove) {
  root_.write("/proc/self/cgroup", "0::/system.slice/hadal.service/inner\n");
  root_.limit("/sys/fs/cgroup/system.slice/hadal.service/inner/memory.max", 8 * kGiB);
  root_.limit("/sys/fs/cgroup/system.slice/hadal.service/memory.max", 3 * kGiB);
  root_.limit("/sys/fs/cgroup/system.slice/memory.max", 5 * kGiB);
  root_.limit("/sys/fs/cgroup/other.slice/memory.max", kGiB);
  EXPECT_EQ(total(), 3 * kGiB);
  root_.limit("/sys/fs/cgroup/memory.max", 2 * kGiB);
  EXPECT_EQ(total(), 2 * kGiB);
}

TEST_F(TotalMemory, FollowsTheMemoryGroupsOfVersion1) {
  root_.write("/proc/self/cgroup",
              "11:memory_other:/no\n10:cpu,cpuacct:/cpu\n9:hugetlb,memory:/docker/abc\n0::/docker/v2\n");
  root_.limit("/sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", 4 * kGiB);
  root_.limit("/sys/fs/cgroup/memory/memory.limit_in_bytes", 9'223'372'036'854'771'712U);
  root_.limit("/sys/fs/cgroup/memory/cpu/memory.limit_in_bytes", kGiB);
  root_.limit("/sys/fs/cgroup/memory/no/memory.limit_in_bytes", kGiB);
  EXPECT_EQ(total(), 4 * kGiB);
  root_.limit("/sys/fs/cgroup/memory/docker/memory.limit_in_bytes", 2 * kGiB);
  EXPECT_EQ(total(), 2 * kGiB);
}

TEST_F(TotalMemory, IsTheMountPointsLimitInAContainerThatSeesAnotherPath) {
  root_.write("/proc/self/cgroup", "4:memory:/docker/abc\n0::/../../elsewhere\n");
  root_.limit("/sys/fs/cgroup/memory/memory.limit_in_bytes", 6 * kGiB);
  EXPECT_EQ(total(), 6 * kGiB);
  root_.limit("/sys/fs/cgroup/memory.max", 5 * kGiB);
  EXPECT_EQ(total(), 5 * kGiB);
}

TEST_F(TotalMemory, IsUnknownWhereNothingCanBeRead) {
  const Root empty;
  EXPECT_FALSE(total_memory_bytes(empty.path()).has_value());
  root_.write("/proc/self/cgroup", "nonsense\n0:\n0::\n");
  EXPECT_EQ(total(), 64 * kGiB);
  EXPECT_GT(total_memory_bytes().value_or(0), 0U) << "this machine's";
}

}  // namespace
}  // namespace hadal
