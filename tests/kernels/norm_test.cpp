#include "tests/kernels/attention_fixture.h"

namespace hadal::cpu {
namespace {

struct NormCase {
  int64_t m, n, x_stride, y_stride;
  bool with_residual;
  std::vector<float> x, residual, weight;

  NormCase(int64_t rows, int64_t columns, bool residual_too, Random& random)
      : m(rows), n(columns), x_stride(columns + 3), y_stride(columns + 7), with_residual(residual_too) {
    x = random.normals(m * x_stride + 1, 3.0F);
    residual = random.normals(m * n);
    weight = random.normals(n);
  }

  // Returns y, then the residual.
  template <typename Kernel>
  std::vector<float> run(Kernel kernel, int num_threads) {
    std::vector<float> y(m * y_stride, -1.0F);
    std::vector<float> sum = residual;
    const RmsNormParams params = {.x = x.data(),
                                  .residual = with_residual ? sum.data() : nullptr,
                                  .y = y.data(),
                                  .weight = weight.data(),
                                  .m = m,
                                  .n = n,
                                  .x_stride = x_stride,
                                  .y_stride = y_stride,
                                  .eps = 1e-6F};
    run_on(num_threads, [&](Context& ctx) { kernel(params, ctx); });
    y.insert(y.end(), sum.begin(), sum.end());
    return y;
  }
};

TEST(RmsNorm, MatchesReferenceBitForBit) {
  const uint64_t seed = 51;
  SCOPED_TRACE(seed);
  Random random(seed);
  for (int64_t n : {1, 15, 16, 17, 100, 512, 1536, 2048, 7168}) {
    for (int64_t m : {0, 1, 3, 40}) {
      for (bool residual : {false, true}) {
        SCOPED_TRACE(n * 100 + m);
        NormCase c(m, n, residual, random);
        const auto expected = c.run(reference::rms_norm, 1);
        for_each_target([&] {
          EXPECT_TRUE(same_bits(c.run(simd::rms_norm, 1), expected));
          EXPECT_TRUE(same_bits(c.run(simd::rms_norm, 3), expected));
        });
      }
    }
  }
}

TEST(RmsNorm, NormalisesTheSumWithTheResidual) {
  const uint64_t seed = 52;
  SCOPED_TRACE(seed);
  Random random(seed);
  NormCase c(2, 300, true, random);
  const auto out = c.run(simd::rms_norm, 1);
  for (int64_t i = 0; i < c.m; ++i) {
    double mean = 0.0;
    for (int64_t k = 0; k < c.n; ++k) {
      const float sum = c.residual[i * c.n + k] + c.x[i * c.x_stride + k];
      EXPECT_EQ(out[c.m * c.y_stride + i * c.n + k], sum);
      mean += static_cast<double>(sum) * sum / static_cast<double>(c.n);
    }
    for (int64_t k = 0; k < c.n; ++k) {
      const double expected = out[c.m * c.y_stride + i * c.n + k] / std::sqrt(mean + 1e-6) * c.weight[k];
      EXPECT_NEAR(out[i * c.y_stride + k], expected, 1e-5 * (1.0 + std::fabs(expected)));
    }
    for (int64_t k = c.n; k < c.y_stride; ++k)
      EXPECT_EQ(out[i * c.y_stride + k], -1.0F);  // the gap is not written
  }
}

TEST(RmsNorm, WorksInPlace) {
  const uint64_t seed = 53;
  SCOPED_TRACE(seed);
  Random random(seed);
  NormCase c(3, 77, false, random);
  c.y_stride = c.x_stride;
  const auto expected = c.run(reference::rms_norm, 1);
  std::vector<float> x = c.x;
  const RmsNormParams params = {.x = x.data(),
                                .y = x.data(),
                                .weight = c.weight.data(),
                                .m = c.m,
                                .n = c.n,
                                .x_stride = c.x_stride,
                                .y_stride = c.x_stride};
  run_on(1, [&](Context& ctx) { simd::rms_norm(params, ctx); });
  for (int64_t i = 0; i < c.m; ++i) {
    for (int64_t k = 0; k < c.n; ++k) EXPECT_EQ(x[i * c.x_stride + k], expected[i * c.y_stride + k]);
  }
}

}  // namespace
}  // namespace hadal::cpu
