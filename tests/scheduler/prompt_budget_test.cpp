// Tests how prompts are cut while requests of other clients generate.
#include "scheduler/prompt_budget.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "scheduler/scheduler.h"

namespace hadal {
namespace {

constexpr PromptCosts kCosts = {.positions_per_row = 100, .rows_per_score = 3};

RequestState request_with_scores_from(int64_t position) {
  RequestState request;
  request.scored_from = position;
  return request;
}

TEST(PromptBudget, ATokenCostsItsRowItsPositionsAndItsLogits) {
  const PromptBudget budget(kCosts, 1000, kUnlimitedCost);
  const RequestState request = request_with_scores_from(250);
  EXPECT_DOUBLE_EQ(budget.cost_of(request, 0, 100, false), 100 + 50);
  EXPECT_DOUBLE_EQ(budget.cost_of(request, 200, 300, false), 100 + 250 + 3 * 50);
  EXPECT_DOUBLE_EQ(budget.cost_of(request, 300, 300, false), 0);
  const PromptBudget free_attention({}, 1000, kUnlimitedCost);
  EXPECT_DOUBLE_EQ(free_attention.cost_of(request, 200, 300, false), 100);
}

constexpr PromptCosts kTwoPaths = {
    .positions_per_row = 100, .rows_per_1024_expanded = 512, .absorbed_positions_per_row = 20};

TEST(PromptBudget, TheAbsorbedPathSparesTheExpansionOfThePrefix) {
  const PromptBudget budget(kTwoPaths, 1000, 100);
  const RequestState request = request_with_scores_from(5000);
  EXPECT_DOUBLE_EQ(budget.cost_of(request, 1024, 1024 + 10, false), 10 + 10 * 1029 / 100.0 + 512);
  EXPECT_DOUBLE_EQ(budget.cost_of(request, 1024, 1024 + 10, true), 10 + 10 * 1029 / 20.0);
  EXPECT_TRUE(budget.absorbs(request, 1024, 1024 + 10, true));
  EXPECT_FALSE(budget.absorbs(request, 1024, 1024 + 500, true)) << "many tokens share the expansion";
  EXPECT_FALSE(budget.absorbs(request, 0, 10, true)) << "there is no prefix";
}

TEST(PromptBudget, OnlyChunksThatDelayOthersAreAbsorbed) {
  const RequestState request = request_with_scores_from(5000);
  EXPECT_FALSE(PromptBudget(kTwoPaths, 1000, 100).absorbs(request, 1024, 1034, false));
  EXPECT_FALSE(PromptBudget(kTwoPaths, 1000, kUnlimitedCost).absorbs(request, 1024, 1034, true));
  EXPECT_FALSE(PromptBudget(kCosts, 1000, 100).absorbs(request, 1024, 1034, true));
}

TEST(PromptBudget, TheLargestNumberOfTokensThatFitsIsTaken) {
  const RequestState request = request_with_scores_from(5000);
  for (const PromptCosts& costs : {kCosts, kTwoPaths}) {
    for (const int64_t begin : {0, 77, 3000}) {
      for (const int64_t cost : {20, 100, 333, 4000}) {
        for (const int64_t taken : {0, 3}) {
          PromptBudget budget(costs, 500, cost);
          const auto chunk = [&](int64_t count) {
            return budget.cost_of(request, begin, begin + count,
                                  budget.absorbs(request, begin, begin + count, true));
          };
          const double limit = chunk(taken) + static_cast<double>(cost);
          const int64_t count = budget.most(request, begin, taken, 400, true);
          EXPECT_TRUE(count == 1 || chunk(taken + count) <= limit) << begin << ' ' << cost;
          EXPECT_TRUE(count == 400 || chunk(taken + count + 1) > limit) << begin << ' ' << cost;
        }
      }
    }
  }
}

TEST(PromptBudget, TwoPartsOfAChunkCostWhatTheWholeCosts) {
  const RequestState request = request_with_scores_from(5000);
  PromptBudget parts(kTwoPaths, 500, 10000);
  parts.take(request, 2000, 0, 30, true);
  parts.take(request, 2000, 30, 300, true);
  PromptBudget whole(kTwoPaths, 500, 10000);
  whole.take(request, 2000, 0, 330, true);
  EXPECT_DOUBLE_EQ(parts.taken_cost(), whole.taken_cost());
  EXPECT_EQ(parts.tokens(), whole.tokens());
}

TEST(PromptBudget, ThePromptThatDelaysNobodyIsCutByTokensOnly) {
  PromptBudget budget(kCosts, 500, 10);
  const RequestState request = request_with_scores_from(5000);
  EXPECT_EQ(budget.most(request, 4000, 0, 900, false), 500);
  budget.take(request, 4000, 0, 300, false);
  EXPECT_EQ(budget.tokens(), 200);
  RequestState other = request_with_scores_from(5000);
  other.client = 1;
  EXPECT_EQ(budget.most(other, 0, 0, 900, true), 14) << "the cost is used up, the least is not";
}

TEST(PromptBudget, AStepThatCostsEnoughBeginsNoFurtherPromptOfTheSameClient) {
  PromptBudget budget(kTwoPaths, 500, kUnlimitedCost);
  const RequestState request = request_with_scores_from(5000);
  // A prompt of one new token after 512 cached ones costs 262 rows.
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(budget.most(request, 512, 0, 1, false), 1) << i;
    budget.take(request, 512, 0, 1, false);
  }
  EXPECT_GE(budget.taken_cost(), 1000);
  EXPECT_EQ(budget.tokens(), 496);
  EXPECT_EQ(budget.most(request, 512, 0, 1, false), 0);
  EXPECT_EQ(budget.most(request, 512, 1, 900, false), 496) << "what has begun goes on";
  RequestState other = request_with_scores_from(5000);
  other.client = 1;
  EXPECT_EQ(budget.most(other, 512, 0, 1, false), 1);
}

TEST(PromptBudget, PromptsThatDelayOthersGetTheLeastTogether) {
  PromptBudget budget({}, 500, 0);
  const RequestState request = request_with_scores_from(5000);
  EXPECT_EQ(budget.most(request, 4000, 0, 900, true), 16);
  EXPECT_EQ(budget.most(request, 4000, 0, 3, true), 3);
  budget.take(request, 4000, 0, 10, true);
  EXPECT_EQ(budget.most(request, 4000, 0, 900, true), 6);
  budget.take(request, 4000, 0, 6, true);
  EXPECT_EQ(budget.most(request, 4000, 0, 900, true), 0);
}

TEST(PromptBudget, TheFirstPromptGetsATokenWhateverItCosts) {
  PromptBudget budget(kCosts, 500, 0);
  const RequestState request = request_with_scores_from(0);
  EXPECT_EQ(budget.most(request, 4000, 0, 900, true), 1) << "it costs 44 rows";
  budget.take(request, 4000, 0, 1, true);
  EXPECT_EQ(budget.most(request, 4000, 0, 900, true), 0);
}

TEST(PromptBudget, HalfOfEverythingCanBeSetAside) {
  PromptBudget budget({}, 501, 100);
  const RequestState request = request_with_scores_from(5000);
  budget.set_half_aside();
  EXPECT_EQ(budget.tokens(), 251);
  EXPECT_EQ(budget.most(request, 0, 0, 900, true), 50);
  budget.take(request, 0, 0, 50, true);
  EXPECT_EQ(budget.most(request, 0, 0, 900, true), 0) << "half of the least is used up, too";
  budget.give_back();
  EXPECT_EQ(budget.tokens(), 451);
  EXPECT_EQ(budget.most(request, 0, 0, 900, true), 50);
  budget.take(request, 0, 0, 50, true);
  EXPECT_EQ(budget.most(request, 0, 0, 900, true), 0);
}

TEST(PromptBudget, HalfOfTheLeastCanBeSetAside) {
  PromptBudget budget({}, 500, 0);
  const RequestState request = request_with_scores_from(5000);
  budget.set_half_aside();
  EXPECT_EQ(budget.most(request, 0, 0, 900, true), 8);
  budget.take(request, 0, 0, 8, true);
  budget.give_back();
  EXPECT_EQ(budget.most(request, 0, 0, 900, true), 8);
}

RequestState scored_prompt(int64_t prompt_len, int64_t scored_from) {
  RequestState request = request_with_scores_from(scored_from);
  request.prompt_len = prompt_len;
  return request;
}

TEST(PromptBudget, AllPromptsShareTheTokensThatMayBeScored) {
  PromptBudget budget({}, 500, kUnlimitedCost, /*scored=*/100);
  const RequestState request = scored_prompt(1000, 200);
  EXPECT_EQ(budget.most(request, 150, 0, 400, false), 150) << "50 tokens are not scored";
  budget.take(request, 150, 0, 120, false);
  EXPECT_EQ(budget.most(request, 150, 120, 400, false), 30);
  const RequestState other = scored_prompt(60, 0);
  EXPECT_EQ(budget.most(other, 0, 0, 60, false), 30);
  budget.take(other, 0, 0, 30, false);
  EXPECT_EQ(budget.most(other, 30, 0, 30, false), 0);
  EXPECT_TRUE(budget.lacks_scores(other, 30));
  EXPECT_FALSE(budget.lacks_scores(request, 100)) << "its next token is not scored";
  EXPECT_EQ(budget.most(request_with_scores_from(5000), 0, 0, 900, false), 350);
}

TEST(PromptBudget, TheLastTokenOfAPromptAndRecomputedTokensAreNotScored) {
  const PromptBudget budget({}, 500, kUnlimitedCost, /*scored=*/99);
  RequestState request = scored_prompt(100, 0);
  EXPECT_EQ(budget.most(request, 0, 0, 140, false), 140) << "with 40 generated tokens";
  const PromptBudget smaller({}, 500, kUnlimitedCost, /*scored=*/98);
  EXPECT_EQ(smaller.most(request, 0, 0, 140, false), 98);
  request.prompt_done = true;
  EXPECT_EQ(smaller.most(request, 0, 0, 140, false), 140) << "its scores are known";
}

TEST(PromptBudget, HalfOfTheScoresCanBeSetAside) {
  PromptBudget budget({}, 500, kUnlimitedCost, /*scored=*/101);
  const RequestState request = scored_prompt(1000, 0);
  budget.set_half_aside();
  EXPECT_EQ(budget.most(request, 0, 0, 900, false), 51);
  budget.take(request, 0, 0, 51, false);
  budget.give_back();
  EXPECT_EQ(budget.most(request, 51, 0, 900, false), 50);
}

// Runs requests of several clients, and counts the prompt tokens of each in every step.
class CutSteps : public ::testing::Test {
 protected:
  void start(int64_t chunk = 512, const PromptCosts& costs = kCosts) {
    scheduler_ = std::make_unique<Scheduler>(SchedulerOptions{.num_pages = 1000,
                                                              .max_running_requests = 32,
                                                              .chunked_prefill_size = chunk,
                                                              .prompt_costs = costs,
                                                              .max_scored_tokens = 200});
  }
  void add(RequestId id, uint64_t client, int64_t prompt_len, int64_t max_new_tokens = 1000) {
    std::vector<int32_t> prompt(static_cast<size_t>(prompt_len));
    std::iota(prompt.begin(), prompt.end(), static_cast<int32_t>(id) * 100'000);  // no prefix is shared
    scheduler_->add({.id = id,
                     .prompt = std::move(prompt),
                     .max_new_tokens = max_new_tokens,
                     .max_cached_tokens = prompt_len - 1,
                     .client = client});
  }
  void add_scored(RequestId id, uint64_t client, int64_t prompt_len) {
    std::vector<int32_t> prompt(static_cast<size_t>(prompt_len));
    std::iota(prompt.begin(), prompt.end(), static_cast<int32_t>(id) * 100'000);
    scheduler_->add({.id = id,
                     .prompt = std::move(prompt),
                     .max_new_tokens = 1000,
                     .scores_prompt = true,
                     .client = client});
  }
  // Runs a step and returns its plan.
  BatchPlan step(int64_t max_cost) {
    const BatchPlan plan = scheduler_->plan(max_cost);
    scheduler_->check_integrity();
    std::vector<ItemOutcome> outcomes;
    for (const WorkItem& item : plan.ranks[0].items) {
      if (item.samples) outcomes.push_back({.request_id = item.request_id, .token = 7});
    }
    scheduler_->complete(plan, outcomes);
    return plan;
  }
  static int64_t tokens_of(const BatchPlan& plan, RequestId id) {
    int64_t count = 0;
    for (const WorkItem& item : plan.ranks[0].items) count += item.request_id == id ? item.num_tokens : 0;
    return count;
  }

  std::unique_ptr<Scheduler> scheduler_;
};

TEST_F(CutSteps, APromptIsCutBesideAnotherClientsStreamAndStillEnds) {
  start();
  add(1, 7, 5, /*max_new_tokens=*/4000);
  step(40);
  add(2, 8, 3000);
  int64_t computed = 0;
  int num_steps = 0;
  while (computed < 3000) {
    const BatchPlan plan = step(40);
    EXPECT_EQ(tokens_of(plan, 1), 1) << "the stream gets a token from every step";
    const int64_t count = tokens_of(plan, 2);
    EXPECT_GT(count, 0);
    EXPECT_LE(count, 40);
    EXPECT_LE(plan.prompt_cost, std::max<int64_t>(41, 3 + 1 + 3000 / 100));
    computed += count;
    ASSERT_LT(++num_steps, 3000);
  }
  EXPECT_EQ(computed, 3000);
  EXPECT_EQ(tokens_of(step(40), 2), 1);
}

TEST_F(CutSteps, FewTokensBehindALongPrefixAreAbsorbedBesideAStream) {
  start(512, kTwoPaths);
  add(2, 8, 3000);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(step(40).ranks[0].items[0].kind, WorkKind::kPrefill) << "it is alone";
  add(1, 7, 5);
  step(40);
  const BatchPlan plan = step(40);
  ASSERT_EQ(plan.ranks[0].items.size(), 2U);
  EXPECT_EQ(plan.ranks[0].items[0].kind, WorkKind::kAbsorbedPrefill);
  EXPECT_EQ(plan.ranks[0].items[1].kind, WorkKind::kDecode);
  EXPECT_EQ(plan.num_prefill_tokens, tokens_of(plan, 2));
  EXPECT_LE(plan.prompt_cost, 130) << "one token, because it must advance";
}

TEST_F(CutSteps, AClientDoesNotWaitForItself) {
  start();
  add(1, 7, 5);
  step(40);
  add(2, 7, 3000);
  EXPECT_EQ(tokens_of(step(40), 2), 512);
}

TEST_F(CutSteps, WithoutAStreamNothingIsCut) {
  start();
  add(1, 7, 3000);
  add(2, 8, 3000);
  EXPECT_EQ(tokens_of(step(40), 1), 512);
}

TEST_F(CutSteps, PromptsThatAreNeverCutStayWhole) {
  start(/*chunk=*/-1);
  add(1, 7, 5);
  step(40);
  add(2, 8, 3000);
  EXPECT_EQ(tokens_of(step(40), 2), 3000);
}

TEST_F(CutSteps, ScoredPromptsAreCutEvenIfOthersAreNot) {
  start(/*chunk=*/-1);
  add_scored(1, 7, 301);
  EXPECT_EQ(tokens_of(step(kUnlimitedCost), 1), 200);
  add(2, 8, 3000);
  const BatchPlan plan = step(kUnlimitedCost);
  EXPECT_EQ(tokens_of(plan, 1), 101) << "the last token is not scored";
  EXPECT_EQ(tokens_of(plan, 2), 3000);
}

TEST_F(CutSteps, PromptsThatAreScoredHoldUpNoOtherClient) {
  start();
  add_scored(1, 7, 1000);
  add_scored(2, 8, 1000);
  add(3, 9, 60);
  const BatchPlan plan = step(kUnlimitedCost);
  EXPECT_EQ(tokens_of(plan, 1), 200);
  EXPECT_EQ(tokens_of(plan, 2), 0) << "no more tokens may be scored";
  EXPECT_EQ(tokens_of(plan, 3), 60);
}

// Half of the scores of a step are for short prompts, and 1,000 scored tokens are not short.
TEST_F(CutSteps, AFewScoredTokensDoNotWaitForTwoClientsWithMany) {
  start(/*chunk=*/4096);
  add_scored(1, 7, 1000);
  add_scored(2, 8, 1000);
  step(kUnlimitedCost);
  add_scored(3, 9, 50);
  EXPECT_EQ(tokens_of(step(kUnlimitedCost), 3), 50);
}

TEST_F(CutSteps, AShortPromptStartsBesideALongOneThatIsCut) {
  start();
  add(1, 7, 5);
  step(60);
  add(2, 8, 3000);
  step(60);
  add(3, 9, 6);
  const BatchPlan plan = step(60);
  EXPECT_EQ(tokens_of(plan, 3), 6);
  EXPECT_GT(tokens_of(plan, 2), 0);
}

TEST_F(CutSteps, ManyTailsOfLongPromptsAreSpreadOverSteps) {
  start();
  add(1, 7, 5);
  for (RequestId id = 2; id < 12; ++id) add(id, 8, 2000, 0);  // they only fill the cache
  for (int i = 0; i < 50; ++i) step(kUnlimitedCost);
  ASSERT_EQ(scheduler_->stats().num_running, 1);
  for (RequestId id = 12; id < 22; ++id) {
    std::vector<int32_t> prompt(2000);
    std::iota(prompt.begin(), prompt.end(), static_cast<int32_t>(id - 10) * 100'000);
    prompt.resize(2008, 1);
    scheduler_->add(
        {.id = id, .prompt = std::move(prompt), .max_new_tokens = 4, .max_cached_tokens = 2007, .client = 8});
  }
  // A tail of eight tokens costs 8 · (1 + 20) + 3 rows, so somewhat more than two of them fit into 400.
  int64_t left = 10 * 8;
  for (int steps = 0; left > 0; ++steps) {
    ASSERT_LT(steps, 6);
    const BatchPlan plan = step(400);
    EXPECT_LE(plan.prompt_cost, 400);
    left -= plan.num_prefill_tokens;
  }
  EXPECT_EQ(left, 0);
}

}  // namespace
}  // namespace hadal
