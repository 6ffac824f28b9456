// Tests views of parts of weight matrices: how the products of such a part relate to those of the whole.
#include "kernels/params/matrix_window.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/kernels/matrix_cases.h"

namespace hadal::test {
namespace {

std::vector<float> product(const MatrixWeight& w, const float* x, int64_t x_stride, int64_t m,
                           const decltype(cpu::simd::linear)& kernel, ThreadPool& pool) {
  HeapScratch scratch;
  cpu::Context context{pool, scratch};
  std::vector<float> y = poisoned(m * w.n);
  kernel({.x = x, .y = y.data(), .m = m, .x_stride = x_stride, .y_stride = w.n, .w = w}, context);
  return y;
}

// Returns borders of uneven parts of [0, size), at multiples of 128 for block types.
std::vector<int64_t> borders_of(int64_t size, WeightType type) {
  const int64_t unit = is_block_scaled(type) ? 128 : 16;
  return {0, unit, 2 * unit, size};
}

TEST(MatrixWindow, ProductsOverColumnsAddUpToTheWholeInBothVersions) {
  std::mt19937 rng(1);
  ThreadPool pool(2);
  for (const WeightType type : kWeightTypes) {
    // Strides that alias in the cache have kernels of their own, which read beyond a window's columns.
    for (const int64_t k : {int64_t{397}, 2048 / weight_element_bytes(type)}) {
      const int64_t n = 70;
      const TestWeight weight = random_weight(rng, type, n, k, /*padding=*/0, /*misalignment=*/0);
      const std::vector<int64_t> borders = borders_of(k, type);
      for (const int64_t m : {1, 3, 17}) {
        const std::vector<float> x = random_floats(rng, m * k);
        const std::vector<float> whole = product(weight.w, x.data(), k, m, cpu::reference::linear, pool);
        std::vector<float> sum(whole.size(), 0.0F);
        for (size_t i = 0; i + 1 < borders.size(); ++i) {
          const int64_t first = borders[i];
          const MatrixWeight window = column_window(weight.w, first, borders[i + 1] - first);
          const std::vector<float> part =
              product(window, x.data() + first, k, m, cpu::reference::linear, pool);
          for (const int64_t target : available_targets()) {
            const ForcedTarget forced(target);
            EXPECT_TRUE(same_bits(product(window, x.data() + first, k, m, cpu::simd::linear, pool), part))
                << "columns " << first << "+" << window.k << " m " << m << " type " << static_cast<int>(type)
                << " " << hwy::TargetName(target);
          }
          for (size_t j = 0; j < sum.size(); ++j) sum[j] += part[j];
        }
        double error = 0, norm = 0;
        for (size_t j = 0; j < sum.size(); ++j) {
          error += std::pow(double{sum[j]} - whole[j], 2);
          norm += std::pow(double{whole[j]}, 2);
        }
        EXPECT_LT(std::sqrt(error / norm), 1e-6) << "m " << m << " type " << static_cast<int>(type);
      }
    }
  }
}

TEST(MatrixWindow, ProductsOfRowsAreThoseOfTheWholeBitForBit) {
  std::mt19937 rng(2);
  ThreadPool pool(2);
  const int64_t n = 300, k = 200;
  for (const WeightType type : kWeightTypes) {
    const TestWeight weight = random_weight(rng, type, n, k, /*padding=*/5);
    for (const int64_t m : {1, 10}) {
      const std::vector<float> x = random_floats(rng, m * k);
      const std::vector<float> whole = product(weight.w, x.data(), k, m, cpu::reference::linear, pool);
      const std::vector<int64_t> borders = borders_of(n, type);
      for (size_t i = 0; i + 1 < borders.size(); ++i) {
        const int64_t first = borders[i];
        const MatrixWeight window = row_window(weight.w, first, borders[i + 1] - first);
        const std::vector<float> part = product(window, x.data(), k, m, cpu::simd::linear, pool);
        for (int64_t t = 0; t < m; ++t) {
          for (int64_t row = 0; row < window.n; ++row)
            ASSERT_EQ(part[t * window.n + row], whole[t * n + first + row]) << static_cast<int>(type);
        }
      }
    }
  }
}

TEST(MatrixWindow, AProductWithoutRowsWritesNothing) {
  std::mt19937 rng(3);
  ThreadPool pool(2);
  HeapScratch scratch;
  cpu::Context context{pool, scratch};
  for (const WeightType type : kWeightTypes) {
    const TestWeight weight = random_weight(rng, type, 256, 64);
    for (const int64_t m : {1, 20}) {
      const std::vector<float> x = random_floats(rng, m * 64), poison = poisoned(m);
      std::vector<float> y = poison;
      for (const int64_t first : {0, 256 - 7, 256}) {
        const LinearParams p{.x = x.data(),
                             .y = y.data(),
                             .m = m,
                             .x_stride = 64,
                             .y_stride = 1,
                             .w = row_window(weight.w, first, 0)};
        cpu::simd::linear(p, context);
        cpu::reference::linear(p, context);
      }
      EXPECT_TRUE(same_bits(y, poison)) << static_cast<int>(type);
    }
  }
}

TEST(MatrixWindow, BlockTypesAreCutAtBlocksOnly) {
  std::mt19937 rng(4);
  for (const WeightType type : kWeightTypes) {
    const TestWeight weight = random_weight(rng, type, 256, 256);
    if (is_block_scaled(type)) {
      EXPECT_THROW(row_window(weight.w, 64, 64), Error);
      EXPECT_THROW(column_window(weight.w, 64, 64), Error);
    } else {
      EXPECT_NO_THROW(row_window(weight.w, 64, 64));
      EXPECT_NO_THROW(column_window(weight.w, 64, 64));
    }
    EXPECT_THROW(row_window(weight.w, 128, 129), Error);
    EXPECT_THROW(column_window(weight.w, 128, 129), Error);
  }
}

TEST(MatrixWindow, BytesCountEachScaleOfAPart) {
  EXPECT_EQ(matrix_bytes(WeightType::kBF16, 3, 5), 30);
  EXPECT_EQ(matrix_bytes(WeightType::kF32, 3, 5), 60);
  EXPECT_EQ(matrix_bytes(WeightType::kFp8Block, 129, 128), 129 * 128 + 2 * 4);
  EXPECT_EQ(matrix_bytes(WeightType::kInt8Block, 128, 300), 128 * 300 + 3 * 4);
  EXPECT_EQ(matrix_bytes(WeightType::kInt8Channel, 7, 300), 7 * 300 + 7 * 4);
  EXPECT_EQ(matrix_bytes(WeightType::kFp8Block, 0, 128), 0);
  EXPECT_EQ(matrix_bytes(WeightType::kFp8Channel, 128, 0), 0);
}

}  // namespace
}  // namespace hadal::test
