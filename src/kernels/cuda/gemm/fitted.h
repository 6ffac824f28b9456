// Holds every measured number by which gemm/choice.cpp, gemm/absorbed/choice.h and gemm/thin/config.h decide.
// The card is one NVIDIA H200 (132 multiprocessors, 4.3 TB/s). Each block names its unit and the command that
// measures it again; tests/tune/kernel_choices.txt then shows which choices have changed. This header is for
// the host alone and includes no CUDA header.
//
// A separate pure function makes the schedules inside the weight-streaming kernel: schedule_of in
// gemm/skinny/schedule.h, measured by `cuda_gemm_bench --sweep`.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/params/linear.h"

namespace hadal::cuda::fitted {

// Holds the costs of the tiled kernel's tiles, in the order of kLinearTiles, in microseconds with all
// multiprocessors busy: `step` for one block of 128 of k of a tile, `tile` for everything else (fill, store,
// joining sums). Only their ratios decide. `cuda_gemm_large_bench fit` prints them.
struct TileCost {
  double step, tile;
};
inline constexpr size_t kNumTiles = 6;
struct TileCosts {
  TileCost of[kNumTiles];
};
constexpr TileCosts tile_costs(WeightType type) {
  switch (type) {
    // 256x128, 128x192, 128x128, 128x64, 128x64 splits 2, 128x64 splits 4
    case WeightType::kInt8Channel:
      return {{{0.58, 2.53}, {0.438, 1.95}, {0.366, 0.46}, {0.237, 0.39}, {0.288, 3.13}, {0.24, 3.13}}};
    case WeightType::kFp8Channel:
      return {{{0.62, 3.25}, {0.499, 2.04}, {0.318, 1.97}, {0.266, 0.12}, {0.296, 3.28}, {0.235, 3.3}}};
    case WeightType::kInt8Block:
      return {{{0.886, 1.88}, {0.627, 2.02}, {0.45, 1.25}, {0.289, 0.72}, {0.3, 2.95}, {0.302, 2.79}}};
    default:
      return {{{0.677, 1.73}, {0.544, 1.06}, {0.389, 0.73}, {0.29, 0.19}, {0.29, 1.93}, {0.292, 2.67}}};
  }
}
// Clusters of four blocks leave some multiprocessors of a group free, so only this many tenths of the counted
// clusters run at once.
inline constexpr int kTenthsOfClustersOfFour = 9;

// These describe a shared last round (gemm/tiled/rest.h), in microseconds except for kSharedStep.
// cuda_gemm_large_bench measures them, in its rows of n 2112 (docs/kernels/cuda-wgmma-gemm.md, "The last
// round, shared").
inline constexpr double kAddSums = 2.5;         // an owner adds one helper's sums of a tile
inline constexpr double kStoreSums = 0.75;      // a helper stores its sums of a tile
inline constexpr double kSumsVisible = 1.0;     // from then until the owner sees them
inline constexpr double kLeastTimeSaved = 2.0;  // below this nothing is shared
// A step of a shared round takes as long as this many steps of an unshared one, because blocks no longer go
// through k together, and so each block's loads go to the L2 on their own.
inline constexpr double kSharedStep = 1.65;
inline constexpr int kMostHelpersPerTile = 2;

// Linears change their kernel at these thresholds: bytes of weights, bytes of a row of W, or counts. They are
// measured by cuda_gemm_bench, and by `hadal tune fp8-gemm --model-path DIR`, whose last line says which rows
// the heuristic chooses worse than the search (docs/kernels/cuda-skinny-gemm.md, "Borders").
inline constexpr int64_t kMaxThinBytes = int64_t{18} << 20;
inline constexpr int64_t kMaxThinBytesInt8 = int64_t{30} << 20;  // INT8 with channel scales, up to eight rows
inline constexpr int64_t kMaxThinRowBytes = 8192;
inline constexpr int64_t kMaxThinRowBytesOfFew = 16384;  // few blocks and up to eight rows
inline constexpr int64_t kShortRowBytes = 2048;          // small blocks, of which more run at once
inline constexpr int64_t kFewRows = 8;                   // rows of x
inline constexpr int kThinBlocksPerSm = 2;
inline constexpr int kShortThinBlocksPerSm = 4;
inline constexpr int64_t kMaxRouterOutputs = 256;
inline constexpr int64_t kMaxRouterRows = 2;               // rows of x with 16-bit weights
inline constexpr int64_t kMaxSkinnyRows16Bit = 32;         // above them the library is faster
inline constexpr int64_t kMaxSkinnyRows16BitRouters = 64;  // the same where n ≤ kMaxRouterOutputs

// From these numbers of pairs of a token and a head on, the tiled kernels of the absorbed products are
// faster. cuda_gemm_absorbed_bench measures this (docs/kernels/cuda-absorbed.md).
inline constexpr int64_t kAbsorbPairsOfFewHeads = 768;  // fewer than kManyHeads heads
inline constexpr int kManyHeads = 64;
inline constexpr int64_t kAbsorbPairs = 512;   // 16-bit weights
inline constexpr int64_t kAbsorbPairsFp8 = 0;  // always
inline constexpr int64_t kExpandPairs = 512;   // 16-bit weights
inline constexpr int64_t kExpandPairsFp8 = 1024;
inline constexpr int64_t kExpandFewTokens = 16;  // one block of the kernel for few tokens per head
// expand_value's tiled kernel has tiles of one of these numbers of tokens; `cuda_gemm_absorbed_bench`
// measures both.
inline constexpr int kExpandTile = 64;
inline constexpr int kExpandTallTile = 128;  // where its blocks run at once, and those of kExpandTile do not

// Describes a block of the kernel for small matrices (gemm/thin/kernel.cuh): it has `warps` warps, each with
// every warps-th chunk (128 bytes) of k. The first `depth` chunks of a warp are in registers, the others in
// shared memory. A warp loads `batch` chunks of x at once.
struct ThinBlock {
  int tokens, rows, warps, depth, batch;
  bool operator==(const ThinBlock&) const = default;
};
// Holds the fastest block for each kind of shape, as `cuda_gemm_bench --shapes v2,v3` measures it. "Short" is
// a k of at most kThinShortChunks chunks.
struct ThinBlocks {
  ThinBlock tokens_16_bytes = {16, 16, 8, 2, 2};  // 8-bit weights
  ThinBlock tokens_16_tall = {16, 24, 8, 1, 4};   // 16-bit weights, see kThinTallChunks
  ThinBlock tokens_16 = {16, 16, 8, 2, 4};        // 16-bit weights
  ThinBlock short_int8 = {8, 16, 4, 4, 4};
  ThinBlock short_fp8_many = {8, 16, 4, 0, 4};  // more tiles than multiprocessors
  ThinBlock short_fp8 = {8, 16, 8, 2, 4};
  ThinBlock long_fp8 = {8, 16, 8, 0, 8};
  ThinBlock others = {8, 16, 8, 4, 4};  // up to eight tokens
};
inline constexpr int kThinShortChunks = 16;
// Tall blocks are for at most this many chunks of k, and for more than one tile per kThinTallTiles
// multiprocessors.
inline constexpr int kThinTallChunks = 32;
inline constexpr int kThinTallTiles = 2;

}  // namespace hadal::cuda::fitted
