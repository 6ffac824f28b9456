#include "base/mapped_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <utility>

namespace hadal {
namespace {

using ::testing::HasSubstr;

class MappedFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() /
              ("hadal-mapped-file-" + std::to_string(::getpid()) + "-" +
               ::testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path write(const std::string& name, const std::string& text) {
    std::ofstream(folder_ / name, std::ios::binary) << text;
    return folder_ / name;
  }

  static std::string text_of(const MappedFile& file) {
    return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
  }

  std::filesystem::path folder_;
};

TEST_F(MappedFileTest, ShowsTheFilesBytes) {
  const std::string text("weights\0and zeros", 17);
  const auto file = MappedFile::open(write("a.bin", text));
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(text_of(*file), text);
  EXPECT_EQ(file->path(), folder_ / "a.bin");
}

TEST_F(MappedFileTest, AnEmptyFileIsEmpty) {
  const auto file = MappedFile::open(write("empty", ""));
  ASSERT_TRUE(file.ok());
  EXPECT_TRUE(file->bytes().empty());
}

TEST_F(MappedFileTest, AGitLfsPointerIsNamed) {
  const std::string pointer =
      "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22e\nsize 12345\n";
  for (const char* name : {"model.safetensors", "tokenizer.json"}) {
    const auto file = MappedFile::open(write(name, pointer));
    ASSERT_FALSE(file.ok());
    EXPECT_EQ(file.status().code, StatusCode::kDataLoss);
    EXPECT_THAT(file.status().message, HasSubstr(std::string(name) + ": is a Git LFS pointer"));
    EXPECT_THAT(read_text_file(folder_ / name).status().message, HasSubstr("git lfs pull"));
  }
  EXPECT_TRUE(MappedFile::open(write("story.txt", "a " + pointer)).ok());
  EXPECT_TRUE(MappedFile::open(write("long", pointer + std::string(1024, 'x'))).ok());
}

TEST_F(MappedFileTest, MovesKeepTheMappingAlive) {
  auto opened = MappedFile::open(write("a", "first"));
  ASSERT_TRUE(opened.ok());
  MappedFile a = std::move(opened).value();
  MappedFile b = std::move(a);
  EXPECT_EQ(text_of(b), "first");
  EXPECT_TRUE(a.bytes().empty());  // NOLINT(bugprone-use-after-move): a moved-from mapping is empty
  auto second = MappedFile::open(write("b", "second"));
  ASSERT_TRUE(second.ok());
  b = std::move(second).value();
  EXPECT_EQ(text_of(b), "second");
}

TEST_F(MappedFileTest, AMissingFileIsNotFoundAndNamed) {
  const auto file = MappedFile::open(folder_ / "nowhere.safetensors");
  ASSERT_FALSE(file.ok());
  EXPECT_EQ(file.status().code, StatusCode::kNotFound);
  EXPECT_THAT(file.status().message, HasSubstr("nowhere.safetensors"));
}

TEST_F(MappedFileTest, ADirectoryIsNotARegularFile) {
  const auto file = MappedFile::open(folder_);
  ASSERT_FALSE(file.ok());
  EXPECT_EQ(file.status().code, StatusCode::kDataLoss);
  EXPECT_THAT(file.status().message, HasSubstr("not a regular file"));
}

TEST_F(MappedFileTest, AnUnreadableFileSaysWhy) {
  const auto path = write("secret", "x");
  std::filesystem::permissions(path, std::filesystem::perms::none);
  // Root may read every file, so root opens it as the user nobody.
  const bool is_root = ::geteuid() == 0;
  ASSERT_EQ(is_root ? ::seteuid(65534) : 0, 0);
  const auto file = MappedFile::open(path);
  ASSERT_EQ(is_root ? ::seteuid(0) : 0, 0);
  ASSERT_FALSE(file.ok());
  EXPECT_EQ(file.status().code, StatusCode::kDataLoss);
  EXPECT_THAT(file.status().message, HasSubstr("Permission denied"));
}

TEST_F(MappedFileTest, ReadTextFileReturnsTheTextAndLimitsItsSize) {
  const auto path = write("config.json", "{\"a\": 1}");
  const auto text = read_text_file(path);
  ASSERT_TRUE(text.ok());
  EXPECT_EQ(*text, "{\"a\": 1}");
  EXPECT_TRUE(read_text_file(path, 8).ok());
  const auto too_large = read_text_file(path, 7);
  ASSERT_FALSE(too_large.ok());
  EXPECT_THAT(too_large.status().message, HasSubstr("8 bytes; at most 7"));
  EXPECT_EQ(*read_text_file(write("empty", "")), "");
}

}  // namespace
}  // namespace hadal
