// Feeds the policy with outcomes of drafts whose acceptance is known, as an engine would.
#include "engine/speculation/speculation_policy.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "model/presets.h"

namespace hadal {
namespace {

constexpr int64_t kMaxWidth = 4;
constexpr DeviceRates kGpu{.products_per_byte = 70.0};
constexpr DeviceRates kCpu{.products_per_byte = 2.0};

// These are the sizes of models/hadal-tiny, which replace V3's.
constexpr const char* kTiny =
    R"({"hidden_size": 256, "intermediate_size": 1024, "moe_intermediate_size": 128, "num_hidden_layers": 4,
        "num_attention_heads": 8, "num_key_value_heads": 8, "q_lora_rank": 256, "n_routed_experts": 16,
        "num_experts_per_tok": 4, "n_group": 4, "topk_group": 2, "first_k_dense_replace": 1,
        "vocab_size": 4096})";

StepCosts costs_of(const std::string& preset, const DeviceRates& rates,
                   std::string_view override_json = R"({"num_nextn_predict_layers": 1})",
                   const DraftShape& shape = {}) {
  const ModelConfig config =
      parse_model_config(preset_config_json(preset).value(), preset, override_json).value();
  return StepCosts(config, KvLayout(), rates, shape);
}

// Returns the first `count` drafts.
std::vector<int32_t> chain_of(int64_t count) {
  std::vector<int32_t> drafts(static_cast<size_t>(count));
  std::iota(drafts.begin(), drafts.end(), 1);
  return drafts;
}

struct Course {
  std::vector<int64_t> widths;
  double cost = 0.0, resting_cost = 0.0;
  int64_t num_probes = 0;

  // Returns how many of the last `count` steps had this width.
  int64_t num_of(int64_t width, int64_t count) const {
    return std::count(widths.end() - count, widths.end(), width);
  }
};

// Runs `num_steps` steps of requests whose drafts are accepted with this probability at every depth.
Course run(SpeculationPolicy& policy, const StepCosts& costs, const StepLoad& load, double acceptance,
           int64_t num_steps, uint64_t seed = 1) {
  std::mt19937_64 random(seed);
  std::bernoulli_distribution accepts(acceptance);
  Course course;
  for (int64_t step = 0; step < num_steps; ++step) {
    const SpeculationPolicy::Choice choice = policy.choose(load, kMaxWidth);
    policy.planned(choice);
    course.widths.push_back(choice.width);
    course.num_probes += choice.probes ? 1 : 0;
    course.cost += costs.step(load, choice.width, 1.0);
    course.resting_cost += costs.step(load, 1, 1.0);
    for (int64_t i = 0; i < load.num_requests; ++i) {
      int64_t accepted = 0;
      while (accepted < choice.width - 1 && accepts(random)) ++accepted;
      policy.observe(choice.width - 1, chain_of(accepted));
    }
  }
  return course;
}

TEST(SpeculationPolicy, TheRowsOfAStepAreLimited) {
  EXPECT_EQ(widest_step(0, 1), 1);
  EXPECT_EQ(widest_step(4, 0), 4);
  EXPECT_EQ(widest_step(4, 256), 4);
  EXPECT_EQ(widest_step(4, 257), 3);
  EXPECT_EQ(widest_step(4, 5000), 1);
}

TEST(SpeculationPolicy, AcceptanceAtADepthIsConditionalOnTheDepthBefore) {
  DraftAcceptance acceptance(3, /*is_chain=*/true);
  for (int i = 0; i < 1000; ++i) acceptance.observe(2, chain_of(i % 2));  // the first is right half the time
  const std::vector<double> chances = acceptance.chances();
  EXPECT_NEAR(chances[0], 0.5, 0.05);
  EXPECT_LT(chances[1], 0.1 * chances[0]) << "the second never is";
  EXPECT_DOUBLE_EQ(chances[2] / chances[1], chances[1] / chances[0]) << "the third was never verified";
}

