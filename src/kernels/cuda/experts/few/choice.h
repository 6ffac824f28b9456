// Decides which layers run on the kernels for few tokens (few/few_experts.h), how these kernels split k, and
// how much memory they need. This header is for the host alone, includes no CUDA header and is part of every
// build.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/experts/shape.h"

namespace hadal::cuda {

inline constexpr int64_t kMaxFewTokens = 8;

namespace few {

// The router's kernel writes one sum for each of these splits of k: parts[split][token][expert].
inline constexpr int kRouterSplits = 8;
inline constexpr int kMaxRouterK = 8192;  // the warps of a split's block hold all of its k in registers
// The experts' kernel is compiled with these constants.
inline constexpr int kTileRows = 64;      // rows of W in a tile
inline constexpr int kSlotK = 128;        // bytes of k in a slot
inline constexpr int kMaxSplits = 8;      // splits of gate_up's k
inline constexpr int kMaxDownSlots = 24;  // slots of down's k: rows of two experts beside the ring
inline constexpr int kMaxRoutedExperts = 256;
inline constexpr int kMaxAllExperts = 288;  // including shared experts: one thread for each expert

// Returns the number of splits of gate_up's k for a shape: 1 … kMaxSplits.
int splits_of(const ExpertsShape& shape);
// Returns true if the kernels are compiled and correct for the shape with this many splits.
bool supports(const ExpertsShape& shape, int splits);
// Returns true if these kernels are faster than the separate ones (docs/kernels/cuda-few-experts.md). The
// answer is the same for all numbers of tokens that have the same next power of two.
bool is_faster(const ExpertsShape& shape, int splits);

// The scratch memory holds the router's parts, then the sums of gate_up's splits. The first two functions
// count floats.
size_t parts_count(const ExpertsShape& shape);
size_t sums_count(const ExpertsShape& shape, int splits);
size_t scratch_bytes(const ExpertsShape& shape, int splits);

}  // namespace few
}  // namespace hadal::cuda
