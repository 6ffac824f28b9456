// Tests how decode attention over selections is cut, and the index arithmetic of its kernels. No device is
// needed.
#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/float_types.h"
#include "kernels/cuda/mla/plan/geometry.h"
#include "kernels/cuda/mla/plan/sparse.h"

namespace hadal::testing {
namespace {

using cuda::MlaPlanShape;
using cuda::SparseGeometry;

MlaPlanShape shape_of(int heads, int topk = 2048) {
  return {.num_seqs = 64, .num_heads = heads, .layout = {KvFormat::kBF16}, .index_topk = topk};
}

TEST(MlaSparsePlan, TilesCoverAllHeads) {
  for (int heads = 1; heads <= 128; ++heads) {
    const SparseGeometry g = cuda::sparse_geometry(shape_of(heads));
    EXPECT_TRUE(g.tile_heads == 16 || g.tile_heads == 32 || g.tile_heads == 64);
    EXPECT_GE(g.num_tiles * g.tile_heads, heads);
    EXPECT_LT((g.num_tiles - 1) * g.tile_heads, heads);
  }
}

TEST(MlaSparsePlan, SplitsFitTheResidentBlocksAndTheScratch) {
  for (int heads : {1, 16, 17, 64, 65, 100, 128}) {
    for (int topk : {1, 64, 65, 100, 2048}) {
      const SparseGeometry g = cuda::sparse_geometry(shape_of(heads, topk));
      EXPECT_EQ(cuda::sparse_scratch_bytes(g), static_cast<size_t>(g.partial_rows) * 513 * 4);
      for (int rows = 0; rows <= 300; ++rows) {
        const int splits = cuda::sparse_splits(rows, g);
        SCOPED_TRACE(std::to_string(heads) + " heads, topk " + std::to_string(topk) + ", rows " +
                     std::to_string(rows));
        EXPECT_GE(splits, 1);
        EXPECT_LE(splits, (topk + 63) / 64);
        EXPECT_LE(splits, cuda::kSparseMaxSplits);
        if (splits == 1) continue;
        EXPECT_LE(rows * g.num_tiles * splits, g.num_blocks);
        EXPECT_LE(int64_t{rows} * splits * heads, g.partial_rows);
      }
    }
  }
}

TEST(MlaSparsePlan, OneRowIsSplitOverAllChunks) {
  EXPECT_EQ(cuda::sparse_splits(1, cuda::sparse_geometry(shape_of(128))), 32);
  EXPECT_EQ(cuda::sparse_splits(64, cuda::sparse_geometry(shape_of(128))), 1);
}

TEST(MlaSparsePlan, FixedSplitsDoNotDependOnTheBatch) {
  MlaPlanShape shape = shape_of(128);
  shape.split_pages = 8;
  const SparseGeometry g = cuda::sparse_geometry(shape);
  for (int rows : {1, 2, 64, 1000}) EXPECT_EQ(cuda::sparse_splits(rows, g), 1);
  EXPECT_EQ(cuda::sparse_scratch_bytes(g), 0U);
}

TEST(MlaSparsePlan, ItemsAreAllRowsTilesAndSplitsOnce) {
  for (int tiles : {1, 2}) {
    for (int splits : {1, 4, 32}) {
      std::set<std::vector<int>> items;
      for (int item = 0; item < 5 * tiles * splits; ++item) {
        const auto [selected, split, tile] = cuda::sparse_item(item, splits, tiles);
        EXPECT_TRUE(selected < 5 && split < splits && tile < tiles);
        items.insert({selected, split, tile});
      }
      EXPECT_EQ(items.size(), static_cast<size_t>(5 * tiles * splits));
    }
  }
}

TEST(MlaSparsePlan, EightRowsOfATileLieInDifferentBanks) {
  std::set<uint32_t> offsets;
  for (uint32_t row = 0; row < 64; ++row) {
    for (uint32_t chunk = 0; chunk < 72; ++chunk) offsets.insert(cuda::sparse_tile_offset(row, chunk));
  }
  EXPECT_EQ(offsets.size(), 64U * 72);
  EXPECT_EQ(*offsets.rbegin(), 64U * 1152 - 16);
  for (uint32_t row = 0; row < 64; row += 8) {
    for (uint32_t chunk = 0; chunk < 72; ++chunk) {
      std::set<uint32_t> banks;
      for (uint32_t i = 0; i < 8; ++i) banks.insert(cuda::sparse_tile_offset(row + i, chunk) % 128);
      EXPECT_EQ(banks.size(), 8U);
    }
  }
}

TEST(MlaSparsePlan, CodesAreBf16WithoutRounding) {
  const float factor = to_float(bf16{static_cast<uint16_t>(cuda::kTwoTo120InBf16)});
  EXPECT_EQ(factor, std::exp2(120.0F));
  for (uint32_t code = 0; code < 256; ++code) {
    if ((code & 0x7fU) == 0x7fU) continue;
    const uint32_t two = cuda::small_bf16_of_codes(code << 8 | (code ^ 0x81U) << 24);
    const float low = to_float(bf16{static_cast<uint16_t>(two)}) * factor;
    EXPECT_EQ(low, to_float(fp8_e4m3{static_cast<uint8_t>(code)})) << code;
    if (((code ^ 0x81U) & 0x7fU) == 0x7fU) continue;
    const float high = to_float(bf16{static_cast<uint16_t>(two >> 16)}) * factor;
    EXPECT_EQ(high, to_float(fp8_e4m3{static_cast<uint8_t>(code ^ 0x81U)})) << code;
  }
}

TEST(MlaSparsePlan, RowsWithASelectionHaveNoPlannedKeys) {
  EXPECT_EQ(cuda::planned_keys(5000, 0), 5000);
  EXPECT_EQ(cuda::planned_keys(2048, 2048), 2048);
  EXPECT_EQ(cuda::planned_keys(2049, 2048), 0);
  EXPECT_EQ(cuda::planned_keys(0, 2048), 0);
  EXPECT_EQ(cuda::planned_keys(-1, 0), 0);
}

TEST(MlaSparsePlan, RefusesWhatNoModelHas) {
  for (int topk : {0, 2049}) EXPECT_THROW(cuda::sparse_geometry(shape_of(16, topk)), Error);
  for (int heads : {0, 129}) EXPECT_THROW(cuda::sparse_geometry(shape_of(heads)), Error);
  MlaPlanShape several = shape_of(16);
  several.q_len = 2;
  EXPECT_THROW(cuda::sparse_geometry(several), Error);
  for (KvFormat format : {KvFormat::kF16, KvFormat::kFp8E5M2, KvFormat::kF32}) {
    MlaPlanShape other = shape_of(16);
    other.layout.format = format;
    EXPECT_THROW(cuda::sparse_geometry(other), Error);
  }
}

}  // namespace
}  // namespace hadal::testing
