// Tests linear, linear_group and batched_linear: SIMD equals the reference bit for bit on every instruction
// set, and the reference is compared with float64.
#include <gtest/gtest.h>

#include <cmath>
#include <span>

#include "tests/kernels/matrix_cases.h"

namespace hadal::test {
namespace {

struct Shape {
  int64_t m, n, k;
};

// The shapes are ragged in every direction: around vector widths, panel widths, tile heights and scale
// blocks.
const Shape kShapes[] = {
    {0, 16, 32},   {1, 1, 1},     {1, 16, 32},   {1, 32, 128},   {1, 33, 127},   {1, 100, 513},
    {1, 576, 256}, {2, 31, 40},   {2, 64, 256},  {3, 17, 129},   {3, 96, 384},   {4, 70, 33},
    {5, 65, 255},  {6, 48, 96},   {7, 130, 200}, {8, 64, 144},   {8, 129, 300},  {9, 32, 128},
    {9, 15, 7},    {10, 47, 260}, {11, 33, 64},  {12, 64, 130},  {13, 33, 257},  {16, 160, 192},
    {17, 35, 161}, {48, 64, 256}, {48, 40, 70},  {129, 33, 131}, {129, 96, 256}, {25, 200, 1030},
};

std::string describe(const Shape& s, WeightType type, int64_t target, int threads) {
  return "m " + std::to_string(s.m) + " n " + std::to_string(s.n) + " k " + std::to_string(s.k) + " type " +
         std::to_string(static_cast<int>(type)) + " target " + hwy::TargetName(target) + " threads " +
         std::to_string(threads);
}

TEST(Linear, SimdEqualsReferenceBitForBitOnRaggedShapes) {
  std::mt19937 rng(20240501);
  HeapScratch scratch;
  ThreadPool one(1), two(2), three(3);
  ThreadPool* const pools[] = {&one, &two, &three};
  const auto targets = available_targets();
  size_t turn = 0;
  for (const Shape& s : kShapes) {
    for (const WeightType type : kWeightTypes) {
      const int64_t padding = rng() % 2 == 0 ? 0 : 1 + rng() % 9;
      const TestWeight weight = random_weight(rng, type, s.n, s.k, padding);
      const int64_t x_stride = s.k + rng() % 5;
      const int64_t y_stride = s.n + rng() % 5;
      const std::vector<float> x = random_floats(rng, s.m * x_stride);
      std::vector<float> expected = poisoned(s.m * y_stride);
      LinearParams p{.x = x.data(),
                     .y = expected.data(),
                     .m = s.m,
                     .x_stride = x_stride,
                     .y_stride = y_stride,
                     .w = weight.w};
      cpu::Context reference_context{two, scratch};
      cpu::reference::linear(p, reference_context);
      for (const int64_t target : targets) {
        const ForcedTarget forced(target);
        ThreadPool& pool = *pools[turn++ % 3];
        cpu::Context context{pool, scratch};
        std::vector<float> y = poisoned(s.m * y_stride);
        p.y = y.data();
        cpu::simd::linear(p, context);
        // The poison between rows must be unchanged: memcmp covers everything.
        EXPECT_TRUE(same_bits(y, expected)) << describe(s, type, target, pool.num_threads());
        scratch.reset();
      }
    }
  }
}

TEST(Linear, StridesThatAliasInTheCacheKeepTheBits) {
  // Row strides that are multiples of 1024 bytes use separate kernels, which read whole cache lines.
  std::mt19937 rng(31);
  HeapScratch scratch;
  ThreadPool pool(2);
  cpu::Context context{pool, scratch};
  for (const WeightType type : kWeightTypes) {
    const int64_t size = weight_element_bytes(type);
    for (const int64_t k : {1024 / size * 2, 1024 / size * 2 - 1, 1024 / size * 3 - 37, int64_t{130}}) {
      const int64_t stride = (k * size + 1023) / 1024 * 1024 / size;
      for (const int64_t misalignment : {0, 1, 2, 4, 6, 16, 62}) {
        const int64_t n = 64;
        const TestWeight weight = random_weight(rng, type, n, k, stride - k, misalignment);
        for (const int64_t m : {1, 2, 3, 4, 5, 8, 9, 30}) {
          const std::vector<float> x = random_floats(rng, m * k);
          LinearParams p{.x = x.data(), .m = m, .x_stride = k, .y_stride = n, .w = weight.w};
          std::vector<float> expected = poisoned(m * n);
          p.y = expected.data();
          cpu::reference::linear(p, context);
          for (const int64_t target : available_targets()) {
            if (target == HWY_SCALAR) continue;  // this slow target has no such kernel
            const ForcedTarget forced(target);
            std::vector<float> y = poisoned(m * n);
            p.y = y.data();
            cpu::simd::linear(p, context);
            EXPECT_TRUE(same_bits(y, expected))
                << "k " << k << " m " << m << " misalignment " << misalignment << " type "
                << static_cast<int>(type) << " " << hwy::TargetName(target);
            scratch.reset();
          }
        }
      }
    }
  }
}

TEST(Linear, ReferenceIsWithinRoundingOfFloat64) {
  std::mt19937 rng(7);
  HeapScratch scratch;
  ThreadPool pool(1);
  cpu::Context context{pool, scratch};
  for (const WeightType type : kWeightTypes) {
    const int64_t m = 3, n = 40, k = 300;
    const TestWeight weight = random_weight(rng, type, n, k);
    const std::vector<float> x = random_floats(rng, m * k);
    std::vector<float> y = poisoned(m * n);
    cpu::reference::linear(
        {.x = x.data(), .y = y.data(), .m = m, .x_stride = k, .y_stride = n, .w = weight.w}, context);
    double error = 0, norm = 0;
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        double sum = 0;
        for (int64_t c = 0; c < k; ++c) {
          double w = 0;
          if (type == WeightType::kF32) {
            float v;
            std::memcpy(&v, static_cast<const std::byte*>(weight.w.data) + (j * k + c) * 4, 4);
            w = v;
          } else if (type == WeightType::kBF16) {
            bf16 v;
            std::memcpy(&v, static_cast<const std::byte*>(weight.w.data) + (j * k + c) * 2, 2);
            w = to_float(v);
          } else {
            const auto code = static_cast<const uint8_t*>(weight.w.data)[j * k + c];
            w = is_int8(type) ? static_cast<int8_t>(code) : double{to_float(fp8_e4m3{code})};
            w *= is_block_scaled(type) ? weight.scales[j / 128 * weight.w.scale_stride + c / 128]
                                       : weight.scales[j];
          }
          sum += w * x[i * k + c];
        }
        error += (sum - y[i * n + j]) * (sum - y[i * n + j]);
        norm += sum * sum;
      }
    }
    EXPECT_LT(std::sqrt(error / norm), 1e-5) << static_cast<int>(type);
  }
}

