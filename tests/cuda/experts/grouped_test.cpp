// Compares grouped_linear on the plain kernel and on the weight-streaming kernel with double precision. The
// routings have empty experts, single rows, and experts with more rows than a tile; rows are gathered or
// sorted.
#include <gtest/gtest.h>

#include <numeric>

#include "kernels/cuda/experts/variants.h"
#include "tests/cuda/gemm/linear_case.h"
#include "tests/cuda/test_launch.h"

namespace hadal::testing {
namespace {

struct Routing {
  int64_t m = 0;
  std::vector<int> counts;  // rows of each expert, ≤ m
};

class GroupedCase {
 public:
  GroupedCase(WeightType type, const Routing& routing, int64_t n, int64_t k, bool gathered, uint64_t seed)
      : type_(type), n_(n), k_(k), gathered_(gathered) {
    const auto num_experts = static_cast<int>(routing.counts.size());
    std::mt19937_64 random(seed);
    offsets_.push_back(0);
    for (const int count : routing.counts) {
      std::vector<int32_t> tokens(routing.m);
      std::iota(tokens.begin(), tokens.end(), 0);
      std::shuffle(tokens.begin(), tokens.end(), random);
      std::sort(tokens.begin(), tokens.begin() + count);
      token_of_.insert(token_of_.end(), tokens.begin(), tokens.begin() + count);
      offsets_.push_back(static_cast<int32_t>(token_of_.size()));
    }
    const auto num_rows = static_cast<int64_t>(token_of_.size());
    const int64_t x_rows = gathered ? routing.m : num_rows;
    device_offsets_ = DeviceArray<int32_t>(offsets_);
    device_token_of_ = DeviceArray<int32_t>(token_of_);
    y_ = DeviceArray<uint16_t>(num_rows * n + 64);
    p_.num_rows = num_rows;
    p_.num_experts = num_experts;
    p_.expert_offsets = device_offsets_.data();
    p_.token_of = gathered ? device_token_of_.data() : nullptr;
    p_.y = y_.data();
    p_.w.type = type;
    p_.w.n = n;
    p_.w.k = k;
    if (has_scales(type)) {
      const int64_t stride = cuda::round_up(k, 128);
      const bool channel = is_channel_scaled(type);
      stride_ = stride;
      blocks_ = channel ? 1 : stride / 128;  // scales of a row
      scale_rows_ = channel ? n : (n + 127) / 128;
      x_codes_ = random_codes(x_rows, k, stride, seed + 1, type);
      w_codes_ = random_codes(num_experts * n, k, stride, seed + 2, type);
      const int64_t scale_stride = cuda::round_up(x_rows, 4);
      x_scales_ = random_scales(blocks_ * scale_stride, seed + 3);
      w_scales_ = random_scales(num_experts * scale_rows_ * blocks_, seed + 4);
      device_x_codes_ = DeviceArray<fp8_e4m3>(x_codes_);
      device_w_codes_ = DeviceArray<fp8_e4m3>(w_codes_);
      device_x_scales_ = DeviceArray<float>(x_scales_);
      device_w_scales_ = DeviceArray<float>(w_scales_);
      p_.x_quantized = {.codes = device_x_codes_.data(),
                        .scales = device_x_scales_.data(),
                        .stride = stride,
                        .scale_stride = scale_stride,
                        .power_of_two = false,
                        .format = cuda::row_format_of(type)};
      p_.w.data = device_w_codes_.data();
      p_.w.row_stride = stride;
      p_.w.scales = device_w_scales_.data();
      p_.w.scale_stride = blocks_;
      p_.expert_stride = n * stride;
      p_.expert_scale_stride = scale_rows_ * blocks_;
    } else {
      x_ = to_16_bit(random_rows<float>(x_rows, k, k, seed + 1, 1.0F), is_f16());
      w_ = to_16_bit(
          random_rows<float>(num_experts * n, k, k, seed + 2, 1.0F / std::sqrt(static_cast<float>(k))),
          is_f16());
      device_x_ = DeviceArray<uint16_t>(x_);
      device_w_ = DeviceArray<uint16_t>(w_);
      p_.x = device_x_.data();
      p_.x_stride = k;
      p_.w.data = device_w_.data();
      p_.w.row_stride = k;
      p_.expert_stride = n * k;
    }
  }

