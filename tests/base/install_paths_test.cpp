#include "base/install_paths.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <regex>
#include <string>

#include "base/version.h"

namespace hadal {
namespace {

class InstallPathsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = std::filesystem::temp_directory_path() /
            ("hadal-install-paths-" + std::to_string(::getpid()) + "-" +
             ::testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::create_directories(root_);
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  std::filesystem::path root_;
};

TEST_F(InstallPathsTest, FindsTheModelOfAnInstalledTree) {
  std::filesystem::create_directories(root_ / "share/hadal/models/hadal-tiny");
  EXPECT_EQ(bundled_model("hadal-tiny", root_ / "bin/hadal"), root_ / "share/hadal/models/hadal-tiny");
  EXPECT_EQ(bundled_model("hadal-large", root_ / "bin/hadal"), std::nullopt);
}

TEST_F(InstallPathsTest, FindsTheModelOfTheSourceTree) {
  std::filesystem::create_directories(root_ / "models/hadal-tiny");
  EXPECT_EQ(bundled_model("hadal-tiny", root_ / "build/cpu-release/hadal"), root_ / "models/hadal-tiny");
}

TEST_F(InstallPathsTest, OnlyPlainNamesAreLookedUp) {
  std::filesystem::create_directories(root_ / "share/hadal/models/a/b");
  EXPECT_NE(bundled_model("a", root_ / "bin/hadal"), std::nullopt);
  for (const char* name : {"", ".", "..", "a/b", "/a", "../models"}) {
    EXPECT_EQ(bundled_model(name, root_ / "bin/hadal"), std::nullopt) << name;
  }
}

TEST_F(InstallPathsTest, FindsKernelConfigsOfEitherTree) {
  EXPECT_EQ(bundled_kernel_configs(root_ / "bin/hadal"), std::nullopt);
  std::filesystem::create_directories(root_ / "share/kernel-configs");
  EXPECT_EQ(bundled_kernel_configs(root_ / "build/cpu-release/hadal"), root_ / "share/kernel-configs");
  std::filesystem::create_directories(root_ / "share/hadal/kernel-configs");
  EXPECT_EQ(bundled_kernel_configs(root_ / "bin/hadal"), root_ / "share/hadal/kernel-configs");
}

TEST(Version, IsThreeNumbers) {
  EXPECT_TRUE(std::regex_match(std::string(version()), std::regex(R"(\d+\.\d+\.\d+)"))) << version();
}

}  // namespace
}  // namespace hadal
