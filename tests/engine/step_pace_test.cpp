#include "engine/loop/step_pace.h"

#include <gtest/gtest.h>

#include "model/presets.h"
#include "tests/engine/fake_executor.h"

namespace hadal {
namespace {

TEST(StepPace, WithoutALimitNothingIsLimited) {
  StepPace pace(0.0);
  pace.observe(0, 0.002);
  pace.observe(100, 10.0);
  EXPECT_EQ(pace.max_cost(), kUnlimitedCost);
  EXPECT_EQ(pace.decode_step_s(), 0.002);
}

TEST(StepPace, BeforeAnyPromptTheLimitIsSmall) {
  StepPace pace(0.015);
  EXPECT_EQ(pace.max_cost(), StepPace::kFirstCost);
  pace.observe(0, 0.002);
  EXPECT_EQ(pace.max_cost(), StepPace::kFirstCost);
}

TEST(StepPace, TheCostThatFitsIntoTheTimeFollowsFromMeasuredSteps) {
  StepPace pace(0.015);
  pace.observe(0, 0.002);
  pace.observe(100, 0.102);  // 1 ms for each row
  EXPECT_EQ(pace.max_cost(), 15);
}

TEST(StepPace, ASlowStepCountsSoonerThanAFastOne) {
  StepPace slower(0.015);
  slower.observe(100, 0.1);
  slower.observe(100, 0.4);
  EXPECT_EQ(slower.max_cost(), 6) << "2.5 ms for each row";
  StepPace faster(0.015);
  faster.observe(100, 0.4);
  faster.observe(100, 0.1);
  EXPECT_EQ(faster.max_cost(), 4) << "3.7 ms for each row";
}

TEST(StepPace, PromptsMayTakeAsLongAsASlowModelsStep) {
  StepPace pace(0.015);
  pace.observe(0, 0.2);
  pace.observe(100, 0.3);
  EXPECT_EQ(pace.max_cost(), 200);
}

TEST(StepPace, StepsOfFewTokensSayNothing) {
  StepPace pace(0.015);
  pace.observe(2, 0.5);
  EXPECT_EQ(pace.max_cost(), StepPace::kFirstCost);
}

TEST(StepPace, ExtremeMeasurementsKeepTheLimitInRange) {
  StepPace pace(0.015);
  pace.observe(int64_t{1} << 40, 1e-9);
  EXPECT_GT(pace.max_cost(), int64_t{1} << 40);
  EXPECT_LT(pace.max_cost(), kUnlimitedCost);
  StepPace slow(0.015);
  slow.observe(8, 1e9);
  EXPECT_EQ(slow.max_cost(), 0);
}

TEST(StepPace, CostsFollowFromTheModelsSizes) {
  const auto text = preset_config_json("v3");
  ASSERT_TRUE(text.ok());
  const auto config = parse_model_config(*text, "v3");
  ASSERT_TRUE(config.ok()) << config.status().message;
  const PromptCosts v3 = prompt_costs(*config, true);
  // 37 billion parameters are active, and 61 layers have 128 heads of 192 + 128 dimensions.
  EXPECT_NEAR(static_cast<double>(v3.positions_per_row), 37e9 / (61 * 128 * 320), 500);
  EXPECT_EQ(v3.rows_per_score, 1);
  EXPECT_NEAR(static_cast<double>(v3.absorbed_positions_per_row), 37e9 / (61 * 128 * (576 + 512)), 100);
  EXPECT_NEAR(static_cast<double>(v3.rows_per_1024_expanded), 1024.0 * 61 * 128 * 256 * 512 / 37e9, 2);
  EXPECT_EQ(prompt_costs(*config, false).absorbed_positions_per_row, 0);
  EXPECT_EQ(prompt_costs(*config, false).rows_per_1024_expanded, 0);
  const PromptCosts none = prompt_costs(testing::fake_config(), true);
  EXPECT_EQ(none.positions_per_row, 0);
  EXPECT_EQ(none.rows_per_score, 0);
}

}  // namespace
}  // namespace hadal