  const cuda::GroupedLinearParams& params() const { return p_; }
  void poison() { y_.poison(); }
  std::vector<float> result() const {
    std::vector<float> out = from_16_bit(y_.download(), is_f16());
    for (int64_t i = p_.num_rows * n_; i < static_cast<int64_t>(out.size()); ++i) {
      if (!std::isnan(out[i])) out[0] = NAN;  // the kernel wrote past the end
    }
    out.resize(p_.num_rows * n_);
    return out;
  }
  std::vector<double> expected() const {
    const bool fp8 = has_scales(type_);
    const bool channel = is_channel_scaled(type_);
    std::vector<float> x(fp8 ? x_codes_.size() : x_.size());
    std::vector<float> w(fp8 ? w_codes_.size() : w_.size());
    for (size_t i = 0; i < x.size(); ++i)
      x[i] = fp8 ? code_value(type_, x_codes_[i]) : from_16_bit(x_[i], is_f16());
    for (size_t i = 0; i < w.size(); ++i)
      w[i] = fp8 ? code_value(type_, w_codes_[i]) : from_16_bit(w_[i], is_f16());
    const int64_t stride = fp8 ? stride_ : k_;
    std::vector<double> out(p_.num_rows * n_);
    int expert = 0;
    for (int64_t row = 0; row < p_.num_rows; ++row) {
      while (offsets_[expert + 1] <= row) ++expert;
      const int64_t source = gathered_ ? token_of_[row] : row;
      for (int64_t j = 0; j < n_; ++j) {
        double sum = 0.0;
        for (int64_t b = 0; b * 128 < k_; ++b) {
          double block = 0.0;
          for (int64_t k = b * 128; k < std::min(k_, b * 128 + 128); ++k) {
            block += static_cast<double>(x[source * stride + k]) * w[(expert * n_ + j) * stride + k];
          }
          const int64_t x_scale = channel ? source : b * p_.x_quantized.scale_stride + source;
          const int64_t w_scale = channel ? expert * n_ + j : (expert * scale_rows_ + j / 128) * blocks_ + b;
          const double scale = !fp8 ? 1.0 : static_cast<double>(x_scales_[x_scale]) * w_scales_[w_scale];
          sum += block * scale;
        }
        out[row * n_ + j] = sum;
      }
    }
    return out;
  }

 private:
  bool is_f16() const { return type_ == WeightType::kF16; }