// A draft that is right although an earlier one is not is on another path.
TEST(SpeculationPolicy, AcceptanceInATreeIsThatOfEachNode) {
  DraftAcceptance acceptance(3, /*is_chain=*/false);
  for (int i = 0; i < 1000; ++i) {
    if (i % 4 == 0) {
      acceptance.observe(2, std::vector<int32_t>{2});
    } else {
      acceptance.observe(2, std::vector<int32_t>{1});
    }
  }
  const std::vector<double> chances = acceptance.chances();
  EXPECT_NEAR(chances[0], 0.75, 0.05);
  EXPECT_NEAR(chances[1], 0.25, 0.05);
  EXPECT_EQ(chances[2], chances[1]) << "the third was never verified";
}

TEST(SpeculationPolicy, AStepIsExpectedToAcceptNoMoreThanAPath) {
  const std::vector<double> chances = {0.9, 0.5, 0.5, 0.4};
  EXPECT_DOUBLE_EQ(expected_tokens(chances, {}, 1), 1.0);
  EXPECT_DOUBLE_EQ(expected_tokens(chances, {}, 3), 2.4);
  EXPECT_DOUBLE_EQ(expected_tokens(chances, {.num_steps = 2, .topk = 2}, 4), 2.9);
  EXPECT_DOUBLE_EQ(expected_tokens(chances, {.num_steps = 2, .topk = 2}, 5), 3.0);
}

TEST(SpeculationPolicy, OldOutcomesFade) {
  DraftAcceptance acceptance(1, /*is_chain=*/true);
  for (int i = 0; i < 1000; ++i) acceptance.observe(1, chain_of(0));
  for (int i = 0; i < 300; ++i) acceptance.observe(1, chain_of(1));
  EXPECT_GT(acceptance.chances()[0], 0.9);
}

// A step reads E(1 − (1 − k/E)^rows) experts. A second row therefore nearly doubles the cost of the experts
// in a small batch, and adds no cost where all experts are read already.
TEST(SpeculationPolicy, OnAGpuRowsCostTheExpertsThatTheyAdd) {
  const StepCosts costs = costs_of("v2-lite", kGpu);
  const auto ratio = [&](int64_t batch, int64_t width) {
    const StepLoad load{.num_requests = batch, .num_keys = batch * 1024};
    return costs.step(load, width, 1.0) / costs.step(load, 1, 1.0);
  };
  EXPECT_GT(ratio(1, 2), 1.3);
  EXPECT_LT(ratio(64, 2), 1.2);
  EXPECT_GT(ratio(64, 4), ratio(64, 2)) << "each further draft is a pass of NextN";
}

TEST(SpeculationPolicy, GoodDraftsGetTheWidestStepsAndBadOnesNone) {
  const StepCosts costs = costs_of("v2-lite", kGpu);
  for (const int64_t batch : {1, 16, 64}) {
    SCOPED_TRACE(batch);
    const StepLoad load{.num_requests = batch, .num_keys = batch * 1024};
    SpeculationPolicy good(kMaxWidth, costs);
    EXPECT_GT(run(good, costs, load, 0.97, 1000).num_of(kMaxWidth, 500), 450);
    SpeculationPolicy bad(kMaxWidth, costs);
    EXPECT_GT(run(bad, costs, load, 0.02, 1000).num_of(1, 500), 450);
  }
}

TEST(SpeculationPolicy, OnACpuLargeBatchesNeverSpeculateAndOneRequestDoes) {
  const StepCosts costs = costs_of("v3", kCpu, kTiny);
  SpeculationPolicy crowded(kMaxWidth, costs);
  const Course course = run(crowded, costs, {.num_requests = 16, .num_keys = 16 * 300}, 1.0, 500);
  EXPECT_EQ(course.num_of(1, 500), 500) << "not even perfect drafts are worth their rows";
  EXPECT_EQ(course.num_probes, 0);
  SpeculationPolicy alone(kMaxWidth, costs);
  EXPECT_EQ(run(alone, costs, {.num_requests = 1, .num_keys = 60}, 1.0, 500).num_of(1, 500), 0);
}

