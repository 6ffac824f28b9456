// Tests mlp and moe: SIMD equals the reference bit for bit on every instruction set; both are compared with
// float64.
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/cpu/reference/silu.h"
#include "tests/kernels/matrix_cases.h"

namespace hadal::test {
namespace {

using cpu::silu_mul;

struct Expert {
  TestWeight gate, up, down;
  MlpWeights weights() const { return {gate.w, up.w, down.w}; }
};

// Makes inputs that are scaled so that gates spread over the curved part of silu.
Expert random_expert(std::mt19937& rng, WeightType type, int64_t hidden, int64_t intermediate) {
  return {random_weight(rng, type, intermediate, hidden), random_weight(rng, type, intermediate, hidden),
          random_weight(rng, type, hidden, intermediate)};
}

std::vector<float> small_floats(std::mt19937& rng, int64_t count) {
  std::vector<float> v = random_floats(rng, count);
  for (float& x : v) x *= 0.2F;
  return v;
}

TEST(Silu, ScalarFormulaIsAccurateOverTheWholeRange) {
  for (float v = -80.0F; v <= 90.0F; v += 0.0371F) {
    const double expected = v / (1.0 + std::exp(-static_cast<double>(v)));
    EXPECT_NEAR(silu_mul(v, 1.0F), expected, std::abs(expected) * 1e-6) << v;
  }
  EXPECT_EQ(silu_mul(0.0F, 3.0F), 0.0F);
  EXPECT_TRUE(std::isnan(silu_mul(std::nanf(""), 1.0F)));
  EXPECT_NEAR(silu_mul(-1e30F, 1.0F), 0.0F, 1e-7F);
  EXPECT_EQ(silu_mul(1e30F, 1.0F), 1e30F);
}

TEST(Mlp, SimdEqualsReferenceBitForBit) {
  std::mt19937 rng(5);
  HeapScratch scratch;
  ThreadPool one(1), two(2), three(3);
  ThreadPool* const pools[] = {&one, &two, &three};
  struct Case {
    int64_t m, hidden, intermediate;
  };
  const Case cases[] = {{0, 64, 64},    {1, 64, 96},   {1, 100, 77},   {2, 256, 128},
                        {3, 129, 131},  {8, 64, 176},  {9, 40, 150},   {13, 128, 64},
                        {17, 200, 130}, {48, 96, 256}, {129, 130, 140}};
  size_t turn = 0;
  for (const Case& c : cases) {
    for (const WeightType type : kWeightTypes) {
      const Expert expert = random_expert(rng, type, c.hidden, c.intermediate);
      const std::vector<float> x = small_floats(rng, c.m * c.hidden);
      std::vector<float> expected = poisoned(c.m * c.hidden);
      cpu::Context reference_context{two, scratch};
      cpu::reference::mlp({.x = x.data(), .y = expected.data(), .m = c.m, .weights = expert.weights()},
                          reference_context);
      for (const int64_t target : available_targets()) {
        const ForcedTarget forced(target);
        cpu::Context context{*pools[turn++ % 3], scratch};
        std::vector<float> y = poisoned(c.m * c.hidden);
        cpu::simd::mlp({.x = x.data(), .y = y.data(), .m = c.m, .weights = expert.weights()}, context);
        EXPECT_TRUE(same_bits(y, expected)) << "m " << c.m << " hidden " << c.hidden << " type "
                                            << static_cast<int>(type) << " " << hwy::TargetName(target);
        scratch.reset();
      }
    }
  }
}

TEST(Mlp, ExtremeGatesMatchTheReference) {
  // gate = x · g with a hidden size of one, so the gate's values are chosen directly.
  const float values[] = {0.0F, -0.0F, 1e-30F, -87.0F, -88.5F, -200.0F, -1e30F, 88.0F, 1e30F, 3.0F, -0.5F};
  const int64_t n = std::size(values);
  const std::vector<float> up(n, 1.0F), down(n, 1.0F);
  const auto weight = [](const float* data, int64_t rows, int64_t k) {
    return MatrixWeight{.data = data, .type = WeightType::kF32, .n = rows, .k = k, .row_stride = k};
  };
  const MlpWeights weights{weight(values, n, 1), weight(up.data(), n, 1), weight(down.data(), 1, n)};
  HeapScratch scratch;
  ThreadPool pool(1);
  cpu::Context context{pool, scratch};
  const std::vector<float> x = {1.0F};
  for (const int64_t target : available_targets()) {
    const ForcedTarget forced(target);
    std::vector<float> y = poisoned(1), expected = poisoned(1);
    cpu::simd::mlp({.x = x.data(), .y = y.data(), .m = 1, .weights = weights}, context);
    cpu::reference::mlp({.x = x.data(), .y = expected.data(), .m = 1, .weights = weights}, context);
    EXPECT_TRUE(same_bits(y, expected)) << y[0] << " " << expected[0];
  }
}

struct MoeCase {
  int64_t m;
  int num_experts;
  int top_k;
  int64_t hidden, intermediate;
  int64_t shared;  // intermediate size; 0: there is none
};

TEST(Moe, SimdEqualsReferenceBitForBit) {
  std::mt19937 rng(17);
  HeapScratch scratch;
  ThreadPool two(2), three(3);
  const MoeCase cases[] = {
      {0, 4, 2, 64, 32, 0},  {1, 8, 2, 64, 48, 96},   {1, 4, 4, 130, 33, 0},  {3, 8, 3, 100, 40, 80},
      {4, 6, 2, 128, 64, 0}, {16, 8, 4, 96, 80, 160}, {33, 4, 2, 64, 40, 70}, {48, 3, 1, 64, 32, 0},
      {70, 5, 3, 72, 50, 0}, {129, 2, 2, 64, 34, 64},
  };
  for (const MoeCase& c : cases) {
    for (const WeightType type : kWeightTypes) {
      std::vector<Expert> experts;
      std::vector<MlpWeights> weights;
      for (int e = 0; e < c.num_experts; ++e) {
        experts.push_back(random_expert(rng, type, c.hidden, c.intermediate));
        weights.push_back(experts.back().weights());
      }
      Expert shared;
      MlpWeights shared_weights;
      if (c.shared > 0) {
        shared = random_expert(rng, type, c.hidden, c.shared);
        shared_weights = shared.weights();
      }
      const std::vector<float> x = small_floats(rng, c.m * c.hidden);
      std::vector<int32_t> ids(c.m * c.top_k);
      for (int64_t t = 0; t < c.m; ++t) {
        // Each token's experts are distinct, and the last expert is rare, so some experts get nothing.
        const int span = t % 5 == 0 ? c.num_experts : std::max(c.top_k, c.num_experts - 1);
        const int start = static_cast<int>(rng() % span);
        for (int j = 0; j < c.top_k; ++j) ids[t * c.top_k + j] = (start + j) % span;
      }
      const std::vector<float> topk_weights = random_floats(rng, c.m * c.top_k);
      std::vector<float> expected = poisoned(c.m * c.hidden);
      MoeParams p{.x = x.data(),
                  .y = expected.data(),
                  .m = c.m,
                  .hidden = c.hidden,
                  .topk_ids = ids.data(),
                  .topk_weights = topk_weights.data(),
                  .top_k = c.top_k,
                  .num_experts = c.num_experts,
                  .experts = weights,
                  .shared = c.shared > 0 ? &shared_weights : nullptr};
      cpu::Context reference_context{two, scratch};
      cpu::reference::moe(p, reference_context);
      for (const int64_t target : available_targets()) {
        const ForcedTarget forced(target);
        cpu::Context context{c.m % 2 == 0 ? two : three, scratch};
        std::vector<float> y = poisoned(c.m * c.hidden);
        p.y = y.data();
        cpu::simd::moe(p, context);
        EXPECT_TRUE(same_bits(y, expected))
            << "m " << c.m << " type " << static_cast<int>(type) << " " << hwy::TargetName(target);
        scratch.reset();
      }
    }
  }
}

TEST(Moe, ReferenceIsWithinRoundingOfFloat64) {
  std::mt19937 rng(23);
  const int64_t m = 5, hidden = 96, intermediate = 64;
  const int num_experts = 4, top_k = 2;
  std::vector<Expert> experts;
  std::vector<MlpWeights> weights;
  for (int e = 0; e < num_experts; ++e) {
    experts.push_back(random_expert(rng, WeightType::kF32, hidden, intermediate));
    weights.push_back(experts.back().weights());
  }
  const std::vector<float> x = small_floats(rng, m * hidden);
  const std::vector<int32_t> ids = {0, 1, 3, 2, 1, 0, 2, 0, 3, 1};
  const std::vector<float> topk_weights = random_floats(rng, m * top_k);
  std::vector<float> y = poisoned(m * hidden);
  HeapScratch scratch;
  ThreadPool pool(1);
  cpu::Context context{pool, scratch};
  cpu::reference::moe({.x = x.data(),
                       .y = y.data(),
                       .m = m,
                       .hidden = hidden,
                       .topk_ids = ids.data(),
                       .topk_weights = topk_weights.data(),
                       .top_k = top_k,
                       .num_experts = num_experts,
                       .experts = weights},
                      context);
  const auto at = [](const MatrixWeight& w, int64_t n, int64_t k) {
    float v;
    std::memcpy(&v, static_cast<const std::byte*>(w.data) + (n * w.row_stride + k) * 4, 4);
    return static_cast<double>(v);
  };
  double error = 0, norm = 0;
  for (int64_t t = 0; t < m; ++t) {
    std::vector<double> sum(hidden, 0.0);
    for (int j = 0; j < top_k; ++j) {
      const MlpWeights& w = weights[ids[t * top_k + j]];
      std::vector<double> h(intermediate);
      for (int64_t n = 0; n < intermediate; ++n) {
        double g = 0, u = 0;
        for (int64_t k = 0; k < hidden; ++k) {
          g += at(w.gate, n, k) * x[t * hidden + k];
          u += at(w.up, n, k) * x[t * hidden + k];
        }
        h[n] = g / (1 + std::exp(-g)) * u;
      }
      for (int64_t n = 0; n < hidden; ++n) {
        double d = 0;
        for (int64_t k = 0; k < intermediate; ++k) d += at(w.down, n, k) * h[k];
        sum[n] += topk_weights[t * top_k + j] * d;
      }
    }
    for (int64_t n = 0; n < hidden; ++n) {
      error += (sum[n] - y[t * hidden + n]) * (sum[n] - y[t * hidden + n]);
      norm += sum[n] * sum[n];
    }
  }
  EXPECT_LT(std::sqrt(error / norm), 1e-5);
}

// LocalMoe is a MoE layer. Kernels get ranges of its experts.
struct LocalMoe {
  static constexpr int64_t kHidden = 100, kWidth = 40, kNumExperts = 8, kTopK = 3;
  int64_t m;
  std::vector<Expert> experts;
  Expert shared;
  std::vector<float> x, topk_weights;
  std::vector<int32_t> ids;

