#include "model/weights_storage.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>

namespace hadal {
namespace {

constexpr size_t kHostAlignment = 64;
constexpr size_t kSlabBytes = size_t{64} << 20;

// Advises about the whole pages inside [begin, end).
void advise(std::span<const std::byte> range, int advice) {
  static const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = (reinterpret_cast<uintptr_t>(range.data()) + page - 1) / page * page;
  const auto end = (reinterpret_cast<uintptr_t>(range.data()) + range.size()) / page * page;
  if (begin < end) ::madvise(reinterpret_cast<void*>(begin), end - begin, advice);
}

}  // namespace

std::byte* WeightStorage::allocate(size_t size_bytes) {
  const size_t needed =
      (std::max<size_t>(size_bytes, 1) + kHostAlignment - 1) / kHostAlignment * kHostAlignment;
  allocated_ += needed;
  if (over_limit()) return nullptr;
  if (slabs_.empty() || slab_used_ + needed > slabs_.back().size()) {
    slabs_.emplace_back(std::max(needed, kSlabBytes));
    slab_used_ = 0;
  }
  std::byte* result = slabs_.back().data() + slab_used_;
  slab_used_ += needed;
  return result;
}

void advise_will_need(std::span<const std::byte> range) {
  advise(range, MADV_WILLNEED);
}

void advise_dont_need(std::span<const std::byte> range) {
  advise(range, MADV_DONTNEED);
}

}  // namespace hadal