TEST(Linear, EveryCodeIsWidenedExactly) {
  // Row n consists of code n; x selects one k, so y is the code's value times the scale.
  const int64_t k = 160;
  std::vector<uint8_t> codes(256 * k);
  for (int64_t n = 0; n < 256; ++n) {
    for (int64_t c = 0; c < k; ++c) codes[n * k + c] = static_cast<uint8_t>(n);
  }
  const std::vector<float> scales(256, 2.0F);
  HeapScratch scratch;
  ThreadPool pool(2);
  cpu::Context context{pool, scratch};
  for (const WeightType type : kWeightTypes) {
    if (weight_element_bytes(type) != 1) continue;
    const MatrixWeight w{.data = codes.data(),
                         .type = type,
                         .n = 256,
                         .k = k,
                         .row_stride = k,
                         .scales = scales.data(),
                         .scale_stride = 2};
    for (const int64_t target : available_targets()) {
      const ForcedTarget forced(target);
      for (const int64_t m : {1, 2, 16}) {
        for (const int64_t hot : {int64_t{0}, int64_t{1}, int64_t{2}, int64_t{35}, int64_t{127}, k - 1}) {
          std::vector<float> x(m * k, 0.0F);
          for (int64_t i = 0; i < m; ++i) x[i * k + hot] = 1.0F;
          std::vector<float> y = poisoned(m * 256);
          cpu::simd::linear({.x = x.data(), .y = y.data(), .m = m, .x_stride = k, .y_stride = 256, .w = w},
                            context);
          for (int64_t n = 0; n < 256; ++n) {
            const auto code = static_cast<uint8_t>(n);
            const float value = is_int8(type) ? static_cast<int8_t>(code) : to_float(fp8_e4m3{code});
            const float got = y[(m - 1) * 256 + n];
            if (std::isnan(value)) {
              EXPECT_TRUE(std::isnan(got)) << n;
            } else {
              EXPECT_EQ(got, 2.0F * value) << "code " << n << " k " << hot << " type "
                                           << static_cast<int>(type) << " " << hwy::TargetName(target);
            }
          }
          scratch.reset();
        }
      }
    }
  }
}

