#include <algorithm>
#include <limits>
#include <set>

#include "base/error.h"
#include "tests/kernels/attention_fixture.h"

namespace hadal::cpu {
namespace {

struct Routing {
  std::vector<int32_t> ids;
  std::vector<float> weights;
};

template <typename Kernel>
Routing route(Kernel kernel, GateParams params, int num_threads = 1) {
  Routing routing;
  routing.ids.assign(params.m * params.top_k, -1);
  routing.weights.assign(params.m * params.top_k, -1.0F);
  params.topk_ids = routing.ids.data();
  params.topk_weights = routing.weights.data();
  run_on(num_threads, [&](Context& ctx) { kernel(params, ctx); });
  return routing;
}

struct GateShape {
  GateKind kind;
  int num_experts, top_k, num_groups, topk_groups;
  bool renormalize;
  float scaling_factor;
};

// These are the family's own gates, then small and unusual ones.
const GateShape kGateShapes[] = {
    {GateKind::kSoftmaxGreedy, 64, 6, 1, 1, false, 1.0F},
    {GateKind::kSoftmaxGroupLimited, 160, 6, 8, 3, false, 16.0F},
    {GateKind::kSigmoidNoAuxTc, 256, 8, 8, 4, true, 2.5F},
    {GateKind::kSigmoidNoAuxTc, 16, 4, 4, 2, true, 2.5F},
    {GateKind::kSigmoidNoAuxTc, 8, 8, 8, 8, true, 1.0F},
    {GateKind::kSoftmaxGroupLimited, 12, 1, 3, 1, true, 1.0F},
    {GateKind::kSigmoidNoAuxTc, 5, 2, 1, 1, false, 1.0F},
    {GateKind::kSoftmaxGreedy, 1, 1, 1, 1, true, 1.0F},
};

GateParams make_params(const GateShape& shape, const std::vector<float>& logits,
                       const std::vector<float>& bias) {
  return {.logits = logits.data(),
          .bias = bias.empty() ? nullptr : bias.data(),
          .m = static_cast<int64_t>(logits.size()) / shape.num_experts,
          .num_experts = shape.num_experts,
          .top_k = shape.top_k,
          .num_groups = shape.num_groups,
          .topk_groups = shape.topk_groups,
          .kind = shape.kind,
          .renormalize = shape.renormalize,
          .scaling_factor = shape.scaling_factor};
}

TEST(Gate, MatchesReferenceWithTiesAndNaN) {
  const uint64_t seed = 81;
  SCOPED_TRACE(seed);
  Random random(seed);
  for (const GateShape& shape : kGateShapes) {
    SCOPED_TRACE(shape.num_experts);
    auto logits = random.normals(int64_t{150} * shape.num_experts, 2.0F);
    // A third of the tokens is on a coarse grid with many ties. Some tokens are all equal, and a few are NaN
    // or infinite.
    for (size_t i = 0; i < logits.size() / 3; ++i) logits[i] = std::round(logits[i]);
    std::fill(logits.begin(), logits.begin() + 3 * shape.num_experts, 0.5F);
    logits[4 * shape.num_experts] = std::numeric_limits<float>::quiet_NaN();
    logits[6 * shape.num_experts - 1] = std::numeric_limits<float>::infinity();
    logits[6 * shape.num_experts] = -std::numeric_limits<float>::infinity();
    for (int e = 0; e < shape.num_experts; ++e) {
      logits[8 * shape.num_experts + e] = std::numeric_limits<float>::quiet_NaN();
    }
    std::vector<float> bias;
    if (shape.kind == GateKind::kSigmoidNoAuxTc) {
      for (int e = 0; e < shape.num_experts; ++e) bias.push_back(std::round(random.normal()) * 0.25F);
    }
    const GateParams params = make_params(shape, logits, bias);
    const Routing expected = route(reference::gate, params);
    for (int num_threads : {1, 3}) {
      const Routing routing = route(simd::gate, params, num_threads);
      EXPECT_EQ(routing.ids, expected.ids);
      EXPECT_TRUE(same_bits(routing.weights, expected.weights));
    }
    for (size_t i = 0; i < expected.ids.size(); i += shape.top_k) {
      const std::set<int32_t> distinct(expected.ids.begin() + i, expected.ids.begin() + i + shape.top_k);
      EXPECT_EQ(distinct.size(), static_cast<size_t>(shape.top_k));
      EXPECT_GE(*distinct.begin(), 0);
      EXPECT_LT(*distinct.rbegin(), shape.num_experts);
    }
  }
}

// Computes the formulas of the papers in double precision, in the direct form: experts outside the kept
// groups get −infinity, then the best of all are chosen. Random logits leave no near-ties at this precision.
TEST(Gate, AgreesWithTheFormulasInDoubles) {
  const uint64_t seed = 82;
  SCOPED_TRACE(seed);
  Random random(seed);
  for (const GateShape& shape : kGateShapes) {
    SCOPED_TRACE(shape.num_experts);
    const auto logits = random.normals(int64_t{60} * shape.num_experts, 1.5F);
    std::vector<float> bias;
    if (shape.kind == GateKind::kSigmoidNoAuxTc) bias = random.normals(shape.num_experts, 0.2F);
    const Routing routing = route(simd::gate, make_params(shape, logits, bias));
    const int size = shape.num_experts / shape.num_groups;
    for (int t = 0; t < 60; ++t) {
      std::vector<double> score(shape.num_experts);
      double total = 0.0;
      for (int e = 0; e < shape.num_experts; ++e) {
        const double x = logits[t * shape.num_experts + e];
        score[e] = shape.kind == GateKind::kSigmoidNoAuxTc ? 1.0 / (1.0 + std::exp(-x)) : std::exp(x);
        total += score[e];
      }
      std::vector<double> selection(shape.num_experts);
      for (int e = 0; e < shape.num_experts; ++e) {
        if (shape.kind != GateKind::kSigmoidNoAuxTc) score[e] /= total;
        selection[e] = score[e] + (bias.empty() ? 0.0 : bias[e]);
      }
      if (shape.num_groups > 1) {
        std::vector<std::pair<double, int>> groups;
        for (int g = 0; g < shape.num_groups; ++g) {
          std::vector<double> members(selection.begin() + g * size, selection.begin() + (g + 1) * size);
          std::sort(members.rbegin(), members.rend());
          const bool two = shape.kind == GateKind::kSigmoidNoAuxTc && size > 1;
          groups.emplace_back(-(members[0] + (two ? members[1] : 0.0)), g);
        }
        std::sort(groups.begin(), groups.end());
        for (int g = shape.topk_groups; g < shape.num_groups; ++g) {
          for (int e = 0; e < size; ++e) selection[groups[g].second * size + e] = -1e30;
        }
      }
      std::vector<int32_t> order(shape.num_experts);
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return selection[a] > selection[b]; });
      double sum = 0.0;
      for (int j = 0; j < shape.top_k; ++j) sum += score[order[j]];
      for (int j = 0; j < shape.top_k; ++j) {
        EXPECT_EQ(routing.ids[t * shape.top_k + j], order[j]);
        const double weight =
            score[order[j]] / (shape.renormalize ? sum + 1e-20 : 1.0) * shape.scaling_factor;
        EXPECT_NEAR(routing.weights[t * shape.top_k + j], weight, 2e-6 * weight);
      }
    }
  }
}

TEST(Gate, RefusesMoreExpertsThanTheGroupsContain) {
  const std::vector<float> logits(16, 0.0F);
  const GateShape shape = {GateKind::kSoftmaxGroupLimited, 16, 5, 4, 1, true, 1.0F};
  EXPECT_THROW(route(simd::gate, make_params(shape, logits, {})), Error);
  EXPECT_THROW(route(reference::gate, make_params(shape, logits, {})), Error);
}

}  // namespace
}  // namespace hadal::cpu
