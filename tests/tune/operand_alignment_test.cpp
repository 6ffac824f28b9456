// Tests the alignment by which the plan of a layer's experts and the launches choose kernels.
#include "kernels/cuda/operand_alignment.h"

#include <gtest/gtest.h>

#include <cstddef>

namespace hadal::cuda {
namespace {

alignas(16) const std::byte memory[64] = {};

MatrixWeight weight(WeightType type, int64_t k, int64_t row_stride) {
  return {.data = memory, .type = type, .n = 8, .k = k, .row_stride = row_stride};
}

TEST(OperandAlignment, RowsOfWeightsAreMultiplesOf16Bytes) {
  EXPECT_TRUE(is_aligned(weight(WeightType::kBF16, 64, 64)));
  EXPECT_TRUE(is_aligned(weight(WeightType::kBF16, 60, 64))) << "k may be ragged";
  EXPECT_FALSE(is_aligned(weight(WeightType::kBF16, 64, 65)));
  EXPECT_FALSE(is_aligned(weight(WeightType::kBF16, 64, 68)));
  EXPECT_FALSE(is_aligned(weight(WeightType::kBF16, 64, 56))) << "rows overlap";
  EXPECT_TRUE(is_aligned(weight(WeightType::kF32, 64, 68)));
  EXPECT_TRUE(is_aligned(weight(WeightType::kFp8Block, 100, 128)));
  EXPECT_FALSE(is_aligned(weight(WeightType::kFp8Block, 100, 112))) << "codes come in whole blocks of 128";
  EXPECT_FALSE(is_aligned(weight(WeightType::kFp8Block, 100, 136)));
  MatrixWeight shifted = weight(WeightType::kBF16, 64, 64);
  shifted.data = memory + 8;
  EXPECT_FALSE(is_aligned(shifted));
}

TEST(OperandAlignment, OddStridesBetweenExpertsAreNotAligned) {
  const MatrixWeight bf16 = weight(WeightType::kBF16, 64, 64);
  EXPECT_TRUE(is_aligned(bf16, 8 * 64));
  EXPECT_TRUE(is_aligned(bf16, 8 * 64 + 8));
  for (const int64_t odd : {1, 3, 4, 7}) EXPECT_FALSE(is_aligned(bf16, 8 * 64 + odd)) << odd;
  const MatrixWeight codes = weight(WeightType::kInt8Channel, 128, 128);
  EXPECT_TRUE(is_aligned(codes, 8 * 128 + 16));
  EXPECT_FALSE(is_aligned(codes, 8 * 128 + 8));
}

TEST(OperandAlignment, ScalesOfChannelsAreReadInPairs) {
  MatrixWeight w = weight(WeightType::kFp8Channel, 128, 128);
  w.scales = reinterpret_cast<const float*>(memory);
  EXPECT_TRUE(has_aligned_scales(w, 8));
  EXPECT_FALSE(has_aligned_scales(w, 7));
  ++w.scales;
  EXPECT_FALSE(has_aligned_scales(w, 8));
  w.type = WeightType::kFp8Block;
  EXPECT_TRUE(has_aligned_scales(w, 7)) << "scales of blocks are read one by one";
}

TEST(OperandAlignment, RowsOfCodesHoldWholeGroups) {
  alignas(16) fp8_e4m3 codes[16];
  const auto rows = [&](int64_t stride) { return QuantizedRows{.codes = codes, .stride = stride}; };
  EXPECT_TRUE(is_aligned(rows(128), 100));
  EXPECT_TRUE(is_aligned(rows(144), 100));
  EXPECT_FALSE(is_aligned(rows(112), 100));
  EXPECT_FALSE(is_aligned(rows(129), 100));
}

}  // namespace
}  // namespace hadal::cuda
