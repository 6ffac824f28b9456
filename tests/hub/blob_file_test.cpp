// Tests blobs and their checksums, and the lock that keeps two writers apart.
#include "hub/blob_file.h"

#include <gmock/gmock.h>

#include <atomic>
#include <thread>

#include "base/mapped_file.h"
#include "hub/file_lock.h"
#include "tests/model/checkpoint_files.h"

namespace hadal::hub {
namespace {

using ::hadal::testing::TempDir;
using ::hadal::testing::write_file;
using ::testing::HasSubstr;

constexpr std::string_view kContent = "hello\n";
// `printf 'hello\n' | sha256sum` and `printf 'hello\n' | git hash-object --stdin` print these.
const std::string kContentSha256 = "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03";
const std::string kContentGitSha1 = "ce013625030ba8dba906f756967f9e9ca394464a";

std::span<const std::byte> bytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

Result<BlobFile> open(const TempDir& dir, const RemoteFile& file) {
  return BlobFile::open(dir.path() / "blob.incomplete", file, [] { return false; });
}

TEST(Checksum, IsSha256OrGitsSha1OfABlob) {
  for (const std::string& wanted : {kContentSha256, kContentGitSha1}) {
    Checksum checksum(wanted, kContent.size());
    checksum.add(bytes(kContent.substr(0, 2)));
    checksum.add(bytes(kContent.substr(2)));
    EXPECT_EQ(checksum.finish(), wanted);
  }
}

TEST(BlobFile, GoesOnWhereAnEarlierAttemptEnded) {
  const TempDir dir;
  const RemoteFile file{.name = "f", .size = 6, .checksum = kContentSha256};
  {
    auto first = open(dir, file);
    ASSERT_TRUE(first->append(bytes("hel")).ok());
  }
  auto second = open(dir, file);
  EXPECT_EQ(second->size(), 3);
  EXPECT_FALSE(second->is_full());
  ASSERT_TRUE(second->append(bytes("lo\n")).ok());
  ASSERT_TRUE(second->is_full());
  ASSERT_TRUE(second->finish(dir.path() / "blob").ok());
  EXPECT_EQ(*read_text_file(dir.path() / "blob"), kContent);
  EXPECT_FALSE(std::filesystem::exists(dir.path() / "blob.incomplete"));
}

TEST(BlobFile, AWrongChecksumGivesNoBlobAndARestartMendsIt) {
  const TempDir dir;
  auto blob = open(dir, {.name = "f", .size = 6, .checksum = kContentGitSha1});
  ASSERT_TRUE(blob->append(bytes("hullo\n")).ok());
  const auto finished = blob->finish(dir.path() / "blob");
  EXPECT_EQ(finished.status().code, StatusCode::kDataLoss);
  EXPECT_THAT(finished.status().message, HasSubstr(kContentGitSha1));
  EXPECT_FALSE(std::filesystem::exists(dir.path() / "blob"));
  ASSERT_TRUE(blob->restart().ok());
  ASSERT_TRUE(blob->append(bytes(kContent)).ok());
  EXPECT_TRUE(blob->finish(dir.path() / "blob").ok());
}

TEST(BlobFile, ContentBeyondTheStatedSizeIsRefused) {
  const TempDir dir;
  auto blob = open(dir, {.name = "f", .size = 3, .checksum = kContentSha256});
  EXPECT_EQ(blob->append(bytes(kContent)).status().code, StatusCode::kDataLoss);
  EXPECT_EQ(blob->size(), 0);
}

TEST(BlobFile, ALeftoverThatIsTooLongIsEmptied) {
  const TempDir dir;
  write_file(dir.path() / "blob.incomplete", "more than six bytes");
  EXPECT_EQ(open(dir, {.name = "f", .size = 6, .checksum = kContentSha256})->size(), 0);
}

TEST(BlobFile, ALinkIsNotFollowed) {
  const TempDir dir;
  write_file(dir.path() / "precious", "text");
  std::filesystem::create_symlink("precious", dir.path() / "blob.incomplete");
  EXPECT_FALSE(open(dir, {.name = "f", .size = 1, .checksum = kContentSha256}).ok());
  EXPECT_EQ(*read_text_file(dir.path() / "precious"), "text");
}

TEST(FileLock, TheSecondWaitsUntilTheFirstIsGone) {
  const TempDir dir;
  const auto path = dir.path() / "locks" / "a.lock";
  auto first = FileLock::acquire(path, [] { return false; });
  ASSERT_TRUE(first.ok());
  std::atomic<bool> waits = false;
  std::atomic<bool> is_released = false;
  std::thread second([&] {
    const auto lock = FileLock::acquire(path, [&] {
      waits = true;
      std::this_thread::yield();
      return true;
    });
    EXPECT_TRUE(lock.ok());
    EXPECT_TRUE(is_released);
  });
  while (!waits) std::this_thread::yield();
  is_released = true;
  { const FileLock gone = std::move(first).value(); }
  second.join();
}

TEST(FileLock, AWaitThatIsCancelledIsAnError) {
  const TempDir dir;
  const auto first = FileLock::acquire(dir.path() / "a.lock", [] { return false; });
  ASSERT_TRUE(first.ok());
  const auto second = FileLock::acquire(dir.path() / "a.lock", [] { return false; });
  EXPECT_EQ(second.status().code, StatusCode::kCancelled);
}

}  // namespace
}  // namespace hadal::hub
