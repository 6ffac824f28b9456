// Decides how blocks of the kernel for small matrices (gemm/thin/kernel.cuh) hold W, by pure functions of the
// shape. This header includes no CUDA header.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/gemm/fitted.h"
#include "kernels/cuda/gemm/shape.h"
#include "kernels/cuda/limits.h"

namespace hadal::cuda::thin {

inline constexpr int64_t kMaxRows = 16;  // rows of x
inline constexpr int64_t kMaxOutputs = int64_t{1} << 20;
inline constexpr int kRows = 16;         // rows of W in a tile; some blocks have one and a half tiles
inline constexpr int kChunkBytes = 128;  // bytes of k
inline constexpr int kMostChunks = 32;   // at most, per warp

using Block = fitted::ThinBlock;

inline int tile_of_tokens(int64_t m) {
  return m <= 8 ? 8 : 16;
}

constexpr int chunks_of_warp(int k_chunks, int warps) {
  return (k_chunks + warps - 1) / warps;
}

// Returns the block for a shape. Sixteen tokens of bf16 are as many bytes per block as W, so x is read less
// often by fewer blocks with more rows of W. In FP8 the conversion of codes to f16 takes the most time, so
// most of W is in shared memory and all of x is loaded at once. Many tiles of short k are faster in blocks
// with half the warps, because twice as many blocks fit.
constexpr Block block_of(WeightType type, int tokens, int k_chunks, int64_t tiles, int num_sms) {
  const bool bytes = weight_element_bytes(type) == 1;
  const bool fp8 = bytes && !is_int8(type);
  constexpr fitted::ThinBlocks kBlocks;
  if (tokens == 16) {
    if (bytes) return kBlocks.tokens_16_bytes;
    const bool tall = tiles * fitted::kThinTallTiles > num_sms && k_chunks <= fitted::kThinTallChunks;
    return tall ? kBlocks.tokens_16_tall : kBlocks.tokens_16;
  }
  if (bytes && k_chunks <= fitted::kThinShortChunks) {
    if (!fp8) return kBlocks.short_int8;
    return tiles > num_sms ? kBlocks.short_fp8_many : kBlocks.short_fp8;
  }
  return fp8 ? kBlocks.long_fp8 : kBlocks.others;
}

// Returns the distance between the sums of two tokens, in floats. With it, the lanes of a quarter of a warp
// write to different banks.
constexpr int pitch(int rows) {
  return rows + 4;
}

// Describes shared memory, which holds first each warp's chunks (later replaced by its sums), then the scales
// and biases of channels, and then the scales of tokens.
struct Layout {
  int staged;  // chunks of one warp
  int warp;    // bytes of one warp
  int channels, bytes;

  constexpr Layout(WeightType type, const Block& b, int k_chunks)
      : staged(std::max(0, chunks_of_warp(k_chunks, b.warps) - b.depth)),
        warp(std::max(staged * b.rows * kChunkBytes, b.tokens * pitch(b.rows) * 4)),
        channels(b.warps * warp),
        bytes(channels + (is_channel_scaled(type) ? (2 * b.rows + b.tokens) * 4 : 0)) {}
};

// Returns true if a block can hold its rows of W. This does not depend on n.
constexpr bool fits(WeightType type, int tokens, int k_chunks) {
  const Block b = block_of(type, tokens, k_chunks, 1, 1);
  return chunks_of_warp(k_chunks, b.warps) <= kMostChunks &&
         Layout(type, b, k_chunks).bytes <= kMaxSharedBytes;
}

inline bool supports(const LinearShape& s) {
  return has_tensor_core_kernels(s.type) && s.m >= 1 && s.m <= kMaxRows && s.n >= 1 && s.n <= kMaxOutputs &&
         s.k > 0 && row_bytes(s.type, s.k) % 16 == 0 && s.aligned && sums_fit(s.type, s.k) &&
         fits(s.type, tile_of_tokens(s.m), blocks_of_k(s.type, s.k));
}

}  // namespace hadal::cuda::thin
