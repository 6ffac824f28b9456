// Compares the two kernels of few_experts with the separate kernels, which start from the same sums: routing,
// activation and down projection have the same bits. The sums of the router and of gate_up are compared with
// double precision.
#include "kernels/cuda/experts/few/few_experts.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "kernels/cuda/elementwise/elementwise.h"
#include "kernels/cuda/experts/variants.h"
#include "tests/cuda/gemm/linear_case.h"
#include "tests/cuda/test_launch.h"

namespace hadal::testing {
namespace {

struct Shape {
  WeightType type;
  GateKind kind;
  int num_experts, num_shared, top_k, num_groups, topk_groups;
  int64_t hidden, intermediate;
  int splits;
};
const Shape kShapes[] = {
    {WeightType::kFp8Block, GateKind::kSigmoidNoAuxTc, 256, 1, 8, 8, 4, 896, 256, 7},
    {WeightType::kFp8Block, GateKind::kSigmoidNoAuxTc, 256, 1, 8, 8, 4, 1920, 128, 0},
    {WeightType::kFp8Block, GateKind::kSoftmaxGreedy, 64, 2, 6, 1, 1, 1024, 384, 3},
    {WeightType::kBF16, GateKind::kSoftmaxGreedy, 64, 2, 6, 1, 1, 512, 1408, 4},
    {WeightType::kBF16, GateKind::kSoftmaxGroupLimited, 160, 2, 6, 8, 3, 640, 192, 0},
    {WeightType::kBF16, GateKind::kSoftmaxGreedy, 8, 0, 2, 1, 1, 256, 64, 1},
    {WeightType::kBF16, GateKind::kSigmoidNoAuxTc, 200, 3, 4, 1, 1, 512, 128, 8},
    {WeightType::kF16, GateKind::kSoftmaxGreedy, 64, 2, 6, 1, 1, 512, 1408, 4},
    {WeightType::kF16, GateKind::kSoftmaxGroupLimited, 160, 2, 6, 8, 3, 640, 192, 0},
    {WeightType::kF16, GateKind::kSigmoidNoAuxTc, 200, 3, 4, 1, 1, 512, 128, 8},
};

// Ranks that hold some of the experts compute the shared experts separately.
const Shape kRoutedOnly[] = {
    {WeightType::kFp8Block, GateKind::kSigmoidNoAuxTc, 256, 0, 8, 8, 4, 896, 256, 7},
    {WeightType::kFp8Block, GateKind::kSoftmaxGreedy, 64, 0, 6, 1, 1, 1024, 384, 3},
    {WeightType::kBF16, GateKind::kSoftmaxGreedy, 64, 0, 6, 1, 1, 512, 1408, 4},
    {WeightType::kF16, GateKind::kSoftmaxGroupLimited, 160, 0, 6, 8, 3, 640, 192, 0},
};

class FewExperts {
 public:
  FewExperts(const Shape& s, int64_t m, uint64_t seed) : s_(s), m_(m) {
    const bool fp8 = s.type == WeightType::kFp8Block;
    const int experts = s.num_experts + s.num_shared;
    const int64_t slots = s.top_k + s.num_shared;
    rows_ = m * slots;
    const float sigma = 1.0F / std::sqrt(static_cast<float>(s.hidden));
    x_ = random_bits(m, s.hidden, seed, 1.0F);
    gate_ = random_bits(s.num_experts, s.hidden, seed + 1, sigma);
    device_x_ = DeviceArray<uint16_t>(x_);
    device_gate_ = DeviceArray<uint16_t>(gate_);
    bias_ = DeviceArray<float>(random_scales(s.num_experts, seed + 2));
    ids_ = DeviceArray<int32_t>(rows_ + 1);
    weights_ = DeviceArray<float>(rows_ + 1);
    offsets_ = DeviceArray<int32_t>(experts + 2);
    token_of_ = DeviceArray<int32_t>(rows_ + 1);
    row_of_ = DeviceArray<int32_t>(rows_ + 1);
    distinct_ = DeviceArray<int32_t>(2);
    y_ = DeviceArray<uint16_t>(rows_ * s.hidden + 64);
    p_.x = device_x_.data();
    p_.x_stride = s.hidden;
    p_.gate = {.data = device_gate_.data(),
               .type = fp8 ? WeightType::kBF16 : s.type,
               .n = s.num_experts,
               .k = s.hidden,
               .row_stride = s.hidden};
    p_.gate_up = {.type = s.type, .n = 2 * s.intermediate, .k = s.hidden, .row_stride = s.hidden};
    p_.down = {.type = s.type, .n = s.hidden, .k = s.intermediate, .row_stride = s.intermediate};
    p_.gate_up_stride = 2 * s.intermediate * s.hidden;
    p_.down_stride = s.intermediate * s.hidden;
    if (fp8) {
      stride_ = cuda::round_up(m, 4);
      x_codes_ = DeviceArray<fp8_e4m3>(m * s.hidden);
      x_scales_ = DeviceArray<float>(s.hidden / 128 * stride_);
      p_.x_quantized = {.codes = x_codes_.data(),
                        .scales = x_scales_.data(),
                        .stride = s.hidden,
                        .scale_stride = stride_,
                        .power_of_two = seed % 2 == 0};
      cuda::quantize_rows(
          {.x = device_x_.data(), .x_stride = s.hidden, .m = m, .n = s.hidden, .y = p_.x_quantized},
          test_launch());
      w1_codes_ = random_codes(experts * 2 * s.intermediate, s.hidden, s.hidden, seed + 3);
      const auto w2_codes = random_codes(experts * s.hidden, s.intermediate, s.intermediate, seed + 4);
      device_w1_codes_ = DeviceArray<fp8_e4m3>(w1_codes_);
      device_w2_codes_ = DeviceArray<fp8_e4m3>(w2_codes);
      p_.gate_up_scale_stride = 2 * s.intermediate / 128 * (s.hidden / 128);
      p_.down_scale_stride = (s.hidden + 127) / 128 * (s.intermediate / 128);
      w1_scales_ = random_scales(experts * p_.gate_up_scale_stride, seed + 5);
      for (float& scale : w1_scales_) scale *= 0.02F;
      device_w1_scales_ = DeviceArray<float>(w1_scales_);
      device_w2_scales_ = DeviceArray<float>(random_scales(experts * p_.down_scale_stride, seed + 6));
      p_.gate_up.data = device_w1_codes_.data();
      p_.gate_up.scales = device_w1_scales_.data();
      p_.gate_up.scale_stride = s.hidden / 128;
      p_.down.data = device_w2_codes_.data();
      p_.down.scales = device_w2_scales_.data();
      p_.down.scale_stride = s.intermediate / 128;
    } else {
      w1_ = random_bits(experts * 2 * s.intermediate, s.hidden, seed + 3, sigma);
      device_w1_ = DeviceArray<uint16_t>(w1_);
      device_w2_ = DeviceArray<uint16_t>(random_bits(experts * s.hidden, s.intermediate, seed + 4, 0.1F));
      p_.gate_up.data = device_w1_.data();
      p_.down.data = device_w2_.data();
    }
    p_.route = {.bias = bias_.data(),
                .m = m,
                .num_experts = s.num_experts,
                .num_shared = s.num_shared,
                .top_k = s.top_k,
                .num_groups = s.num_groups,
                .topk_groups = s.topk_groups,
                .kind = s.kind,
                .renormalize = seed % 3 != 0,
                .scaling_factor = 2.5F,
                .topk_ids = ids_.data(),
                .topk_weights = weights_.data(),
                .expert_offsets = offsets_.data(),
                .token_of = token_of_.data(),
                .row_of = row_of_.data(),
                .num_distinct = distinct_.data()};
    p_.y = y_.data();
    p_.splits = s.splits;
    scratch_ = DeviceArray<float>(cuda::few::scratch_bytes(shape(), num_splits()) / 4);
    p_.scratch = scratch_.data();
  }

