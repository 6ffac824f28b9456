#include "base/mapped_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>

#include "base/mapping_faults.h"
#include "base/regular_file.h"

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

// A plain open would wait for a writer, so this test hangs if it fails.
TEST_F(MappedFileTest, AFifoIsRefusedWithoutAWait) {
  ASSERT_EQ(::mkfifo((folder_ / "model.safetensors").c_str(), 0600), 0);
  const auto file = MappedFile::open(folder_ / "model.safetensors");
  ASSERT_FALSE(file.ok());
  EXPECT_EQ(file.status().code, StatusCode::kDataLoss);
  EXPECT_THAT(file.status().message, HasSubstr("model.safetensors: is not a regular file but a FIFO"));
  const auto text = read_text_file(folder_ / "model.safetensors");
  ASSERT_FALSE(text.ok());
  EXPECT_THAT(text.status().message, HasSubstr("not a regular file but a FIFO"));
}

TEST_F(MappedFileTest, ADeviceAndASocketAreRefused) {
  EXPECT_THAT(MappedFile::open("/dev/zero").status().message, HasSubstr("not a regular file but a device"));
  EXPECT_THAT(read_text_file("/dev/zero").status().message, HasSubstr("not a regular file but a device"));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string path = (folder_ / "s").string();
  ASSERT_LT(path.size(), sizeof(address.sun_path));
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  const int fd = ::socket(AF_UNIX, SOCK_STREAM, 0);
  ASSERT_EQ(::bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  EXPECT_THAT(MappedFile::open(path).status().message, HasSubstr("not a regular file but a socket"));
  ::close(fd);
}

TEST_F(MappedFileTest, ALinkIsFollowed) {
  std::filesystem::create_symlink(write("blob", "weights"), folder_ / "model.safetensors");
  EXPECT_EQ(text_of(*MappedFile::open(folder_ / "model.safetensors")), "weights");
}

TEST_F(MappedFileTest, TextOfAFileWhoseSizeIsUnknownIsRead) {
  const auto text = read_text_file("/proc/self/status");  // its size is 0
  ASSERT_TRUE(text.ok());
  EXPECT_THAT(*text, HasSubstr("VmRSS"));
  EXPECT_THAT(read_text_file("/proc/self/status", 16).status().message, HasSubstr("more than 16 bytes"));
}

class MappingFaultTest : public MappedFileTest {
 protected:
  // Maps `name` of four pages, removes all but the first and reads byte 8200.
  void read_beyond_the_end(const std::string& name) {
    const size_t page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
    const auto path = write(name, std::string(4 * page, 'x'));
    const auto file = MappedFile::open(path).value();
    const auto after = MappedFile::open(write("other", "y")).value();
    std::filesystem::resize_file(path, page);
    const volatile std::byte* bytes = file.bytes().data();
    (void)bytes[2 * page + 8];
  }
};

TEST_F(MappingFaultTest, EndsTheProcessAndNamesFileAndByte) {
  const size_t page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const std::string line = "hadal: error: .*/model.safetensors: byte " + std::to_string(2 * page + 8) +
                           " of " + std::to_string(4 * page) + " cannot be read: ";
  EXPECT_EXIT(
      {
        end_on_mapping_faults(7);
        read_beyond_the_end("model.safetensors");
      },
      ::testing::ExitedWithCode(7), line);
}

TEST_F(MappingFaultTest, NamesTheFileThatIsMappedNow) {
  EXPECT_EXIT(
      {
        end_on_mapping_faults(7);
        for (int i = 0; i < 3; ++i) {
          auto first = MappedFile::open(write("first", "1")).value();
          auto second = MappedFile::open(write("second", "2")).value();
          first = std::move(second);
        }
        read_beyond_the_end("third");
      },
      ::testing::ExitedWithCode(7), "/third: byte ");
}

TEST_F(MappingFaultTest, WritesOneLineForAnyName) {
  EXPECT_EXIT(
      {
        end_on_mapping_faults(7);
        read_beyond_the_end("a\nb\x1b" + std::string(200, 'z'));
      },
      ::testing::ExitedWithCode(7), "/a.nb.x1bz+: byte [0-9]+ of [0-9]+ cannot be read: [^\n]*\n$");
}

TEST_F(MappingFaultTest, LeavesOtherFaultsAsTheyWere) {
  const auto fail = [] {
    ::signal(SIGBUS, SIG_DFL);
    end_on_mapping_faults(7);
  };
  EXPECT_EXIT(
      {
        fail();
        ::raise(SIGBUS);
      },
      ::testing::KilledBySignal(SIGBUS), "");
  const auto unrecorded = [this] {  // a mapping that is not recorded
    const size_t page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
    const auto path = write("unrecorded", std::string(2 * page, 'x'));
    const auto file = RegularFile::open(path).value();
    const void* data = ::mmap(nullptr, 2 * page, PROT_READ, MAP_PRIVATE, file.fd(), 0);
    std::filesystem::resize_file(path, 0);
    (void)*static_cast<const volatile char*>(data);
  };
  EXPECT_EXIT(
      {
        fail();
        unrecorded();
      },
      ::testing::KilledBySignal(SIGBUS), "");
}

TEST_F(MappedFileTest, AnUnreadableFileSaysWhy) {
  const auto path = write("secret", "x");
  std::filesystem::permissions(path, std::filesystem::perms::none);
  // Root may read every file, so root opens the file as the user nobody.
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
