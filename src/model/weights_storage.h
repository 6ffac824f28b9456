// WeightStorage owns the memory behind a ModelWeights. The loading thread builds it; afterwards it is
// immutable. Only the loader includes this header; other code only keeps a pointer to the storage.
#pragma once

#include <cstddef>
#include <iterator>
#include <span>
#include <vector>

#include "base/mapped_file.h"
#include "tensor/buffer.h"

namespace hadal {

class WeightStorage {
 public:
  explicit WeightStorage(size_t limit_bytes) : limit_(limit_bytes) {}

  // Returns memory that is uninitialised, aligned to 64 bytes, and kept as long as this object. Small tensors
  // share slabs, so that huge pages are not wasted on their edges. Beyond the limit it allocates nothing more
  // and returns null, while allocated_bytes() continues to count what would be needed. Check over_limit()
  // before using any of the memory.
  std::byte* allocate(size_t size_bytes);
  bool over_limit() const { return allocated_ > limit_; }
  size_t allocated_bytes() const { return allocated_; }

  // Weights are used directly from these mappings. No thread reads them ahead: a background thread that did
  // so was slower, both with a warm page cache and with a cold one, because such a thread competes with the
  // page faults of the first tokens.
  void adopt(std::vector<MappedFile> shards) {
    shards_.insert(shards_.end(), std::make_move_iterator(shards.begin()),
                   std::make_move_iterator(shards.end()));
  }

 private:
  std::vector<MappedFile> shards_;
  std::vector<Buffer> slabs_;
  size_t slab_used_ = 0;
  size_t allocated_ = 0;
  size_t limit_;
};

// Advises the system about the whole pages inside a range of a file mapping. This is a hint, which never
// fails.
void advise_will_need(std::span<const std::byte> range);
void advise_dont_need(std::span<const std::byte> range);

}  // namespace hadal
