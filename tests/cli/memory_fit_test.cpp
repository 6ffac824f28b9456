#include "cli/memory_fit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace hadal::cli {
namespace {

TEST(MemoryFit, NeedsRoomForOnePage) {
  const MemoryFit fit = judge_fit(1000, 10, 1000 + 640);
  EXPECT_TRUE(fit.fits());
  EXPECT_TRUE(check_fit(fit, "available to the CPU").ok());
  const MemoryFit one_byte_short = judge_fit(1000, 10, 1000 + 639);
  EXPECT_FALSE(one_byte_short.fits());
  EXPECT_EQ(one_byte_short.missing_bytes, 1);
  EXPECT_EQ(
      check_fit(one_byte_short, "available to the CPU").status().message,
      "the model does not fit: its weights need 1000 B and one page of its KV cache 640 B, and 1639 B are "
      "available to the CPU, which is 1 B too little");
}

TEST(MemoryFit, SaysByHowMuchAModelIsTooLarge) {
  const MemoryFit fit = judge_fit(1'342'000'000'000, 70'000, 23'000'000'000);
  EXPECT_EQ(fit.missing_bytes, 1'342'000'000'000 + 70'000 * 64 - 23'000'000'000);
  const Result<void> refused = check_fit(fit, "available to the CPU");
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code, StatusCode::kResourceExhausted);
  EXPECT_EQ(
      refused.status().message,
      "the model does not fit: its weights need 1342.00 GB, and 23.00 GB are available to the CPU, which is "
      "1319.00 GB too little");
}

TEST(MemoryFit, JudgesNothingWhereTheMemoryIsNotKnown) {
  const MemoryFit fit = judge_fit(int64_t{1} << 50, 70'000, 0);
  EXPECT_TRUE(fit.fits());
  EXPECT_EQ(fit.memory_bytes, 0);
}

TEST(MemoryFit, IsThatOfTheMemoryPlanOnAGpu) {
  DeviceMemoryPlan plan{.total_bytes = 10'000, .fraction = 0.5, .weight_bytes = 1000, .context_bytes = 100};
  plan.workspace_bytes = 200;
  plan.state_bytes = 300;
  plan.graph_bytes = 400;
  EXPECT_EQ(judge_fit(plan, 1).memory_bytes, 4000);
  for (const int64_t weights : {4000 - 64, 4000 - 63}) {
    plan.weight_bytes = weights;
    plan.fill_cache(1);
    EXPECT_EQ(judge_fit(plan, 1).fits(), plan.max_total_tokens > 0) << weights;
  }
  plan.context_bytes = 6000;
  EXPECT_FALSE(judge_fit(plan, 1).fits()) << "nothing is left";
}

}  // namespace
}  // namespace hadal::cli
