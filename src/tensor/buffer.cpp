#include "tensor/buffer.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>

namespace hadal {
namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kArenaBlock = size_t{4} << 20;

size_t round_up(size_t value, size_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace

Buffer::Buffer(size_t size_bytes, Device device) : size_(size_bytes), device_(device) {
  HADAL_CHECK(device.type == DeviceType::kCpu, "Buffer allocates CPU memory only");
  if (size_bytes == 0) return;
  const size_t alignment = size_bytes >= kHugePage ? kHugePage : kAlignment;
  const size_t padded = round_up(size_bytes, alignment);
  void* data = std::aligned_alloc(alignment, padded);
  HADAL_CHECK(data != nullptr, "cannot allocate {} bytes", size_bytes);
  if (alignment == kHugePage) ::madvise(data, padded, MADV_HUGEPAGE);  // advice only: a failure is harmless
  data_ = std::unique_ptr<std::byte, Free>(static_cast<std::byte*>(data));
}

void Buffer::Free::operator()(std::byte* data) const {
  std::free(data);
}

void* Arena::allocate(size_t size_bytes) {
  const size_t needed = round_up(std::max<size_t>(size_bytes, 1), kAlignment);
  while (block_ < blocks_.size() && used_ + needed > blocks_[block_].size()) {
    ++block_;
    used_ = 0;
  }
  if (block_ == blocks_.size()) blocks_.emplace_back(std::max(needed, kArenaBlock), device_);
  void* result = blocks_[block_].data() + used_;
  used_ += needed;
  total_ += needed;
  high_water_ = std::max(high_water_, total_);
  return result;
}

}  // namespace hadal