  WeightType type_;
  int64_t n_, k_, stride_ = 0, blocks_ = 0, scale_rows_ = 0;
  bool gathered_;
  std::vector<int32_t> offsets_, token_of_;
  std::vector<fp8_e4m3> x_codes_, w_codes_;
  std::vector<float> x_scales_, w_scales_;
  std::vector<uint16_t> x_, w_;
  DeviceArray<int32_t> device_offsets_, device_token_of_;
  DeviceArray<fp8_e4m3> device_x_codes_, device_w_codes_;
  DeviceArray<float> device_x_scales_, device_w_scales_;
  DeviceArray<uint16_t> device_x_, device_w_, y_;
  cuda::GroupedLinearParams p_;
};

std::vector<Routing> routings() {
  std::vector<Routing> all;
  all.push_back({1, {0, 1, 0, 0, 1}});
  all.push_back({4, {4, 0, 1, 0, 3, 2, 0}});
  all.push_back({20, {0, 20, 9, 8, 1, 0, 17, 16}});
  all.push_back({140, {33, 140, 0, 64, 65, 1}});
  Routing many{3, std::vector<int>(70, 0)};  // more experts than two lanes' share
  many.counts[0] = 1;
  many.counts[33] = 2;
  many.counts[69] = 3;
  all.push_back(many);
  Routing most{5, std::vector<int>(384, 0)};
  for (const int e : {0, 11, 12, 23, 24, 25, 100, 371, 372, 383}) most.counts[e] = 1 + e % 5;
  all.push_back(most);
  return all;
}

std::string describe(const Routing& routing) {
  std::string text = "m " + std::to_string(routing.m) + " counts";
  for (const int count : routing.counts) text += " " + std::to_string(count);
  return text;
}

class Grouped : public ::testing::TestWithParam<WeightType> {
 protected:
  static double tolerance() { return GetParam() == WeightType::kF16 ? 5e-4 : 4e-3; }
};

TEST_P(Grouped, PlainMatchesDoublePrecision) {
  uint64_t seed = 1;
  for (const Routing& routing : routings()) {
    if (routing.m > 20) continue;
    GroupedCase c(GetParam(), routing, 40, 200, true, seed += 10);
    cuda::reference::grouped_linear(c.params(), test_launch());
    const std::vector<double> want = c.expected();
    EXPECT_LE(relative_difference(c.result(), want), tolerance())
        << first_difference(c.result(), want, 40, 10 * tolerance());
  }
}

TEST_P(Grouped, SchedulesMatchDoublePrecision) {
  uint64_t seed = 1000;
  for (const Routing& routing : routings()) {
    for (const bool gathered : {true, false}) {
      const int64_t k = has_scales(GetParam()) ? 640 : 328;
      const int64_t n = routing.counts.size() > 100 ? 40 : 168;
      GroupedCase c(GetParam(), routing, n, k, gathered, seed += 10);
      ASSERT_TRUE(
          supports(cuda::ProductKernel::kSkinny, cuda::grouped_shape(c.params(), test_launch().num_sms)));
      const std::vector<double> want = c.expected();
      for (const int tokens : {16, 64}) {
        for (const int groups : {1, 2}) {
          // Only these types have instantiations with two warpgroups.
          if (groups == 2 && !cuda::skinny::has_two_groups(GetParam())) continue;
          for (const int splits : {1, 2, 4}) {
            c.poison();
            cuda::GroupedLinearParams params = c.params();
            params.offsets_settled = groups == 2 || splits == 2;
            cuda::grouped_skinny_linear(params, test_launch(),
                                        {.tokens = tokens, .groups = groups, .splits = splits, .stages = 3});
            const std::vector<float> out = c.result();
            EXPECT_LE(relative_difference(out, want), tolerance())
                << "tokens " << tokens << " groups " << groups << " splits " << splits << " gathered "
                << gathered << " " << describe(routing) << ": "
                << first_difference(out, want, n, 10 * tolerance());
            if (HasFailure()) return;
          }
        }
      }
    }
  }
}

// Runs every choice that experts/choice.h allows, with sorted and with gathered rows.
TEST_P(Grouped, EveryChoiceMatchesDoublePrecision) {
  uint64_t seed = 3000;
  for (const Routing& routing : routings()) {
    for (const bool gathered : {true, false}) {
      const int64_t n = routing.counts.size() > 100 ? 40 : 168;
      const int64_t k = routing.counts.size() > 20 ? 640 : 1160;
      GroupedCase c(GetParam(), routing, n, k, gathered, seed += 10);
      const std::vector<cuda::GroupedChoice> choices =
          cuda::valid_choices(cuda::grouped_shape(c.params(), test_launch().num_sms));
      ASSERT_FALSE(choices.empty());
      const std::vector<double> want = c.expected();
      for (const cuda::GroupedChoice& choice : choices) {
        c.poison();
        cuda::launch_grouped_linear(choice, c.params(), test_launch());
        const std::vector<float> out = c.result();
        EXPECT_LE(relative_difference(out, want), tolerance())
            << to_string(choice) << " gathered " << gathered << " " << describe(routing) << ": "
            << first_difference(out, want, n, 10 * tolerance());
        if (HasFailure()) return;
      }
    }
  }
}

TEST_P(Grouped, ModelShapesEqualThePlainKernel) {
  uint64_t seed = 5000;
  for (const auto& [n, k] : {std::pair<int64_t, int64_t>{2816, 2048}, {2048, 1408}}) {
    for (const auto& routing :
         {Routing{1, {1, 0, 1, 1, 0, 0, 1, 1}}, Routing{24, {3, 24, 0, 9, 1, 0, 24, 2}}}) {
      GroupedCase c(GetParam(), routing, n, k, true, seed += 10);
      cuda::reference::grouped_linear(c.params(), test_launch());
      const std::vector<float> want = c.result();
      c.poison();
      cuda::grouped_linear(c.params(), test_launch());
      const std::vector<float> out = c.result();
      EXPECT_LE(relative_difference(out, want), tolerance())
          << describe(routing) << first_difference(out, want, n, 10 * tolerance());
      c.poison();
      cuda::grouped_linear(c.params(), test_launch());
      EXPECT_EQ(c.result(), out) << "other bits the second time";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, Grouped,
                         ::testing::Values(WeightType::kBF16, WeightType::kF16, WeightType::kFp8Block,
                                           WeightType::kInt8Block, WeightType::kFp8Channel,
                                           WeightType::kInt8Channel),
                         [](const auto& type) {
                           return type.param == WeightType::kBF16         ? "bf16"
                                  : type.param == WeightType::kF16        ? "f16"
                                  : type.param == WeightType::kFp8Block   ? "fp8"
                                  : type.param == WeightType::kInt8Block  ? "int8"
                                  : type.param == WeightType::kFp8Channel ? "fp8_channel"
                                                                          : "int8_channel";
                         });

}  // namespace
}  // namespace hadal::testing