  cuda::ExpertsShape shape() const { return cuda::experts_shape(p_, test_launch().num_sms); }
  int num_splits() const { return p_.splits > 0 ? p_.splits : cuda::few::splits_of(shape()); }

  void set_valid(int32_t valid) {
    valid_ = DeviceArray<int32_t>(std::vector<int32_t>{valid});
    p_.route.valid = valid_.data();
  }
  // Makes all logits equal, with biases on a coarse grid; or makes every logit NaN.
  void set_ties(bool numbers) {
    x_.assign(x_.size(), numbers ? uint16_t{0} : uint16_t{0x7fff});
    device_x_.upload(x_);
    std::vector<float> bias = bias_.download();
    for (float& b : bias) b = std::round(b * 4.0F) * 0.25F;
    bias_.upload(bias);
  }
  // Gives rows only to routed experts [first, first + count). The weights begin with those of expert `first`.
  void hold(int first, int count) {
    p_.route.first_held = first;
    p_.route.num_held = count;
    const auto shift = [&](MatrixWeight& w, int64_t stride, int64_t scale_stride) {
      w.data = static_cast<const std::byte*>(w.data) + first * stride * weight_element_bytes(w.type);
      if (w.scales != nullptr) w.scales += first * scale_stride;
    };
    shift(p_.gate_up, p_.gate_up_stride, p_.gate_up_scale_stride);
    shift(p_.down, p_.down_stride, p_.down_scale_stride);
  }
  // After run(): returns the row of pair i, or −1.
  std::vector<int32_t> row_of() const { return row_of_.download(); }
  const cuda::FewExpertsParams& params() const { return p_; }

