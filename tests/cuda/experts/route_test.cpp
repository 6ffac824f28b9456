// Compares route with the CPU's reference gate, and the sort with its definition.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>

#include "base/error.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cuda/experts/experts.h"
#include "tests/cuda/device_array.h"

namespace hadal::testing {
namespace {

struct Shape {
  GateKind kind;
  int num_experts, num_shared, top_k, num_groups, topk_groups;
  bool renormalize;
  float scaling_factor;
};

const Shape kShapes[] = {
    {GateKind::kSoftmaxGreedy, 64, 2, 6, 1, 1, false, 1.0F},          // V2-Lite
    {GateKind::kSoftmaxGroupLimited, 160, 2, 6, 8, 3, false, 16.0F},  // V2
    {GateKind::kSigmoidNoAuxTc, 256, 1, 8, 8, 4, true, 2.5F},         // V3
    {GateKind::kSigmoidNoAuxTc, 384, 1, 8, 1, 1, true, 2.8F},         // one group, lanes half empty
    {GateKind::kSigmoidNoAuxTc, 512, 3, 16, 32, 7, true, 1.0F},       // the largest tuned
    {GateKind::kSoftmaxGroupLimited, 64, 0, 2, 32, 1, true, 1.0F},    // groups of two
    {GateKind::kSoftmaxGreedy, 72, 0, 6, 1, 1, true, 1.0F},
    {GateKind::kSoftmaxGreedy, 5, 27, 5, 1, 1, true, 3.0F},
    {GateKind::kSoftmaxGreedy, 1, 0, 1, 1, 1, true, 1.0F},
    {GateKind::kSigmoidNoAuxTc, 96, 1, 4, 3, 2, true, 2.5F},  // only the plain kernel has these groups
    {GateKind::kSigmoidNoAuxTc, 8, 1, 8, 8, 8, true, 1.0F},   // groups of one
    {GateKind::kSigmoidNoAuxTc, 600, 1, 8, 4, 2, true, 1.0F},
};

struct Routing {
  std::vector<int32_t> ids;
  std::vector<float> weights;
};

Routing cpu_gate(const Shape& s, const std::vector<float>& logits, const std::vector<float>& bias) {
  const int64_t m = static_cast<int64_t>(logits.size()) / s.num_experts;
  Routing out{std::vector<int32_t>(m * s.top_k), std::vector<float>(m * s.top_k)};
  GateParams params{.logits = logits.data(),
                    .bias = bias.empty() ? nullptr : bias.data(),
                    .topk_ids = out.ids.data(),
                    .topk_weights = out.weights.data(),
                    .m = m,
                    .num_experts = s.num_experts,
                    .top_k = s.top_k,
                    .num_groups = s.num_groups,
                    .topk_groups = s.topk_groups,
                    .kind = s.kind,
                    .renormalize = s.renormalize,
                    .scaling_factor = s.scaling_factor};
  struct NoScratch : cpu::Scratch {
    void* allocate(size_t) override { return nullptr; }
  } scratch;
  ThreadPool pool(1);
  cpu::Context context{pool, scratch};
  cpu::reference::gate(params, context);
  return out;
}

// Holds a score for the choice in float64, and the logits and biases that it sums, best first.
struct Ranked {
  double value = 0.0;
  std::array<float, 4> parts = {};
};

// Returns true if float32's rounding could decide this token's choice: among all experts or all groups, two
// scores differ by less than 2e-6 of their value, or are equal as sums of different parts. Sums of the same
// parts are ties in any arithmetic.
bool close_call(const Shape& s, const float* logits, const std::vector<float>& bias) {
  std::vector<Ranked> scores(s.num_experts);
  double sum = 0.0;
  for (int e = 0; e < s.num_experts; ++e) {
    const auto x = static_cast<double>(logits[e]);
    scores[e].value = s.kind == GateKind::kSigmoidNoAuxTc ? 1.0 / (1.0 + std::exp(-x)) : std::exp(x);
    scores[e].parts[0] = logits[e];
    sum += scores[e].value;
  }
  for (int e = 0; e < s.num_experts; ++e) {
    if (s.kind != GateKind::kSigmoidNoAuxTc) scores[e].value /= sum;
    if (!bias.empty()) {
      scores[e].value += static_cast<double>(bias[e]);
      scores[e].parts[1] = bias[e];
    }
    if (std::isnan(scores[e].value)) scores[e] = {-std::numeric_limits<double>::infinity(), {}};
  }
  const auto best_first = [](const Ranked& a, const Ranked& b) {
    return a.value != b.value ? a.value > b.value : a.parts > b.parts;
  };
  const auto close = [&](std::vector<Ranked> ranked) {
    std::sort(ranked.begin(), ranked.end(), best_first);
    for (size_t i = 0; i + 1 < ranked.size(); ++i) {
      const Ranked& a = ranked[i];
      const Ranked& b = ranked[i + 1];
      if (!std::isfinite(a.value) || a.parts == b.parts) continue;
      if (a.value - b.value < 2e-6 * (std::fabs(a.value) + std::fabs(b.value))) return true;
    }
    return false;
  };
  if (s.kind != GateKind::kSoftmaxGreedy && s.num_groups > 1) {
    std::vector<Ranked> groups;
    const int size = s.num_experts / s.num_groups;
    for (int g = 0; g < s.num_groups; ++g) {
      std::vector<Ranked> members(scores.begin() + g * size, scores.begin() + (g + 1) * size);
      std::sort(members.begin(), members.end(), best_first);
      Ranked group = members[0];
      if (s.kind == GateKind::kSigmoidNoAuxTc && size > 1) {
        group.value += members[1].value;
        group.parts[2] = members[1].parts[0];
        group.parts[3] = members[1].parts[1];
      }
      groups.push_back(group);
    }
    if (close(groups)) return true;
  }
  return close(scores);
}

constexpr int32_t kUnwritten = 123'456'789;

struct DeviceRouting {
  Routing choice;  // [m, num_slots]
  std::vector<int32_t> offsets, token_of, row_of;
  int32_t num_distinct = -1;
};

// Routed experts [first, first + count) have rows. If count is 0, all experts have rows.
struct Held {
  int first = 0;
  int count = 0;
  bool has(int expert) const { return count == 0 || (expert >= first && expert < first + count); }
};

class Route : public ::testing::TestWithParam<bool> {
 protected:
  static DeviceRouting run(const Shape& s, const std::vector<float>& logits, const std::vector<float>& bias,
                           int32_t valid = -1, Held held = {}) {
    const int64_t m = static_cast<int64_t>(logits.size()) / s.num_experts;
    const int num_slots = s.top_k + s.num_shared;
    const int experts = s.num_experts + s.num_shared;
    const DeviceArray<float> device_logits(logits);
    const DeviceArray<float> device_bias(bias);
    const DeviceArray<int32_t> device_valid(std::vector<int32_t>{valid});
    const DeviceArray<int32_t> ids(m * num_slots + 1);
    const DeviceArray<float> weights(m * num_slots + 1);
    const DeviceArray<int32_t> offsets(experts + 2);
    const DeviceArray<int32_t> token_of(m * num_slots + 1);
    std::vector<int32_t> unwritten(m * num_slots + 1, kUnwritten);
    unwritten.back() = -1;
    const DeviceArray<int32_t> row_of(unwritten);
    const DeviceArray<int32_t> distinct(2);
    const DeviceArray<std::byte> scratch(cuda::route_scratch_bytes(m, experts));
    const DeviceArray<int32_t> arrived(std::vector<int32_t>{0});
    cuda::route({.logits = device_logits.data(),
                 .bias = bias.empty() ? nullptr : device_bias.data(),
                 .m = m,
                 .num_experts = s.num_experts,
                 .num_shared = s.num_shared,
                 .top_k = s.top_k,
                 .first_held = held.first,
                 .num_held = held.count,
                 .num_groups = s.num_groups,
                 .topk_groups = s.topk_groups,
                 .kind = s.kind,
                 .renormalize = s.renormalize,
                 .scaling_factor = s.scaling_factor,
                 .valid = valid >= 0 ? device_valid.data() : nullptr,
                 .topk_ids = ids.data(),
                 .topk_weights = weights.data(),
                 .expert_offsets = offsets.data(),
                 .token_of = token_of.data(),
                 .row_of = row_of.data(),
                 .num_distinct = distinct.data(),
                 .scratch = scratch.data(),
                 .arrived = arrived.data()},
                {.stream = test_stream().handle(), .reference = GetParam()});
    DeviceRouting out{{ids.download(), weights.download()},
                      offsets.download(),
                      token_of.download(),
                      row_of.download(),
                      distinct.download()[0]};
    // The memory after every output must be untouched.
    EXPECT_EQ(out.choice.ids.back(), -1);
    EXPECT_TRUE(std::isnan(out.choice.weights.back()));
    EXPECT_EQ(out.offsets.back(), -1);
    EXPECT_EQ(out.token_of.back(), -1);
    EXPECT_EQ(out.row_of.back(), -1);
    EXPECT_EQ(arrived.download()[0], 0);  // as it was
    return out;
  }

