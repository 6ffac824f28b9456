#include "model/safetensors_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

namespace hadal {
namespace {

namespace fs = std::filesystem;

class SafetensorsWriterTest : public ::testing::Test {
 protected:
  void SetUp() override {
    dir_ = fs::temp_directory_path() / ("hadal-writer-" + std::to_string(::getpid()));
    fs::create_directories(dir_);
  }
  void TearDown() override { fs::remove_all(dir_); }
  static Result<void> write_to(const fs::path& path) {
    const std::vector<float> values = {1.0F, 2.0F};
    const std::vector<std::span<const std::byte>> data = {std::as_bytes(std::span(values))};
    return write_safetensors(path, {{.name = "x", .dtype = DType::kF32, .shape = {2}}}, data);
  }

  fs::path dir_;
};

TEST_F(SafetensorsWriterTest, ReplacesARegularFileAndLeavesNoPartialOne) {
  const fs::path path = dir_ / "a.safetensors";
  ASSERT_TRUE(write_to(path).ok());
  const auto size = fs::file_size(path);
  ASSERT_TRUE(write_to(path).ok());
  EXPECT_EQ(fs::file_size(path), size);
  EXPECT_EQ(std::distance(fs::directory_iterator(dir_), fs::directory_iterator()), 1);
}

TEST_F(SafetensorsWriterTest, WritesThroughALinkInsteadOfReplacingIt) {
  ASSERT_TRUE(write_to(dir_ / "target.safetensors").ok());
  fs::resize_file(dir_ / "target.safetensors", 0);
  fs::create_symlink("target.safetensors", dir_ / "link.safetensors");
  ASSERT_TRUE(write_to(dir_ / "link.safetensors").ok());
  EXPECT_TRUE(fs::is_symlink(dir_ / "link.safetensors"));
  EXPECT_GT(fs::file_size(dir_ / "target.safetensors"), 0U);
}

TEST_F(SafetensorsWriterTest, RefusesWhatIsNotARegularFileAndLeavesItAlone) {
  const fs::path pipe = dir_ / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  for (const fs::path& path : {pipe, dir_}) {
    const Result<void> result = write_to(path);
    ASSERT_FALSE(result.ok());
    EXPECT_THAT(result.status().message, ::testing::HasSubstr("not a regular file"));
  }
  EXPECT_TRUE(fs::is_fifo(pipe));
}

}  // namespace
}  // namespace hadal