  std::vector<uint16_t> run() {
    for (DeviceArray<int32_t>* a : {&ids_, &offsets_, &token_of_, &row_of_, &distinct_}) a->poison();
    weights_.poison();
    scratch_.poison();
    y_.poison();
    cuda::few_experts(p_, test_launch());
    return y_.download();
  }

  std::vector<uint16_t> download() const { return y_.download(); }

  // After run(): returns the logits to which the router's parts add up.
  std::vector<float> logits_of(const std::vector<float>& scratch) const {
    const int64_t size = m_ * s_.num_experts;
    std::vector<float> logits(size);
    for (int64_t i = 0; i < size; ++i) {
      float sum = scratch[i];
      for (int split = 1; split < cuda::few::kRouterSplits; ++split) sum += scratch[split * size + i];
      logits[i] = sum;
    }
    return logits;
  }
  std::vector<float> logits() const { return logits_of(scratch_.download()); }

  // After run(): compares the routing of run() with that of `route` for these logits.
  void check_routing(const std::vector<float>& logits) const {
    const int experts = s_.num_experts + s_.num_shared;
    const DeviceArray<float> device_logits(logits);
    const DeviceArray<int32_t> ids(rows_ + 1), offsets(experts + 2), token_of(rows_ + 1), row_of(rows_ + 1);
    const DeviceArray<float> weights(rows_ + 1);
    const DeviceArray<int32_t> distinct(2);
    const DeviceArray<std::byte> route_scratch(cuda::route_scratch_bytes(m_, experts));
    cuda::RouteParams route = p_.route;
    route.logits = device_logits.data();
    route.topk_ids = ids.data();
    route.topk_weights = weights.data();
    route.expert_offsets = offsets.data();
    route.token_of = token_of.data();
    route.row_of = row_of.data();
    route.num_distinct = distinct.data();
    route.scratch = route_scratch.data();
    cuda::route(route, test_launch());
    EXPECT_EQ(ids_.download(), ids.download());
    EXPECT_EQ(offsets_.download(), offsets.download());
    EXPECT_EQ(token_of_.download(), token_of.download());
    EXPECT_EQ(row_of_.download(), row_of.download());
    EXPECT_EQ(distinct_.download(), distinct.download());
    const auto weights_have = weights_.download();
    const auto weights_want = weights.download();
    EXPECT_EQ(std::memcmp(weights_have.data(), weights_want.data(), weights_want.size() * 4), 0);
  }

