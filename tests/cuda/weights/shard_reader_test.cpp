// Reads ranges of mapped files; needs no GPU.
#include "model/cuda/shard_reader.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <numeric>

#include "tests/cuda/weights/placed_weights.h"

namespace hadal {
namespace {

class ShardReaderFiles : public ::testing::Test {
 protected:
  MappedFile file(const std::string& name, size_t size, char first) {
    std::string text(size, '\0');
    std::iota(text.begin(), text.end(), first);
    std::ofstream(scratch_.path() / name, std::ios::binary)
        .write(text.data(), static_cast<std::streamsize>(size));
    return MappedFile::open(scratch_.path() / name).value();
  }
  testing::ScratchDirectory scratch_;
};

TEST_F(ShardReaderFiles, ReadsRangesOfAnyFileAndOfOtherMemory) {
  std::vector<MappedFile> shards;
  shards.push_back(file("a", 5000, 1));
  shards.push_back(file("empty", 0, 0));
  shards.push_back(file("b", 70000, 9));
  const ShardReader reader(shards);
  const std::vector<std::byte> other(100, std::byte{42});
  for (const auto& range : {shards[0].bytes(), shards[2].bytes(), shards[0].bytes().subspan(4999),
                            shards[2].bytes().subspan(4097, 60001), shards[2].bytes().first(1),
                            std::span<const std::byte>(other)}) {
    std::vector<std::byte> out(range.size() + 1, std::byte{0xff});
    reader.read(range, out.data());
    EXPECT_EQ(std::memcmp(out.data(), range.data(), range.size()), 0);
    EXPECT_EQ(out.back(), std::byte{0xff});
  }
}

TEST_F(ShardReaderFiles, FilesThatEndEarlyAreNamed) {
  std::vector<MappedFile> shards;
  shards.push_back(file("a", 10000, 1));
  const ShardReader reader(shards);
  std::filesystem::resize_file(scratch_.path() / "a", 6000);
  std::vector<std::byte> out(10000);
  try {
    reader.read(shards[0].bytes(), out.data());
    FAIL() << "read past the end";
  } catch (const ShardReadError& error) {
    EXPECT_EQ(error.what(),
              (scratch_.path() / "a").string() + ": cannot be read at byte 6000: the file ends");
  }
  std::filesystem::remove(scratch_.path() / "a");
  EXPECT_THROW(ShardReader{shards}, ShardReadError);
}

}  // namespace
}  // namespace hadal