  // Checks the sort of the chosen experts that are held, which is stable by expert.
  static void expect_sorted(const Shape& s, int64_t m, const DeviceRouting& out, Held held = {}) {
    const int num_slots = s.top_k + s.num_shared;
    const int experts = s.num_experts + s.num_shared;
    std::vector<std::vector<int64_t>> pairs(experts);
    for (int64_t i = 0; i < m * num_slots; ++i) {
      ASSERT_TRUE(out.choice.ids[i] >= 0 && out.choice.ids[i] < experts) << "id " << out.choice.ids[i];
      pairs[out.choice.ids[i]].push_back(i);
    }
    int32_t row = 0;
    int32_t distinct = 0;
    for (int e = 0; e < experts; ++e) {
      ASSERT_EQ(out.offsets[e], row) << "expert " << e;
      distinct += e < s.num_experts && !pairs[e].empty() ? 1 : 0;
      for (const int64_t pair : pairs[e]) {
        if (!held.has(e)) {
          ASSERT_EQ(out.row_of[pair], -1) << "pair " << pair << " of expert " << e << ", which is not held";
          continue;
        }
        ASSERT_EQ(out.row_of[pair], row) << "pair " << pair << " of expert " << e;
        ASSERT_EQ(out.token_of[row], pair / num_slots) << "row " << row;
        ++row;
      }
    }
    ASSERT_EQ(out.offsets[experts], row);
    ASSERT_EQ(out.num_distinct, distinct);
  }

