// Defines the arguments of the tiled product of gemm/tiled/kernel.cuh, the shape of its tiles, and the plan
// of shared memory, barriers and registers, which follows from that shape.
#pragma once

#include <numeric>

#include "kernels/cuda/common/mbarrier.cuh"
#include "kernels/cuda/common/types.cuh"
#include "kernels/cuda/gemm/tiled/rest.h"
#include "kernels/cuda/limits.h"

namespace hadal::cuda {

// Describes the tiles of a last, partial round of a dense product, whose steps of k all blocks share
// (kShares).
struct WgmmaRest {
  RestCut cut;           // no tiles: nothing is shared
  void* sums = nullptr;  // partial sums; each block has room for its tile's float32 sums
  uint32_t* counts =
      nullptr;  // one word per block and consumer warp: the number of sums stored; zero between launches
};

struct WgmmaGemmParams {
  bf16* y = nullptr;  // [rows, n], rows y_stride apart; 16-byte aligned rows
  int64_t y_stride = 0;
  int rows = 0;
  int n = 0;  // a multiple of 8
  int num_k_steps = 0;
  // The scales of expert 0: blocks [n/128, w_scale_stride]; channels [n], 8-byte aligned.
  const float* w_scales = nullptr;
  int64_t w_scale_stride = 0;
  int64_t expert_scale_stride = 0;
  const int32_t* expert_offsets = nullptr;  // [num_experts + 1] on the device; null: all rows are expert 0's
  int num_experts = 1;
  const float* x_scales = nullptr;  // channels: [rows]
  const float* bias = nullptr;      // channels: [n], 8-byte aligned, added at the end; null: none
  WgmmaRest rest;
};

// Names the scales of 8-bit codes. kBlocks has one per 128 of k of a row of x, and one per 128 × 128 block of
// W. kChannels has one per row of x, and one per row of W ("channel").
enum class GemmScales : uint8_t { kNone, kBlocks, kChannels };

// States, for kernels that promote partial sums to float32, when a consumer issues the products of its next
// block of k, and how the two consumers are offset in time.
enum class WgmmaOrder : uint8_t {
  kFree,   // as soon as it has promoted its partial sums
  kLead,   // same, but after a wait for data, consumer 1 begins when half of consumer 0's products are done
  kTight,  // as kFree, in the fewest instructions
  kAhead,  // before it promotes the partial sums of the previous block; requires two sets of them
};

struct WgmmaTile {
  int waves;    // waves of 64 rows of each consumer
  int columns;  // columns of each consumer
  int stages;
  int cluster = 2;  // blocks that share rows of x
  int splits = 1;   // more: blocks of a cluster that share the tile's steps of k (gemm/tiled/split.cuh)
  WgmmaOrder order = WgmmaOrder::kFree;
  bool beside = false;    // the consumers have the same rows and neighbouring columns; else vice versa
  bool copy_out = false;  // the copy engine stores rows, 16 × 64 at a time per warp; else plain stores
  bool hold = false;      // block scales, copy_out: rows are stored through the tile's last stage, during
                          // the next tile's products
  bool stream_w = false;  // weights are read once, so the L2 evicts them first
  bool shares = false;    // linears: the last round's tiles may be shared (WgmmaRest)
  bool early_w = false;   // linears: the first weights are loaded before the wait for the previous kernel
};

// Holds one configuration; `Shape::kTile` is a WgmmaTile.
template <typename T, class Shape,
          GemmScales kScales_ = sizeof(T) == 1 ? GemmScales::kBlocks : GemmScales::kNone>
struct WgmmaGemmConfig {
  using Element = T;
  static constexpr WgmmaTile kTile = Shape::kTile;
  static constexpr GemmScales kScales = kScales_;
  static constexpr bool kInt8 = std::is_same_v<T, int8_t>;
  static constexpr bool kBlockScales = kScales == GemmScales::kBlocks;
  static constexpr bool kChannelScales = kScales == GemmScales::kChannels;
  static_assert((sizeof(T) == 1) == (kScales != GemmScales::kNone));
  // True if the tensor cores' sums over each 128 of k are promoted: added up in float32 by ordinary
  // instructions, because block scales multiply them, or because e4m3 sums keep about 14 bits. Sums of bf16,
  // and of int8 with channel scales (int32), stay in the tensor cores' registers.
  static constexpr bool kPromotes = kBlockScales || (kChannelScales && !kInt8);
  using Partial = std::conditional_t<kInt8, int32_t, float>;  // the tensor cores'
  using Sum = std::conditional_t<kPromotes, float, Partial>;  // a tile's
  static constexpr int kWaves = kTile.waves;
  static constexpr int kColumns = kTile.columns;
  static constexpr int kStages = kTile.stages;
  static constexpr int kCluster = kTile.cluster;
  static constexpr int kConsumers = 2;  // warpgroups
  static constexpr WgmmaOrder kOrder = kTile.order;
  static constexpr bool kBeside = kTile.beside;
  static constexpr bool kStreamW = kTile.stream_w;
  static constexpr bool kEarlyW = kTile.early_w;
  static constexpr bool kShares = kTile.shares;
  static constexpr bool kCopyOut = kTile.copy_out;
  static constexpr bool kHold = kTile.hold && kBlockScales;
  static_assert(!kHold || (kCopyOut && !kBeside && kTile.order == WgmmaOrder::kTight));
  static constexpr int kRowGroups = kBeside ? 1 : kConsumers;  // consumers one below the other
  static constexpr int kColumnGroups = kConsumers / kRowGroups;
  static constexpr int kWaveRows = 64 * kRowGroups;  // rows of a wave of all consumers
  static constexpr int kBlockM = kWaveRows * kWaves;
  static constexpr int kBlockN = kColumns * kColumnGroups;
  static constexpr int kSums = kColumns / 2;  // accumulators of a thread and wave
  static_assert(kColumns % 16 == 0 && kBlockN <= 256 && (!kPromotes || kColumns <= 192));
  static_assert(!kCopyOut || kColumns % 64 == 0);
  static_assert(kBlockM % (8 * kCluster) == 0 && kBlockM / kCluster <= 256);
  static constexpr int kStepK = 128 / static_cast<int>(sizeof(T));
  static constexpr int kHalf = 2;  // after this many of a wave's 4 instructions the other consumer may begin
  static constexpr bool kLeads = kPromotes && kOrder == WgmmaOrder::kLead;
  static constexpr bool kTight = kPromotes && kOrder == WgmmaOrder::kTight;
  static constexpr bool kAhead = kPromotes && kOrder == WgmmaOrder::kAhead;
  static_assert(!kAhead || kWaves == 1);
  static constexpr int kThreads = 128 * (kConsumers + 1);
  static constexpr int kProducerRegisters = 40;  // 128 · 40 + 256 · 232 of 65,536
  static constexpr int kConsumerRegisters = 232;
  static constexpr int kGroupM = 8;  // row tiles that are computed before the next columns