  // After run(): computes with the separate kernels, from the sums that run() left in scratch, and compares.
  void check(const std::vector<uint16_t>& y) {
    const int experts = s_.num_experts + s_.num_shared;
    const auto scratch = scratch_.download();
    const std::vector<float> logits = logits_of(scratch);
    double error = 0.0;
    double norm = 0.0;
    for (int64_t t = 0; t < m_; ++t) {
      for (int e = 0; e < s_.num_experts; ++e) {
        double sum = 0.0;
        for (int64_t k = 0; k < s_.hidden; ++k)
          sum += value(x_[t * s_.hidden + k]) * value(gate_[e * s_.hidden + k]);
        error += std::pow(static_cast<double>(logits[t * s_.num_experts + e]) - sum, 2);
        norm += sum * sum;
      }
    }
    EXPECT_LE(std::sqrt(error / norm), 1e-6);
    check_routing(logits);

    // The sums of gate_up are compared with double precision (the tensor cores keep about 14 bits of FP8
    // sums) and then rounded as on the device.
    const bool fp8 = s_.type == WeightType::kFp8Block;
    const int64_t wide = 2 * s_.intermediate;
    const int splits = num_splits();
    const size_t sums_begin = scratch.size() - static_cast<size_t>(splits * rows_ * wide);
    std::vector<uint16_t> gate_up(rows_ * wide);
    std::vector<float> sums(rows_ * wide);
    for (size_t i = 0; i < gate_up.size(); ++i) {
      float sum = scratch[sums_begin + i];
      for (int split = 1; split < splits; ++split) sum += scratch[sums_begin + split * gate_up.size() + i];
      sums[i] = sum;
      gate_up[i] = to_16_bit(sum, is_f16());
    }
    EXPECT_LE(gate_up_error(sums, token_of_.download(), offsets_.download()), fp8 ? 5e-4 : 1e-5);
    const DeviceArray<uint16_t> device_gate_up(gate_up);
    const DeviceArray<uint16_t> activated(rows_ * s_.intermediate);
    const DeviceArray<fp8_e4m3> activated_codes(rows_ * s_.intermediate);
    const int64_t stride = cuda::round_up(rows_, 4);
    const DeviceArray<float> activated_scales(std::max<int64_t>(s_.intermediate / 128, 1) * stride);
    cuda::QuantizedRows rows;
    if (fp8) {
      rows = {.codes = activated_codes.data(),
              .scales = activated_scales.data(),
              .stride = s_.intermediate,
              .scale_stride = stride,
              .power_of_two = p_.x_quantized.power_of_two};
    }
    cuda::silu_mul({.x = device_gate_up.data(),
                    .m = rows_,
                    .n = s_.intermediate,
                    .y = fp8 ? nullptr : activated.data(),
                    .y_quantized = rows,
                    .f16 = is_f16()},
                   test_launch());
    const DeviceArray<uint16_t> out(rows_ * s_.hidden + 64);
    cuda::grouped_skinny_linear({.x = fp8 ? nullptr : activated.data(),
                                 .x_stride = s_.intermediate,
                                 .x_quantized = rows,
                                 .expert_offsets = offsets_.data(),
                                 .num_rows = rows_,
                                 .num_experts = experts,
                                 .w = p_.down,
                                 .expert_stride = p_.down_stride,
                                 .expert_scale_stride = p_.down_scale_stride,
                                 .y = out.data()},
                                test_launch(), {.tokens = 16, .groups = 1, .splits = 1, .stages = 4});
    const auto want = out.download();
    EXPECT_EQ(std::memcmp(y.data(), want.data(), want.size() * 2), 0);
  }

