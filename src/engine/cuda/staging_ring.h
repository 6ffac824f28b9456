// Holds page-locked blocks. The host writes a step's inputs into them, or the device copies results into
// them. There is one block for each step that may be in flight and one for the step that is being written.
// Only the engine thread may use it.
#pragma once

#include <array>
#include <cstddef>

#include "tensor/cuda.h"

namespace hadal {

inline constexpr int kStagingDepth = 3;

class StagingRing {
 public:
  // Returns the block of step number `index` (modulo kStagingDepth), of at least `bytes` bytes. The step that
  // used the block before must have ended, because growing frees the block.
  std::byte* block(int index, size_t bytes) {
    PinnedBuffer& buffer = blocks_[static_cast<size_t>(index % kStagingDepth)];
    if (buffer.size() < bytes) buffer = PinnedBuffer(bytes + bytes / 2);
    return buffer.data();
  }
  std::byte* block(int index) const { return blocks_[static_cast<size_t>(index % kStagingDepth)].data(); }

 private:
  std::array<PinnedBuffer, kStagingDepth> blocks_;
};

}  // namespace hadal