  static constexpr int kXBytes = kBlockM * 128;
  static constexpr int kWBytes = kBlockN * 128;
  // Scales of x are copied in boxes of kBoxRows + 4 rows, because a copy must begin at a multiple of 4 rows.
  static constexpr int kScaleBoxes = kBlockM + 4 > 256 ? 2 : 1;
  static constexpr int kBoxRows = kBlockM / kScaleBoxes;
  static_assert(kBoxRows % kWaveRows == 0);
  static constexpr int kScaleBox = kBoxRows + 4;
  static constexpr int kScaleBoxBytes = (4 * kScaleBox + 127) / 128 * 128;
  static constexpr int kScaleBytes = kBlockScales ? kScaleBoxes * kScaleBoxBytes : 0;
  static constexpr int kArrivingBytes = kXBytes + kWBytes + (kBlockScales ? kScaleBoxes * kScaleBox * 4 : 0);

  // Weights have one scale for each block of 128 columns. A tile begins at a multiple of kScaleColumns
  // columns after a block's first column. The columns of a consumer lie in at most kOwnBlocks blocks, the
  // columns of the tile in at most kTileBlocks.
  static constexpr int kScaleColumns = std::gcd(kBlockN, 128);
  static constexpr int kOwnBlocks = (127 - kScaleColumns + kColumns) / 128 + 1;
  static constexpr int kTileBlocks = (127 - kScaleColumns + kBlockN) / 128 + 1;
  // A consumer's columns are divided into kParts parts of neighbouring columns. The columns of a part share
  // one scale, wherever the tile begins.
  static constexpr int kPartColumns = kScaleColumns < kColumns ? kScaleColumns : kColumns;
  static constexpr int kParts = kColumns / kPartColumns;
  static_assert(kTileBlocks <= 4 && (!kBeside || kColumns % 128 == 0));

  // Beside x, W and the scales of x, a stage has a slot with the tile's place (16 bytes), then the weights'
  // scales.
  static constexpr int kSlotBytes = 32;

