#include "model/cuda/shard_reader.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace hadal {

ShardReader::ShardReader(std::span<const MappedFile> shards) {
  shards_.reserve(shards.size());
  for (const MappedFile& file : shards) {
    const auto bytes = file.bytes();
    auto opened = RegularFile::open(file.path());
    if (!opened.ok()) throw ShardReadError(opened.status().message);
    shards_.push_back(
        {bytes.data(), bytes.data() + bytes.size(), std::move(opened).value(), file.path().string()});
  }
  std::sort(shards_.begin(), shards_.end(), [](const Shard& a, const Shard& b) { return a.begin < b.begin; });
}

void ShardReader::read(std::span<const std::byte> range, std::byte* out) const {
  const auto after =
      std::upper_bound(shards_.begin(), shards_.end(), range.data(),
                       [](const std::byte* address, const Shard& shard) { return address < shard.begin; });
  if (after == shards_.begin() || range.data() >= std::prev(after)->end) {
    std::memcpy(out, range.data(), range.size());
    return;
  }
  const Shard& shard = *std::prev(after);
  auto offset = static_cast<off_t>(range.data() - shard.begin);
  for (size_t left = range.size(); left > 0;) {
    const ssize_t count = ::pread(shard.file.fd(), out, left, offset);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      throw ShardReadError(fmt::format("{}: cannot be read at byte {}: {}", shard.path, offset,
                                       count < 0 ? std::strerror(errno) : "the file ends"));
    }
    out += count;
    offset += count;
    left -= static_cast<size_t>(count);
  }
}

}  // namespace hadal