 private:
  bool is_f16() const { return s_.type == WeightType::kF16; }
  double value(uint16_t bits) const { return from_16_bit(bits, is_f16()); }
  std::vector<uint16_t> random_bits(int64_t rows, int64_t width, uint64_t seed, float sigma) const {
    return to_16_bit(random_rows<float>(rows, width, width, seed, sigma), is_f16());
  }
  double gate_up_error(const std::vector<float>& sums, const std::vector<int32_t>& token_of,
                       const std::vector<int32_t>& offsets) const {
    const bool fp8 = s_.type == WeightType::kFp8Block;
    const std::vector<fp8_e4m3> codes = fp8 ? x_codes_.download() : std::vector<fp8_e4m3>{};
    const std::vector<float> scales = fp8 ? x_scales_.download() : std::vector<float>{};
    const int64_t wide = 2 * s_.intermediate;
    double error = 0.0;
    double norm = 0.0;
    int64_t expert = 0;
    for (int64_t row = 0; row < rows_; ++row) {
      while (offsets[expert + 1] <= row) ++expert;
      const int64_t token = token_of[row];
      for (int64_t n = 0; n < wide; n += 3) {
        double sum = 0.0;
        for (int64_t k = 0; k < s_.hidden; ++k) {
          const int64_t w_at = (expert * wide + n) * s_.hidden + k;
          const int64_t x_at = token * s_.hidden + k;
          if (fp8) {
            const int64_t scale_at = expert * p_.gate_up_scale_stride + n / 128 * (s_.hidden / 128) + k / 128;
            sum += static_cast<double>(to_float(codes[x_at])) *
                   static_cast<double>(to_float(w1_codes_[w_at])) *
                   static_cast<double>(scales[k / 128 * stride_ + token]) *
                   static_cast<double>(w1_scales_[scale_at]);
          } else {
            sum += value(x_[x_at]) * value(w1_[w_at]);
          }
        }
        error += std::pow(static_cast<double>(sums[row * wide + n]) - sum, 2);
        norm += sum * sum;
      }
    }
    return std::sqrt(error / norm);
  }