TEST(Linear, WeightsWithoutTheScalesTheyNeedAreRefused) {
  std::mt19937 rng(4);
  HeapScratch scratch;
  ThreadPool pool(1);
  cpu::Context context{pool, scratch};
  const std::vector<float> x(64, 1.0F);
  std::vector<float> y(64);
  for (const WeightType type : kWeightTypes) {
    TestWeight weight = random_weight(rng, type, 64, 64);
    weight.w.scales = nullptr;
    const LinearParams p{.x = x.data(), .y = y.data(), .m = 1, .x_stride = 64, .y_stride = 64, .w = weight.w};
    const BatchedLinearParams heads{
        .x = x.data(), .y = y.data(), .m = 1, .num_heads = 1, .x_stride = 64, .y_stride = 64, .w = weight.w};
    if (weight_element_bytes(type) == 1) {
      EXPECT_THROW(cpu::simd::linear(p, context), Error);
      EXPECT_THROW(cpu::reference::linear(p, context), Error);
      EXPECT_THROW(cpu::simd::batched_linear(heads, context), Error);
      EXPECT_THROW(cpu::reference::batched_linear(heads, context), Error);
    } else {
      EXPECT_NO_THROW(cpu::simd::linear(p, context));
      EXPECT_NO_THROW(cpu::reference::linear(p, context));
    }
  }
}

TEST(Linear, GroupEqualsItsMembers) {
  std::mt19937 rng(3);
  HeapScratch scratch;
  ThreadPool pool(2);
  cpu::Context context{pool, scratch};
  for (const int64_t m : {1, 3, 20}) {
    const int64_t k = 200;
    const std::vector<float> x = random_floats(rng, m * k);
    // The group has one member of each type.
    std::vector<TestWeight> weights;
    std::vector<std::vector<float>> y, expected;
    for (const WeightType type : kWeightTypes) {
      const int64_t n = 33 + 16 * static_cast<int64_t>(weights.size());
      weights.push_back(random_weight(rng, type, n, k));
      y.push_back(poisoned(m * n));
      expected.push_back(poisoned(m * n));
    }
    std::vector<LinearParams> group;
    for (size_t i = 0; i < weights.size(); ++i) {
      const MatrixWeight& w = weights[i].w;
      group.push_back({.x = x.data(), .y = y[i].data(), .m = m, .x_stride = k, .y_stride = w.n, .w = w});
    }
    cpu::simd::linear_group(group, context);
    for (size_t i = 0; i < weights.size(); ++i) {
      group[i].y = expected[i].data();
      cpu::reference::linear(group[i], context);
      EXPECT_TRUE(same_bits(y[i], expected[i])) << "m " << m << " type " << static_cast<int>(group[i].w.type);
    }
  }
}

