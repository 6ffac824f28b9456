#include "kernels/cpu/ops/linear.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "base/error.h"
#include "kernels/cpu/ops/mla.h"

namespace hadal {
namespace {

class OpsTest : public ::testing::Test {
 protected:
  std::vector<float> random(int64_t count) {
    std::vector<float> values(count);
    std::normal_distribution<float> normal;
    for (float& value : values) value = normal(generator_);
    return values;
  }
  static MatrixWeight f32(const std::vector<float>& data, int64_t n, int64_t k) {
    return {.data = data.data(), .type = WeightType::kF32, .n = n, .k = k, .row_stride = k};
  }

  std::mt19937 generator_{1};
  ThreadPool pool_{2};
  Arena arena_;
  ExecContext exec_{.device = {}, .pool = pool_, .workspace = arena_, .stream = {}};
};

TEST_F(OpsTest, AGroupHasTheBitsOfItsMembersWithEitherKernelSet) {
  const std::vector<float> x = random(3 * 64), a = random(40 * 64), b = random(17 * 64);
  std::vector<float> ya(3 * 40), yb(3 * 17), group_a(3 * 40), group_b(3 * 17);
  const Tensor input = Tensor::of(x.data(), {3, 64});
  for (const KernelSet kernels : {KernelSet::kOptimised, KernelSet::kReference}) {
    exec_.kernels = kernels;
    linear(input, f32(a, 40, 64), Tensor::of(ya.data(), {3, 40}), exec_);
    linear(input, f32(b, 17, 64), Tensor::of(yb.data(), {3, 17}), exec_);
    linear_group(input,
                 {{f32(a, 40, 64), Tensor::of(group_a.data(), {3, 40})},
                  {f32(b, 17, 64), Tensor::of(group_b.data(), {3, 17})}},
                 exec_);
    EXPECT_EQ(group_a, ya);
    EXPECT_EQ(group_b, yb);
  }
}

TEST_F(OpsTest, AbsorbedProductsUseTheRowsOfTheirHalfOfKvB) {
  constexpr int64_t kHeads = 2;
  const std::vector<float> kv_b = random(kHeads * 256 * 512), q = random(kHeads * 128),
                           o = random(kHeads * 512);
  std::vector<float> latent(kHeads * 512), value(kHeads * 128);
  const MatrixWeight w = f32(kv_b, kHeads * 256, 512);
  absorb_query(Tensor::of(q.data(), {1, kHeads, 128}), w, Tensor::of(latent.data(), {1, kHeads, 512}), exec_);
  expand_value(Tensor::of(o.data(), {1, kHeads, 512}), w, Tensor::of(value.data(), {1, kHeads, 128}), exec_);
  for (int64_t h = 0; h < kHeads; ++h) {
    double expected_latent = 0.0, expected_value = 0.0;
    for (int64_t d = 0; d < 128; ++d)
      expected_latent += double{q[h * 128 + d]} * kv_b[(h * 256 + d) * 512 + 7];
    for (int64_t d = 0; d < 512; ++d)
      expected_value += double{o[h * 512 + d]} * kv_b[(h * 256 + 128 + 5) * 512 + d];
    EXPECT_NEAR(latent[h * 512 + 7], expected_latent, 1e-3);
    EXPECT_NEAR(value[h * 128 + 5], expected_value, 1e-3);
  }
}

// With INT8 blocks W_UK and W_UV of each head have separate scales.
TEST_F(OpsTest, AbsorbedProductsUseTheScalesOfTheirHalfOfKvB) {
  constexpr int64_t kHeads = 2;
  std::vector<int8_t> codes(kHeads * 256 * 512);
  for (int8_t& code : codes) code = static_cast<int8_t>(generator_());
  std::vector<float> scales = random(kHeads * 2 * 4);
  const MatrixWeight w{.data = codes.data(),
                       .type = WeightType::kInt8Block,
                       .n = kHeads * 256,
                       .k = 512,
                       .row_stride = 512,
                       .scales = scales.data(),
                       .scale_stride = 4};
  const auto weight = [&](int64_t row, int64_t col) {
    return double{scales[row / 128 * 4 + col / 128]} * codes[row * 512 + col];
  };
  const std::vector<float> q = random(kHeads * 128), o = random(kHeads * 512);
  for (const KernelSet kernels : {KernelSet::kOptimised, KernelSet::kReference}) {
    exec_.kernels = kernels;
    std::vector<float> latent(kHeads * 512), value(kHeads * 128);
    absorb_query(Tensor::of(q.data(), {1, kHeads, 128}), w, Tensor::of(latent.data(), {1, kHeads, 512}),
                 exec_);
    expand_value(Tensor::of(o.data(), {1, kHeads, 512}), w, Tensor::of(value.data(), {1, kHeads, 128}),
                 exec_);
    for (int64_t h = 0; h < kHeads; ++h) {
      for (const int64_t i : {7, 130, 511}) {
        double expected = 0.0;
        for (int64_t d = 0; d < 128; ++d) expected += q[h * 128 + d] * weight(h * 256 + d, i);
        EXPECT_NEAR(latent[h * 512 + i], expected, 0.02) << h << ", " << i;
      }
      double expected = 0.0;
      for (int64_t d = 0; d < 512; ++d) expected += o[h * 512 + d] * weight(h * 256 + 128 + 5, d);
      EXPECT_NEAR(value[h * 128 + 5], expected, 0.02) << h;
    }
    MatrixWeight channel = w;
    channel.type = WeightType::kInt8Channel;
    EXPECT_THROW(absorb_query(Tensor::of(q.data(), {1, kHeads, 128}), channel,
                              Tensor::of(latent.data(), {1, kHeads, 512}), exec_),
                 Error);
    EXPECT_THROW(expand_value(Tensor::of(o.data(), {1, kHeads, 512}), channel,
                              Tensor::of(value.data(), {1, kHeads, 128}), exec_),
                 Error);
  }
}

TEST_F(OpsTest, ChannelWeightsAreScaledByTheirRow) {
  constexpr int64_t kOut = 19, kIn = 70;
  std::vector<int8_t> codes(kOut * kIn);
  for (int8_t& code : codes) code = static_cast<int8_t>(generator_());
  const std::vector<float> scales = random(kOut), x = random(2 * kIn);
  const MatrixWeight w{.data = codes.data(),
                       .type = WeightType::kInt8Channel,
                       .n = kOut,
                       .k = kIn,
                       .row_stride = kIn,
                       .scales = scales.data()};
  for (const KernelSet kernels : {KernelSet::kOptimised, KernelSet::kReference}) {
    exec_.kernels = kernels;
    std::vector<float> y(2 * kOut);
    linear(Tensor::of(x.data(), {2, kIn}), w, Tensor::of(y.data(), {2, kOut}), exec_);
    for (int64_t i = 0; i < 2; ++i) {
      for (int64_t n = 0; n < kOut; ++n) {
        double expected = 0.0;
        for (int64_t k = 0; k < kIn; ++k) expected += double{x[i * kIn + k]} * codes[n * kIn + k];
        EXPECT_NEAR(y[i * kOut + n], expected * scales[n], 0.01) << i << ", " << n;
      }
    }
  }
}

TEST_F(OpsTest, MisshapenOperandsAreRefused) {
  std::vector<float> data(4096);
  const MatrixWeight w = f32(data, 16, 32);
  const Tensor x = Tensor::of(data.data(), {2, 32});
  EXPECT_THROW(linear(x, w, Tensor::of(data.data(), {2, 15}), exec_), Error);
  EXPECT_THROW(linear(x, w, Tensor::of(data.data(), {3, 16}), exec_), Error);
  EXPECT_THROW(linear(Tensor::of(data.data(), {2, 31}), w, Tensor::of(data.data(), {2, 16}), exec_), Error);
  const PrefillSegment short_segment{.seq_idx = 0, .q_begin = 0, .q_len = 1, .kv_len = 1};
  EXPECT_THROW(mla_prefill(Tensor::of(data.data(), {2, 1, 192}), {}, {&short_segment, 1}, f32(data, 256, 512),
                           1.0F, Tensor::of(data.data(), {2, 1, 128}), exec_),
               Error);
}

}  // namespace
}  // namespace hadal
