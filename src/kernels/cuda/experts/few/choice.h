// The decisions on the kernels for few tokens (few/few_experts.h): the layers that run on them, how they cut
// k, and the memory that they need. Host only, free of CUDA headers, part of every build.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/experts/shape.h"

namespace hadal::cuda {

inline constexpr int64_t kMaxFewTokens = 8;

namespace few {

// The router's kernel writes one sum for each split of k: parts[split][token][expert].
inline constexpr int kRouterSplits = 8;
inline constexpr int kMaxRouterK = 8192;  // the warps of a split's block hold so much of k in registers
// The constants with which the experts' kernel is compiled.
inline constexpr int kTileRows = 64;      // rows of W of a tile
inline constexpr int kSlotK = 128;        // bytes of k of a slot
inline constexpr int kMaxSplits = 8;      // of gate_up's k
inline constexpr int kMaxDownSlots = 24;  // of down's k: rows of two experts beside the ring
inline constexpr int kMaxExperts = 288;   // with the shared ones: one thread for each

// The splits of gate_up's k that a shape gets: 1 … kMaxSplits.
int splits_of(const ExpertsShape& shape);
// True if the kernels are compiled and right for the shape with so many splits.
bool supports(const ExpertsShape& shape, int splits);
// True if they are faster than the separate kernels (docs/kernels/cuda-few-experts.md). The answer is the
// same for all numbers of tokens with the same next power of two.
bool is_faster(const ExpertsShape& shape, int splits);

// The scratch memory, in floats: the router's parts, then the sums of gate_up's splits.
size_t parts_count(const ExpertsShape& shape);
size_t sums_count(const ExpertsShape& shape, int splits);
size_t scratch_bytes(const ExpertsShape& shape, int splits);

}  // namespace few
}  // namespace hadal::cuda