TEST(Linear, ResultDoesNotDependOnTheBatch) {
  std::mt19937 rng(11);
  HeapScratch scratch;
  ThreadPool pool(2);
  cpu::Context context{pool, scratch};
  const int64_t m = 40, n = 96, k = 384;
  for (const WeightType type : kWeightTypes) {
    const TestWeight weight = random_weight(rng, type, n, k);
    const std::vector<float> x = random_floats(rng, m * k);
    std::vector<float> all = poisoned(m * n);
    cpu::simd::linear({.x = x.data(), .y = all.data(), .m = m, .x_stride = k, .y_stride = n, .w = weight.w},
                      context);
    for (int64_t begin = 0, count = 1; begin < m; begin += count, count = 1 + count * 2 % 13) {
      const int64_t rows = std::min(count, m - begin);
      std::vector<float> part = poisoned(rows * n);
      cpu::simd::linear({.x = x.data() + begin * k,
                         .y = part.data(),
                         .m = rows,
                         .x_stride = k,
                         .y_stride = n,
                         .w = weight.w},
                        context);
      EXPECT_EQ(std::memcmp(part.data(), all.data() + begin * n, rows * n * sizeof(float)), 0) << begin;
    }
  }
}

TEST(BatchedLinear, SimdEqualsReferenceBitForBit) {
  std::mt19937 rng(99);
  HeapScratch scratch;
  ThreadPool pool(2);
  cpu::Context context{pool, scratch};
  struct Case {
    int64_t m, heads, n, k;
    bool transposed;
  };
  const Case cases[] = {
      {0, 2, 32, 64, true},    {1, 3, 128, 512, false}, {1, 3, 512, 128, true},   {2, 2, 512, 128, true},
      {5, 2, 128, 512, false}, {1, 2, 77, 53, true},    {3, 2, 300, 130, true},   {14, 2, 256, 128, true},
      {1, 1, 256, 260, true},  {9, 3, 33, 131, false},  {48, 2, 128, 512, false}, {13, 1, 40, 256, true},
      {2, 1, 256, 260, true},  {3, 2, 512, 130, true},  {4, 2, 512, 128, true},   {4, 1, 333, 260, true},
  };
  for (const Case& c : cases) {
    for (const WeightType type : kWeightTypes) {
      if (is_channel_scaled(type)) continue;
      // Heads are blocks of rows of one matrix with other rows between them, as in kv_b_proj.
      const int64_t rows = c.transposed ? c.k : c.n;
      const int64_t columns = c.transposed ? c.n : c.k;
      const int64_t head_rows = (rows + 127) / 128 * 128 + 128;
      const TestWeight weight = random_weight(rng, type, head_rows * c.heads, columns);
      const int64_t x_head_stride = c.k + 3, y_head_stride = c.n + 2;
      const int64_t x_stride = c.heads * x_head_stride + 1, y_stride = c.heads * y_head_stride + 5;
      const std::vector<float> x = random_floats(rng, c.m * x_stride);
      BatchedLinearParams p{.x = x.data(),
                            .m = c.m,
                            .num_heads = c.heads,
                            .x_stride = x_stride,
                            .x_head_stride = x_head_stride,
                            .y_stride = y_stride,
                            .y_head_stride = y_head_stride,
                            .w = weight.w,
                            .head_stride = head_rows * columns,
                            .scale_head_stride = head_rows / 128 * weight.w.scale_stride,
                            .transposed = c.transposed};
      p.w.n = c.n;
      p.w.k = c.k;
      std::vector<float> expected = poisoned(c.m * y_stride);
      p.y = expected.data();
      cpu::reference::batched_linear(p, context);
      for (const int64_t target : available_targets()) {
        const ForcedTarget forced(target);
        std::vector<float> y = poisoned(c.m * y_stride);
        p.y = y.data();
        cpu::simd::batched_linear(p, context);
        EXPECT_TRUE(same_bits(y, expected))
            << "m " << c.m << " n " << c.n << " k " << c.k << " transposed " << c.transposed << " type "
            << static_cast<int>(type) << " " << hwy::TargetName(target);
        scratch.reset();
      }
    }
  }
}

}  // namespace
}  // namespace hadal::test