  LocalMoe(std::mt19937& rng, WeightType type, int64_t num_tokens) : m(num_tokens) {
    for (int e = 0; e < kNumExperts; ++e) experts.push_back(random_expert(rng, type, kHidden, kWidth));
    shared = random_expert(rng, type, kHidden, kWidth);
    x = small_floats(rng, m * kHidden);
    topk_weights = random_floats(rng, m * kTopK);
    for (int64_t t = 0; t < m; ++t) {
      const auto start = static_cast<int32_t>(rng() % kNumExperts);
      for (int32_t j = 0; j < kTopK; ++j) ids.push_back((start + 3 * j) % kNumExperts);
    }
  }

  template <typename Kernel>
  std::vector<float> run(const Kernel& kernel, int first, int count, bool with_shared,
                         ThreadPool& pool) const {
    std::vector<MlpWeights> weights;
    for (int e = first; e < first + count; ++e) weights.push_back(experts[e].weights());
    return run_with(kernel, first, weights, with_shared, pool);
  }

  template <typename Kernel>
  std::vector<float> run_with(const Kernel& kernel, int first, const std::vector<MlpWeights>& weights,
                              bool with_shared, ThreadPool& pool) const {
    HeapScratch scratch;
    cpu::Context context{pool, scratch};
    const MlpWeights shared_weights = shared.weights();
    std::vector<float> y = poisoned(m * kHidden);
    kernel({.x = x.data(),
            .y = y.data(),
            .m = m,
            .hidden = kHidden,
            .topk_ids = ids.data(),
            .topk_weights = topk_weights.data(),
            .top_k = kTopK,
            .num_experts = kNumExperts,
            .first_expert = first,
            .experts = weights,
            .shared = with_shared ? &shared_weights : nullptr},
           context);
    return y;
  }
};

TEST(Moe, RangesOfExpertsAddUpToTheWholeInBothVersions) {
  std::mt19937 rng(29);
  ThreadPool two(2), three(3);
  for (const WeightType type : kWeightTypes) {
    for (const int64_t m : {1, 5, 34}) {
      const LocalMoe layer(rng, type, m);
      const std::vector<float> whole =
          layer.run(cpu::reference::moe, 0, LocalMoe::kNumExperts, /*with_shared=*/true, two);
      std::vector<float> sum(whole.size(), 0.0F);
      float largest = 0.0F;
      for (const float value : whole) largest = std::max(largest, std::abs(value));
      const std::pair<int, int> ranges[] = {{0, 3}, {3, 0}, {3, 1}, {4, 4}};
      for (const auto& [first, count] : ranges) {
        const bool with_shared = first == 4;
        const std::vector<float> part = layer.run(cpu::reference::moe, first, count, with_shared, two);
        for (const int64_t target : available_targets()) {
          const ForcedTarget forced(target);
          EXPECT_TRUE(same_bits(layer.run(cpu::simd::moe, first, count, with_shared, three), part))
              << "experts " << first << "+" << count << " m " << m << " type " << static_cast<int>(type)
              << " " << hwy::TargetName(target);
        }
        for (size_t i = 0; i < sum.size(); ++i) sum[i] += part[i];
      }
      for (size_t i = 0; i < sum.size(); ++i) ASSERT_NEAR(sum[i], whole[i], 1e-6F * largest) << i;
    }
  }
}

TEST(Moe, WithoutExpertsItIsTheSharedExpertOrZero) {
  std::mt19937 rng(31);
  ThreadPool pool(2);
  HeapScratch scratch;
  cpu::Context context{pool, scratch};
  for (const int64_t m : {1, 7}) {
    const LocalMoe layer(rng, WeightType::kFp8Block, m);
    std::vector<float> expected = poisoned(m * LocalMoe::kHidden);
    cpu::reference::mlp(
        {.x = layer.x.data(), .y = expected.data(), .m = m, .weights = layer.shared.weights()}, context);
    const std::vector<float> zeros(expected.size(), 0.0F);
    const auto check = [&](const auto& kernel) {
      EXPECT_EQ(layer.run(kernel, 5, 0, /*with_shared=*/true, pool), expected);
      EXPECT_EQ(layer.run(kernel, 8, 0, /*with_shared=*/false, pool), zeros);
    };
    check(cpu::reference::moe);
    check(cpu::simd::moe);
  }
}

TEST(Moe, ExpertsOfWidthZeroAreSkippedLikeThoseOfOtherRanks) {
  std::mt19937 rng(37);
  ThreadPool pool(2);
  const LocalMoe layer(rng, WeightType::kInt8Channel, 9);
  std::vector<MlpWeights> weights;
  for (const Expert& expert : layer.experts) weights.push_back(expert.weights());
  for (int e = 4; e < LocalMoe::kNumExperts; ++e) weights[e].gate.n = weights[e].up.n = weights[e].down.k = 0;
  const std::vector<float> expected = layer.run(cpu::reference::moe, 0, 4, /*with_shared=*/true, pool);
  EXPECT_EQ(layer.run_with(cpu::reference::moe, 0, weights, true, pool), expected);
  EXPECT_EQ(layer.run_with(cpu::simd::moe, 0, weights, true, pool), expected);
}

TEST(Moe, IdsAreCheckedAgainstTheModelsExpertsNotTheRanges) {
  std::mt19937 rng(41);
  ThreadPool pool(1);
  LocalMoe layer(rng, WeightType::kBF16, 1);
  layer.ids = {0, 7, 6};
  EXPECT_NO_THROW(layer.run(cpu::simd::moe, 2, 2, false, pool));
  EXPECT_NO_THROW(layer.run(cpu::reference::moe, 2, 2, false, pool));
  for (const int32_t bad : {-1, 8}) {
    layer.ids[1] = bad;
    EXPECT_THROW(layer.run(cpu::simd::moe, 2, 2, false, pool), Error);
    EXPECT_THROW(layer.run(cpu::reference::moe, 2, 2, false, pool), Error);
  }
}

TEST(Mlp, WidthZeroGivesZeros) {
  std::mt19937 rng(43);
  ThreadPool pool(2);
  HeapScratch scratch;
  cpu::Context context{pool, scratch};
  for (const WeightType type : kWeightTypes) {
    MlpWeights weights = random_expert(rng, type, 96, 32).weights();
    weights.gate.n = weights.up.n = weights.down.k = 0;
    for (const int64_t m : {1, 3, 20}) {
      const std::vector<float> x = random_floats(rng, m * 96), zeros(m * 96, 0.0F);
      std::vector<float> y = poisoned(m * 96);
      cpu::simd::mlp({.x = x.data(), .y = y.data(), .m = m, .weights = weights}, context);
      EXPECT_EQ(y, zeros);
      y = poisoned(m * 96);
      cpu::reference::mlp({.x = x.data(), .y = y.data(), .m = m, .weights = weights}, context);
      EXPECT_EQ(y, zeros);
    }
  }
}

TEST(Moe, ExpertOutOfRangeIsAnError) {
  std::mt19937 rng(1);
  const Expert expert = random_expert(rng, WeightType::kBF16, 32, 32);
  const std::vector<MlpWeights> weights = {expert.weights()};
  const std::vector<float> x(32, 1.0F), topk_weights = {1.0F};
  std::vector<float> y(32);
  HeapScratch scratch;
  ThreadPool pool(1);
  cpu::Context context{pool, scratch};
  for (const int32_t bad : {-1, 1, 1 << 30}) {
    const MoeParams p{.x = x.data(),
                      .y = y.data(),
                      .m = 1,
                      .hidden = 32,
                      .topk_ids = &bad,
                      .topk_weights = topk_weights.data(),
                      .top_k = 1,
                      .num_experts = 1,
                      .experts = weights};
    EXPECT_THROW(cpu::simd::moe(p, context), Error);
    EXPECT_THROW(cpu::reference::moe(p, context), Error);
  }
}

}  // namespace
}  // namespace hadal::test
