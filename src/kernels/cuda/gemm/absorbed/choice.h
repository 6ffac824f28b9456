// Which kernel computes an absorbed product: the one for few tokens (gemm/absorbed/few.cu) or the tiled one
// (gemm/absorbed/absorb_tiled.cu, gemm/absorbed/expand_tiled.cu). From the shape alone, so that equal
// arguments get equal bits; and from the next power of two of the tokens, so that a batch padded to its
// graph's size gets the bits that it has without padding (sizes of graphs given by hand may still lie behind
// a border). Host only; the borders are measurements on one H200 (docs/kernels/cuda-absorbed.md).
#pragma once

#include <cstdint>

#include "kernels/cuda/padding.h"
#include "kernels/params/linear.h"

namespace hadal::cuda {

enum class AbsorbedKernel : uint8_t { kFew, kTiled };

// A few-token kernel's time grows with the tokens as soon as its blocks fill the device, that of a tiled one
// with tiles of 64; its start is longer by a head's weights, which it waits for as a whole. FP8 codes are
// half as much to wait for, but are widened first.
inline AbsorbedKernel choose_absorb_query(WeightType type, int64_t m, int num_heads) {
  const int64_t pairs = num_heads < 64 ? 768 : type == WeightType::kFp8Block ? 0 : 512;
  return padded_tokens(m) * num_heads >= pairs ? AbsorbedKernel::kTiled : AbsorbedKernel::kFew;
}
// Its few-token kernel has a block for 16 tokens of a head, each of which reads all of the head's weights.
inline AbsorbedKernel choose_expand_value(WeightType type, int64_t m, int num_heads) {
  const int64_t tokens = padded_tokens(m);
  const int64_t pairs = type == WeightType::kFp8Block ? 1024 : 512;
  return tokens > 16 && tokens * num_heads > pairs ? AbsorbedKernel::kTiled : AbsorbedKernel::kFew;
}

// Tokens a tile of expand_value's tiled kernel: 64, or 128 where those blocks still run at once and twice as
// many would not.
inline int expand_value_tile(int64_t m, int num_heads, int num_sms) {
  return (m + 63) / 64 * num_heads > num_sms && (m + 127) / 128 * num_heads <= num_sms ? 128 : 64;
}

}  // namespace hadal::cuda
