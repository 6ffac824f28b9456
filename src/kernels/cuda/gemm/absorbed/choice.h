// Chooses the kernel that computes an absorbed product: the kernel for few tokens (gemm/absorbed/few.cu) or
// the tiled kernel (gemm/absorbed/absorb_tiled.cu, gemm/absorbed/expand_tiled.cu). The choice depends on the
// shape alone, so that equal arguments give equal bits. It uses the number of tokens rounded up to a power of
// two, so that a batch padded to its graph's size has the bits that it has without padding. (With graph sizes
// that a user has set, a batch and its graph may still have different kernels.) This header is for the host
// alone; the thresholds are in gemm/fitted.h.
#pragma once

#include <cstdint>

#include "kernels/cuda/gemm/fitted.h"
#include "kernels/cuda/padding.h"
#include "kernels/params/linear.h"

namespace hadal::cuda {

enum class AbsorbedKernel : uint8_t { kFew, kTiled };

// The time of the kernel for few tokens grows with every token once its blocks fill the device; that of the
// tiled kernel grows with every tile of 64 tokens. The tiled kernel starts later, because it waits for all
// weights of a head. FP8 codes are half as many bytes, but must be widened first.
inline AbsorbedKernel choose_absorb_query(WeightType type, int64_t m, int num_heads) {
  const int64_t pairs = num_heads < fitted::kManyHeads  ? fitted::kAbsorbPairsOfFewHeads
                        : type == WeightType::kFp8Block ? fitted::kAbsorbPairsFp8
                                                        : fitted::kAbsorbPairs;
  return padded_tokens(m) * num_heads >= pairs ? AbsorbedKernel::kTiled : AbsorbedKernel::kFew;
}
// The kernel for few tokens has one block per 16 tokens of a head, and each block reads all of the head's
// weights.
inline AbsorbedKernel choose_expand_value(WeightType type, int64_t m, int num_heads) {
  const int64_t tokens = padded_tokens(m);
  const int64_t pairs = type == WeightType::kFp8Block ? fitted::kExpandPairsFp8 : fitted::kExpandPairs;
  return tokens > fitted::kExpandFewTokens && tokens * num_heads > pairs ? AbsorbedKernel::kTiled
                                                                         : AbsorbedKernel::kFew;
}

// Returns the tokens per tile of expand_value's tiled kernel. This is the larger number if its blocks all run
// at once and the blocks of the smaller number would not; otherwise it is the smaller number.
inline int expand_value_tile(int64_t m, int num_heads, int num_sms) {
  const auto blocks = [&](int tile) { return (m + tile - 1) / tile * num_heads; };
  return blocks(fitted::kExpandTile) > num_sms && blocks(fitted::kExpandTallTile) <= num_sms
             ? fitted::kExpandTallTile
             : fitted::kExpandTile;
}

}  // namespace hadal::cuda