TEST(SpeculationPolicy, ProbesAreCheapAndNoticeThatDraftsAreGoodAgain) {
  const StepCosts costs = costs_of("v2-lite", kGpu);
  const StepLoad load{.num_requests = 1, .num_keys = 1024};
  SpeculationPolicy policy(kMaxWidth, costs);
  run(policy, costs, load, 0.0, 1000);
  const Course bad = run(policy, costs, load, 0.0, 20'000);
  EXPECT_GT(bad.num_probes, 0);
  EXPECT_LE(bad.cost, 1.011 * bad.resting_cost);
  const Course good = run(policy, costs, load, 1.0, 20'000);
  EXPECT_EQ(good.num_of(kMaxWidth, 1000), 1000);
}

// A prompt makes the step long, but the cost of a draft stays the same.
TEST(SpeculationPolicy, APromptBesideMakesNoDraftWorthItsCost) {
  const StepCosts costs = costs_of("v3", kCpu, kTiny);
  const StepLoad load{.num_requests = 32, .num_keys = 32 * 300};
  StepLoad beside = load;
  beside.num_prompt_tokens = 2048;
  const SpeculationPolicy policy(kMaxWidth, costs);
  EXPECT_EQ(policy.choose(load, kMaxWidth).width, 1);
  EXPECT_EQ(policy.choose(beside, kMaxWidth).width, 1);
}

TEST(SpeculationPolicy, TheSameOutcomesGiveTheSameWidths) {
  const StepCosts costs = costs_of("v2-lite", kGpu);
  const StepLoad load{.num_requests = 3, .num_keys = 4000};
  for (const double acceptance : {0.2, 0.6, 0.9}) {
    SpeculationPolicy one(kMaxWidth, costs), other(kMaxWidth, costs);
    EXPECT_EQ(run(one, costs, load, acceptance, 3000, 7).widths,
              run(other, costs, load, acceptance, 3000, 7).widths);
  }
}

TEST(SpeculationPolicy, NoStepIsWiderThanAllowed) {
  const StepCosts costs = costs_of("v2-lite", kGpu);
  const SpeculationPolicy policy(kMaxWidth, costs);
  for (const int64_t widest : {1, 2, 3}) {
    EXPECT_LE(policy.choose({.num_requests = 0}, widest).width, widest);
  }
}

// The first seven drafts of a tree are right as often as `chances` says; at most one of them at a time.
std::vector<int64_t> widths_of_tree(const std::vector<double>& chances, int64_t num_requests) {
  const DraftShape shape{.num_steps = 3, .topk = 4};
  SpeculationPolicy policy(8, costs_of("v2-lite", kGpu, R"({"num_nextn_predict_layers": 1})", shape), shape);
  const StepLoad load{.num_requests = num_requests, .num_keys = 1024 * num_requests};
  std::mt19937_64 random(1);
  std::discrete_distribution<int32_t> draft(chances.begin(), chances.end());  // 0: none is right
  std::vector<int64_t> widths;
  for (int64_t step = 0; step < 600; ++step) {
    const SpeculationPolicy::Choice choice = policy.choose(load, 8);
    policy.planned(choice);
    widths.push_back(choice.width);
    for (int64_t i = 0; i < num_requests; ++i) {
      std::vector<int32_t> accepted;
      if (const int32_t right = draft(random); right > 0 && right < choice.width) accepted = {right};
      policy.observe(choice.width - 1, accepted);
    }
  }
  return widths;
}

TEST(SpeculationPolicy, ATreeBeginsWithAllItsNodesAndKeepsThoseThatAreWorthTheirRows) {
  const auto num_of = [](const std::vector<int64_t>& widths, int64_t width) {
    return std::count(widths.begin() + 100, widths.end(), width);
  };
  const std::vector<int64_t> narrow = widths_of_tree({0.02, 0.96, 0.02, 0, 0, 0, 0, 0}, 1);
  EXPECT_EQ(narrow[0], 8);
  EXPECT_GT(num_of(narrow, 2), 450);
  const std::vector<int64_t> useless = widths_of_tree({1, 0, 0, 0, 0, 0, 0, 0}, 1);
  EXPECT_EQ(useless[0], 8);
  EXPECT_GT(num_of(useless, 1), 450);
  const std::vector<int64_t> wide = widths_of_tree({0, 0.4, 0.3, 0.3, 0, 0, 0, 0}, 64);
  EXPECT_GT(num_of(wide, 4), 300) << "where all experts are read anyway, rows are cheap";
}

}  // namespace
}  // namespace hadal
