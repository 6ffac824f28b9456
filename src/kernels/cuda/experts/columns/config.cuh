// Defines the configurations of the columns kernel and its parameters.
#pragma once

#include "kernels/cuda/common/tma.cuh"
#include "kernels/cuda/common/types.cuh"
#include "kernels/cuda/experts/choice.h"
#include "kernels/cuda/limits.h"

namespace hadal::cuda::columns {

constexpr int kBlockW = 128;  // rows of W in a block
constexpr int kTokenStep = 16;
constexpr int kStepK = 64;
constexpr int kCluster = 2;
constexpr int kThreads = 384;
constexpr int kWriters = 3;  // warps that store results

// Returns the bytes of Tables (experts/columns/schedule.cuh).
constexpr size_t table_bytes(int num_experts) {
  return static_cast<size_t>(8 * (num_experts + 1) + 2 * num_experts);
}

// T is bf16 or f16; kMost is the largest number of tokens in a tile.
template <typename T_, bool kActivated_, int kMost_, int kStages_>
struct Config {
  using T = T_;
  static constexpr bool kActivated = kActivated_;
  static constexpr int kMost = kMost_;
  static constexpr int kStages = kStages_;
  static constexpr int kHeights = kMost / kTokenStep;
  static_assert(kMost % kTokenStep == 0 && kMost <= 256);
  static constexpr int kWBytes = kBlockW * 128;
  static constexpr int kXBytes = kMost * 128;
  static constexpr int kXOffset = kStages * kWBytes;
  static constexpr int kStagingOffset = kXOffset + kStages * kXBytes;
  static constexpr int kBarrierOffset = kStagingOffset + kMost * 256;
  static constexpr int kExpertOffset = kBarrierOffset + 2 * (kStages + 1) * 8;
  static_assert(kExpertOffset + table_bytes(kMaxTiledExperts) + 1024 <= kMaxSharedBytes);

  // The result includes the bytes that align the start to 1024.
  static constexpr size_t shared_bytes(int num_experts) {
    return static_cast<size_t>(kExpertOffset) + table_bytes(num_experts) + 1024;
  }
};

// Returns true if the instantiation has the tile that experts/choice.h describes.
template <class C>
constexpr bool is(const GroupedChoice& choice) {
  return choice.kernel == ProductKernel::kColumns && choice.block_m == C::kMost &&
         choice.block_n == kBlockW && choice.stages == C::kStages && choice.cluster == kCluster;
}

// Holds the tensor maps. The boxes of x[h] and tokens[h] have 8·(h + 1) rows, which is half of a tile's
// tokens.
template <class C>
struct Maps {
  CUtensorMap x[C::kHeights];
  CUtensorMap tokens[C::kHeights];
  CUtensorMap w;
};

struct Params {
  void* y = nullptr;  // [rows, n] dense
  int n = 0;
  int rows = 0;
  int num_k_steps = 0;
  int column_groups = 0;  // pairs of blocks of rows of W
  int num_experts = 0;
  int direct_from = 0;
  const int32_t* expert_offsets = nullptr;
};

struct Tile {
  int expert = 0;
  int row_begin = 0;
  int row_end = 0;  // the expert's last row + 1
  int tokens = 0;   // a multiple of 16
  int block = 0;    // the block of rows of W
};

}  // namespace hadal::cuda::columns
