// Decides how the work of decode attention over selections (V3.2's indexer) is divided, and holds the index
// arithmetic of its kernels. All functions here are pure functions of numbers, and are also built and tested
// without CUDA.
//
// Rows of kv_len that see more than index_topk keys are "selected rows": they attend to a selection of slots.
// All other rows attend through their page table, by the kernels of geometry.h, which treat selected rows as
// rows without keys (planned_keys there). Only the device has the lengths, so the blocks of the sparse kernel
// count the selected rows, and then cut each of them into as many splits as there are blocks for. The
// work of a block is an item: one row, one tile of heads and one split of the slots. The tile varies fastest
// in the order of items, then the split, then the row, so that blocks that gather the same records run
// together.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/indexer/plan.h"
#include "kernels/cuda/mla/mla.h"

namespace hadal::cuda {

inline constexpr int kSparseChunk = 64;  // slots that a block gathers and multiplies at once
inline constexpr int kSparseMaxSplits = kMaxIndexTopk / kSparseChunk;

struct SparseGeometry {
  int tile_heads = 0;  // 16, 32 or 64
  int num_tiles = 0;   // of the heads
  int num_blocks = 0;  // resident
  int topk = 0;
  bool fixed_splits = false;  // one split: the bits of a row do not depend on the batch
  int64_t partial_rows = 0;   // rows of partial results, one for each split and head
};
// Checks the shape: index_topk is 1 to kMaxIndexTopk, q_len is 1, the cache is bf16 or fp8_e4m3.
SparseGeometry sparse_geometry(const MlaPlanShape& shape);
size_t sparse_scratch_bytes(const SparseGeometry& geometry);

// Returns how many splits each of num_rows selected rows has: a power of two, at most one for each chunk.
constexpr int sparse_splits(int num_rows, const SparseGeometry& g) {
  if (g.fixed_splits || num_rows == 0) return 1;
  const int chunks = (g.topk + kSparseChunk - 1) / kSparseChunk;
  int splits = 1;
  while (splits * 2 <= chunks && int64_t{num_rows} * g.num_tiles * splits * 2 <= g.num_blocks) splits *= 2;
  return splits;
}

struct SparseItem {
  int selected;  // number of the row among the selected rows, in ascending order
  int split;
  int tile;
};
constexpr SparseItem sparse_item(int item, int num_splits, int num_tiles) {
  return {item / num_tiles / num_splits, item / num_tiles % num_splits, item % num_tiles};
}

// Returns the byte offset of 16-byte chunk 0 … 71 of row `row` in a tile of rows of 576 16-bit values. The
// same chunk of eight consecutive rows lies in different banks.
constexpr uint32_t sparse_tile_offset(uint32_t row, uint32_t chunk) {
  return row * (kKvRowDim * 2) + ((chunk ^ (row & 7U)) << 4);
}

// Converts two e4m3 codes, each in the upper byte of its 16-bit half, to two bf16 that are 2^120 times too
// small. The product with 2^120 is exact, also for subnormal codes. (0x7f, which no writer stores, becomes
// 480.)
constexpr uint32_t small_bf16_of_codes(uint32_t codes) {
  return (codes >> 4 & 0x07f007f0U) | (codes & 0x80008000U);
}
inline constexpr uint32_t kTwoTo120InBf16 = 0x7b807b80U;

}  // namespace hadal::cuda
