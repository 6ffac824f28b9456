// Holds page-locked blocks in which the host writes what a step copies to the device, or into which the
// device copies results: one for each step that may be in flight and one that is being written. Only the
// engine thread may use it.
#pragma once

#include <array>
#include <cstddef>

#include "tensor/cuda.h"

namespace hadal {

inline constexpr int kStagingDepth = 3;

class StagingRing {
 public:
  // Returns the block of step number `index` (modulo kStagingDepth), of at least `bytes`. The step that used
  // it before must have ended, because growing frees the block.
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
