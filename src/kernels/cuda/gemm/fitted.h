// Holds every measured number by which gemm/choice.cpp, gemm/absorbed/choice.h and gemm/thin/config.h decide.
// The numbers were measured on one NVIDIA H200 (132 multiprocessors, 4.3 TB/s). Each group of numbers names
// its unit and the command that measures it again; tests/tune/kernel_choices.txt then shows which choices
// have changed. This header is for the host alone and includes no CUDA header.
//
// The schedules of the weight-streaming kernel come from a separate pure function, schedule_of in
// gemm/skinny/schedule.h. `cuda_gemm_bench --sweep` measures them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/params/linear.h"

namespace hadal::cuda::fitted {

// Holds the costs of the tiled kernel's tiles, in the order of kLinearTiles, in microseconds with all
// multiprocessors busy. `step` is the time of one step of a tile (128 of k), `tile` that of everything else
// (filling the ring, storing, joining sums). Only the ratios of the costs affect the choice.
// `cuda_gemm_large_bench fit` prints them.
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
// Clusters of four blocks leave some multiprocessors of a GPC unused, so only this many tenths of the
// clusters that the multiprocessors could hold run at once.
inline constexpr int kTenthsOfClustersOfFour = 9;

// These describe a shared last round (gemm/tiled/rest.h), in microseconds except for kSharedStep and
// kMostHelpersPerTile. The rows of cuda_gemm_large_bench with n = 2112 measure them
// (docs/kernels/cuda-wgmma-gemm.md, "The last round, shared").
inline constexpr double kAddSums = 2.5;         // an owner adds one helper's sums of a tile
inline constexpr double kStoreSums = 0.75;      // a helper stores its sums of a tile
inline constexpr double kSumsVisible = 1.0;     // from then until the owner can read them
inline constexpr double kLeastTimeSaved = 2.0;  // the round is not shared if this saves less
// A step of a shared round takes as long as this many steps of an unshared round. Its blocks are at different
// steps of k, so one read of the L2 no longer serves several blocks.
inline constexpr double kSharedStep = 1.65;
inline constexpr int kMostHelpersPerTile = 2;

// The kernel of a linear changes at these thresholds, which are bytes of weights, bytes of a row of W, or
// counts. cuda_gemm_bench measures them. `hadal tune fp8-gemm --model-path DIR` checks them: its last line
// says on how many shapes the heuristic is close to the search (docs/kernels/cuda-skinny-gemm.md, "Borders").
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

// The tiled kernels of the absorbed products are faster from kAbsorb… (token, head) pairs on, and above
// kExpand… pairs. cuda_gemm_absorbed_bench measures this (docs/kernels/cuda-absorbed.md).
inline constexpr int64_t kAbsorbPairsOfFewHeads = 768;  // fewer than kManyHeads heads
inline constexpr int kManyHeads = 64;
inline constexpr int64_t kAbsorbPairs = 512;   // 16-bit weights
inline constexpr int64_t kAbsorbPairsFp8 = 0;  // always
inline constexpr int64_t kExpandPairs = 512;   // 16-bit weights
inline constexpr int64_t kExpandPairsFp8 = 1024;
inline constexpr int64_t kExpandFewTokens = 16;  // at most one block per head of the kernel for few tokens
// A tile of expand_value's tiled kernel has one of these two numbers of tokens; `cuda_gemm_absorbed_bench`
// measures both.
inline constexpr int kExpandTile = 64;
inline constexpr int kExpandTallTile = 128;  // if its blocks all run at once, and those of kExpandTile do not

// Describes a block of the kernel for small matrices (gemm/thin/kernel.cuh): it has `warps` warps, each of
// which computes every warps-th chunk (128 bytes) of k. The first `depth` chunks of a warp are in registers,
// the others in shared memory. A warp loads `batch` chunks of x at once.
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
// Tall blocks are used for at most kThinTallChunks chunks of k, if there is more than one tile per
// kThinTallTiles multiprocessors.
inline constexpr int kThinTallChunks = 32;
inline constexpr int kThinTallTiles = 2;

}  // namespace hadal::cuda::fitted