  Shape s_;
  int64_t m_, rows_ = 0, stride_ = 0;
  std::vector<uint16_t> x_, gate_, w1_;
  std::vector<fp8_e4m3> w1_codes_;
  std::vector<float> w1_scales_;
  DeviceArray<uint16_t> device_x_, device_gate_, device_w1_, device_w2_, y_;
  DeviceArray<fp8_e4m3> x_codes_, device_w1_codes_, device_w2_codes_;
  DeviceArray<float> x_scales_, device_w1_scales_, device_w2_scales_, bias_, weights_, scratch_;
  DeviceArray<int32_t> ids_, offsets_, token_of_, row_of_, distinct_, valid_;
  cuda::FewExpertsParams p_;
};

class FewExpertsOf : public ::testing::TestWithParam<Shape> {};

TEST_P(FewExpertsOf, HaveTheBitsOfTheSeparateKernels) {
  const uint64_t seed = fresh_seed();
  SCOPED_TRACE(::testing::Message() << "HADAL_TEST_SEED=" << seed);
  for (const int64_t m : {1, 3, 8}) {
    SCOPED_TRACE(::testing::Message() << "m " << m);
    FewExperts experts(GetParam(), m, seed + m);
    ASSERT_TRUE(cuda::few::supports(experts.shape(), experts.num_splits()));
    const auto y = experts.run();
    experts.check(y);
    for (int repeat = 0; repeat < 3; ++repeat) {
      const auto again = experts.run();
      ASSERT_EQ(std::memcmp(again.data(), y.data(), y.size() * 2), 0);
    }
    // Each of these calls starts before the previous one has ended.
    for (int i = 0; i < 50; ++i) cuda::few_experts(experts.params(), test_launch());
    const auto last = experts.download();
    ASSERT_EQ(std::memcmp(last.data(), y.data(), y.size() * 2), 0);
  }
}

TEST_P(FewExpertsOf, SendRowsThatPadABatchWhereTheFirstGoes) {
  const uint64_t seed = fresh_seed();
  SCOPED_TRACE(::testing::Message() << "HADAL_TEST_SEED=" << seed);
  FewExperts experts(GetParam(), 4, seed);
  experts.set_valid(3);
  experts.check(experts.run());
}

TEST_P(FewExpertsOf, SendTiesToTheLowerIndexAndNaNLast) {
  const uint64_t seed = fresh_seed();
  SCOPED_TRACE(::testing::Message() << "HADAL_TEST_SEED=" << seed);
  for (const int64_t m : {1, 2}) {
    for (const bool numbers : {true, false}) {
      SCOPED_TRACE(::testing::Message() << "m " << m << (numbers ? "" : ", NaN"));
      FewExperts experts(GetParam(), m, seed + m);
      experts.set_ties(numbers);
      experts.run();
      experts.check_routing(experts.logits());
    }
  }
}

class SomeExpertsOf : public ::testing::TestWithParam<Shape> {};

// A rank that holds some of the experts computes their rows with the same bits as a rank that holds all
// experts.
TEST_P(SomeExpertsOf, HaveTheBitsOfAllExperts) {
  const uint64_t seed = fresh_seed();
  SCOPED_TRACE(::testing::Message() << "HADAL_TEST_SEED=" << seed);
  const Shape& s = GetParam();
  for (const int64_t m : {1, 3, 8}) {
    FewExperts all(s, m, seed + m);
    const auto y = all.run();
    const std::vector<int32_t> row_of = all.row_of();
    for (const int parts : {2, 4, s.num_experts}) {
      const int count = s.num_experts / parts;
      for (const int part : {0, 1, parts - 1}) {
        SCOPED_TRACE(::testing::Message() << "m " << m << ", part " << part << " of " << parts);
        FewExperts some(s, m, seed + m);
        some.hold(part * count, count);
        ASSERT_TRUE(cuda::few::supports(some.shape(), some.num_splits()));
        const auto y_some = some.run();
        some.check_routing(some.logits());
        const std::vector<int32_t> some_row_of = some.row_of();
        for (int64_t pair = 0; pair < m * s.top_k; ++pair) {
          if (some_row_of[pair] < 0) continue;
          ASSERT_EQ(std::memcmp(&y_some[some_row_of[pair] * s.hidden], &y[row_of[pair] * s.hidden],
                                static_cast<size_t>(s.hidden) * 2),
                    0)
              << "pair " << pair;
        }
      }
    }
  }
}

TEST(FewExpertsChecks, RefuseImpossibleChoices) {
  for (const auto& spoil : std::initializer_list<void (*)(cuda::RouteParams&)>{
           [](cuda::RouteParams& r) { r.top_k = 0; },
           [](cuda::RouteParams& r) { r.num_groups = 3; },
           [](cuda::RouteParams& r) { r.topk_groups = 0; },
       }) {
    FewExperts experts(kShapes[0], 1, fresh_seed());
    cuda::FewExpertsParams params = experts.params();
    spoil(params.route);
    EXPECT_THROW(cuda::few_experts(params, test_launch()), Error);
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, FewExpertsOf, ::testing::ValuesIn(kShapes),
                         [](const auto& shape) { return std::to_string(shape.index); });

INSTANTIATE_TEST_SUITE_P(Shapes, SomeExpertsOf, ::testing::ValuesIn(kRoutedOnly),
                         [](const auto& shape) { return std::to_string(shape.index); });

}  // namespace
}  // namespace hadal::testing