  // Compares `out` with the CPU's choice for the logits of each token. Where rounding could decide, the
  // choices may differ. Returns how often they do.
  static int64_t expect_choice(const Shape& s, const std::vector<float>& logits,
                               const std::vector<float>& bias, const DeviceRouting& out) {
    const Routing want = cpu_gate(s, logits, bias);
    const int num_slots = s.top_k + s.num_shared;
    const int64_t m = static_cast<int64_t>(logits.size()) / s.num_experts;
    int64_t close_calls = 0;
    for (int64_t t = 0; t < m; ++t) {
      const int32_t* ids = &out.choice.ids[t * num_slots];
      if (!std::equal(ids, ids + s.top_k, &want.ids[t * s.top_k]) &&
          close_call(s, &logits[t * s.num_experts], bias)) {
        ++close_calls;
        continue;
      }
      for (int j = 0; j < num_slots; ++j) {
        const float weight = out.choice.weights[t * num_slots + j];
        if (j >= s.top_k) {
          EXPECT_EQ(ids[j], s.num_experts + j - s.top_k);
          EXPECT_EQ(weight, 1.0F);
          continue;
        }
        EXPECT_EQ(ids[j], want.ids[t * s.top_k + j]) << "token " << t << ", choice " << j;
        const float w = want.weights[t * s.top_k + j];
        if (std::isnan(w)) {
          EXPECT_TRUE(std::isnan(weight)) << "token " << t;
        } else {
          EXPECT_NEAR(weight, w, 1e-5F * std::fabs(w) + 1e-30F) << "token " << t << ", choice " << j;
        }
        if (::testing::Test::HasFailure()) return close_calls;
      }
    }
    return close_calls;
  }