  static constexpr int kWOffset = kStages * kXBytes;
  static constexpr int kStagingOffset = kWOffset + kStages * kWBytes;
  static constexpr int kSplits = kTile.splits;
  static_assert(kSplits == 1 || (kCluster == 1 && kWaves == 1 && kSums % (4 * kSplits) == 0));
  // A block of a split tile receives the other blocks' sums for its share of the columns in the staging
  // memory.
  static constexpr int kShare = kSums / kSplits;  // sums of a thread
  static constexpr int kShareBytes = 128 * kConsumers * kShare * 4;
  static constexpr int kStagingBytes = kSplits > 1 ? (kSplits - 1) * kShareBytes : 4 * kConsumers * 2048;
  static constexpr int kScaleOffset = kStagingOffset + kStagingBytes;
  static constexpr int kSlotOffset = kScaleOffset + kStages * kScaleBytes;
  static constexpr int kBarrierOffset = kSlotOffset + kStages * kSlotBytes;
  static constexpr int kExpertOffset = kBarrierOffset + 3 * kStages * 8;
  static constexpr int kMaxExperts = 512;

  // The result includes 1024 bytes with which the start is aligned to 1024.
  static constexpr size_t shared_bytes(int num_experts) {
    return static_cast<size_t>(kExpertOffset) + 2 * static_cast<size_t>(num_experts + 1) * 4 + 1024;
  }
  static_assert(kExpertOffset + 2 * (kMaxExperts + 1) * 4 + 1024 <= kMaxSharedBytes);
};

namespace wgmma_gemm {

// Holds the place of a tile. The producer stores it for the consumers with the tile's first stage.
struct Tile {
  int row_begin = 0;
  int row_end = 0;  // the expert's last row + 1
  int n_begin = 0;  // this block's first column
  int expert = 0;
};
static_assert(sizeof(Tile) == sizeof(int4));

// Holds the steps of a tile that one block computes: all of them or, for a shared tile (WgmmaRest), those of
// its owner or of a helper.
struct Steps {
  static constexpr int kWhole = 0, kOwn = 1, kTail = 2;
  int first = 0, count = 0, kind = kWhole;
  int number = 0;  // number of the shared tile
};

template <class C>
struct Shared {
  uint8_t* base;

  __device__ __forceinline__ uint8_t* x(uint32_t stage) const { return base + stage * C::kXBytes; }
  __device__ __forceinline__ uint8_t* w(uint32_t stage) const {
    return base + C::kWOffset + stage * C::kWBytes;
  }
  __device__ __forceinline__ float* x_scales(uint32_t stage) const {
    return reinterpret_cast<float*>(base + C::kScaleOffset + stage * C::kScaleBytes);
  }
  __device__ __forceinline__ uint8_t* slot(uint32_t stage) const {
    return base + C::kSlotOffset + stage * C::kSlotBytes;
  }
  __device__ __forceinline__ int4* tile(uint32_t stage) const { return reinterpret_cast<int4*>(slot(stage)); }
  __device__ __forceinline__ float* w_scales(uint32_t stage) const {
    return reinterpret_cast<float*>(slot(stage) + 16);
  }
  __device__ __forceinline__ uint8_t* staging(int warp) const {
    return base + C::kStagingOffset + warp * 2048;
  }
  __device__ __forceinline__ Mbarrier* full(uint32_t stage) const {
    return reinterpret_cast<Mbarrier*>(base + C::kBarrierOffset) + stage;
  }
  __device__ __forceinline__ Mbarrier* empty(uint32_t stage) const { return full(stage) + C::kStages; }
  __device__ __forceinline__ Mbarrier* lead(uint32_t stage) const { return full(stage) + 2 * C::kStages; }
  __device__ __forceinline__ int* row_starts() const {
    return reinterpret_cast<int*>(base + C::kExpertOffset);
  }
};

// These convert a sum, float32 or int32, to the word that one block sends to another, and back.
template <typename T>
__device__ __forceinline__ uint32_t bits_of(T value) {
  if constexpr (std::is_same_v<T, float>)
    return __float_as_uint(value);
  else
    return static_cast<uint32_t>(value);
}
template <typename T>
__device__ __forceinline__ T of_bits(uint32_t bits) {
  if constexpr (std::is_same_v<T, float>)
    return __uint_as_float(bits);
  else
    return static_cast<T>(bits);
}

}  // namespace wgmma_gemm
}  // namespace hadal::cuda