  static std::vector<float> normals(size_t count, uint64_t seed, float sigma) {
    std::mt19937_64 random(seed);
    std::normal_distribution<float> normal(0.0F, sigma);
    std::vector<float> values(count);
    for (float& v : values) v = normal(random);
    return values;
  }
  static std::vector<float> bias_of(const Shape& s, uint64_t seed) {
    return s.kind == GateKind::kSigmoidNoAuxTc ? normals(s.num_experts, seed, 0.05F) : std::vector<float>{};
  }
  static std::string name(const Shape& s, int64_t m) {
    return "seed " + std::to_string(fresh_seed()) + ", " + std::to_string(s.num_experts) + " experts, top " +
           std::to_string(s.top_k) + ", groups " + std::to_string(s.num_groups) + ", m " + std::to_string(m);
  }
};

TEST_P(Route, MatchesTheCpuGateAndSorts) {
  for (const Shape& s : kShapes) {
    for (const int64_t m : {1, 2, 7, 8, 9, 31, 64, 65, 100, 128, 129, 200, 1000, 4133}) {
      SCOPED_TRACE(name(s, m));
      const auto logits = normals(m * s.num_experts, fresh_seed() + m, 1.5F);
      const auto bias = bias_of(s, fresh_seed() + 1);
      const DeviceRouting out = run(s, logits, bias);
      EXPECT_LE(expect_choice(s, logits, bias, out), 1 + m / 50) << "close calls";
      expect_sorted(s, m, out);
      if (HasFailure()) return;
    }
  }
}

TEST_P(Route, TiesGoToTheLowerIndexAndNaNLast) {
  for (const Shape& s : kShapes) {
    const int64_t m = 150;
    SCOPED_TRACE(name(s, m));
    auto logits = normals(m * s.num_experts, fresh_seed(), 2.0F);
    const auto at = [&](int64_t token, int64_t expert) -> float& {
      return logits[token * s.num_experts + expert];
    };
    // On a coarse grid many experts and groups are equal. Some tokens have equal logits only, some have NaN
    // and infinity.
    for (float& v : logits) v = std::round(v) * 0.7F + 0.3F;
    for (int64_t e = 0; e < s.num_experts; ++e) {
      at(0, e) = 0.5F;
      at(7, e) = std::numeric_limits<float>::quiet_NaN();
      at(8, e) = -std::numeric_limits<float>::infinity();
      at(9, e) = e % 2 == 0 ? 1.0F : std::numeric_limits<float>::quiet_NaN();
    }
    at(4, 0) = std::numeric_limits<float>::quiet_NaN();
    at(5, s.num_experts - 1) = std::numeric_limits<float>::infinity();
    at(6, 0) = -std::numeric_limits<float>::infinity();
    at(140, s.num_experts / 2) = std::numeric_limits<float>::quiet_NaN();
    std::vector<float> bias;
    if (s.kind == GateKind::kSigmoidNoAuxTc) {
      bias = normals(s.num_experts, fresh_seed() + 2, 1.0F);
      for (float& b : bias) b = std::round(b) * 0.25F;
      bias[0] = -0.0F;
    }
    for (const int64_t count : {int64_t{10}, m}) {
      const std::vector<float> some(logits.begin(), logits.begin() + count * s.num_experts);
      const DeviceRouting out = run(s, some, bias);
      EXPECT_LE(expect_choice(s, some, bias, out), 2);
      expect_sorted(s, count, out);
      if (HasFailure()) return;
    }
  }
}

TEST_P(Route, PaddingGoesWhereRowZeroGoes) {
  for (const Shape& s : kShapes) {
    for (const int64_t m : {8, 40, 128, 300}) {
      for (const int64_t valid : {int64_t{1}, m / 2, m}) {
        SCOPED_TRACE(name(s, m) + ", valid " + std::to_string(valid));
        auto logits = normals(m * s.num_experts, fresh_seed() + m, 1.5F);
        const auto bias = bias_of(s, fresh_seed() + 1);
        const DeviceRouting out = run(s, logits, bias, static_cast<int32_t>(valid));
        for (int64_t t = valid; t < m; ++t)
          std::copy_n(logits.begin(), s.num_experts, &logits[t * s.num_experts]);
        EXPECT_LE(expect_choice(s, logits, bias, out), m);  // all rows are row 0 when valid is 1
        expect_sorted(s, m, out);
        if (HasFailure()) return;
      }
    }
  }
}

// The kernels for few and many tokens, and two runs of each, give the same bits.
TEST_P(Route, ATokenDoesNotDependOnTheBatch) {
  for (const Shape& s : kShapes) {
    const int64_t m = 500;
    SCOPED_TRACE(name(s, m));
    const auto logits = normals(m * s.num_experts, fresh_seed(), 1.5F);
    const auto bias = bias_of(s, fresh_seed() + 1);
    const DeviceRouting all = run(s, logits, bias);
    const DeviceRouting again = run(s, logits, bias);
    ASSERT_TRUE(all.choice.ids == again.choice.ids && all.token_of == again.token_of &&
                all.row_of == again.row_of);
    const int num_slots = s.top_k + s.num_shared;
    for (const int64_t count : {1, 8, 9, 100}) {
      const DeviceRouting some = run(s, {logits.begin(), logits.begin() + count * s.num_experts}, bias);
      for (int64_t i = 0; i < count * num_slots; ++i) {
        ASSERT_EQ(some.choice.ids[i], all.choice.ids[i]) << "count " << count << ", pair " << i;
        ASSERT_EQ(some.choice.weights[i], all.choice.weights[i]) << "count " << count << ", pair " << i;
      }
    }
  }
}

// Ranks choose the same experts with the same weights, whichever of them they hold.
TEST_P(Route, PairsOfExpertsThatAreNotHeldGetNoRow) {
  for (Shape s : kShapes) {
    if (s.num_experts < 4) continue;
    s.num_shared = 0;
    for (const int64_t m : {1, 2, 8, 9, 64, 100, 129, 1000}) {
      SCOPED_TRACE(name(s, m));
      const auto logits = normals(m * s.num_experts, fresh_seed() + m, 1.5F);
      const auto bias = bias_of(s, fresh_seed() + 1);
      const DeviceRouting all = run(s, logits, bias);
      const int half = s.num_experts / 2;
      for (const Held held : {Held{0, half}, Held{half, s.num_experts - half}, Held{s.num_experts - 1, 1}}) {
        SCOPED_TRACE(std::to_string(held.count) + " from " + std::to_string(held.first));
        const DeviceRouting out = run(s, logits, bias, -1, held);
        ASSERT_EQ(out.choice.ids, all.choice.ids);
        ASSERT_EQ(std::memcmp(out.choice.weights.data(), all.choice.weights.data(),
                              all.choice.weights.size() * sizeof(float)),
                  0);
        expect_sorted(s, m, out, held);
        if (HasFailure()) return;
      }
    }
  }
}

TEST_P(Route, SmallBatchesForSanitizersAreSorted) {
  for (const Shape& s : kShapes) {
    for (const int64_t m : {3, 20, 131}) {
      SCOPED_TRACE(name(s, m));
      const auto logits = normals(m * s.num_experts, fresh_seed() + m, 1.5F);
      const DeviceRouting out = run(s, logits, bias_of(s, fresh_seed() + 1), 2);
      expect_sorted(s, m, out);
    }
  }
}

TEST_P(Route, RefusesImpossibleChoices) {
  const cuda::Launch launch{.stream = test_stream().handle(), .reference = GetParam()};
  EXPECT_THROW(cuda::route({.m = 1, .num_experts = 4, .top_k = 5}, launch), Error);
  EXPECT_THROW(cuda::route({.m = 1, .num_experts = 8, .top_k = 2, .num_groups = 3}, launch), Error);
  EXPECT_THROW(cuda::route({.m = 1, .num_experts = 8, .top_k = 5, .num_groups = 4, .topk_groups = 2}, launch),
               Error);
  EXPECT_THROW(cuda::route({.m = 1, .num_experts = 8, .top_k = 2, .first_held = 6, .num_held = 4}, launch),
               Error);
  EXPECT_THROW(cuda::route({.m = 1, .num_experts = 8, .num_shared = 1, .top_k = 2, .num_held = 4}, launch),
               Error);
}

INSTANTIATE_TEST_SUITE_P(Kernels, Route, ::testing::Values(false, true),
                         [](const auto& suite) { return suite.param ? "plain" : "tuned"; });

}  // namespace
}  // namespace hadal::testing
