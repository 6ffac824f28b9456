#include "cli/memory_fit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace hadal::cli {
namespace {

using testing::HasSubstr;

TEST(MemoryFit, CountsWholePagesBesideTheWeights) {
  const MemoryFit fit = judge_fit(1'000'000, 100, 1'000'000 + 3 * 6400 + 6399);
  EXPECT_TRUE(fit.fits());
  EXPECT_EQ(fit.missing_bytes, 0);
  EXPECT_EQ(fit.max_tokens, 3 * 64);
  EXPECT_TRUE(check_fit(fit, "available to the CPU").ok());
}

TEST(MemoryFit, NeedsRoomForOnePage) {
  EXPECT_TRUE(judge_fit(1000, 10, 1000 + 640).fits());
  const MemoryFit one_byte_short = judge_fit(1000, 10, 1000 + 639);
  EXPECT_FALSE(one_byte_short.fits());
  EXPECT_EQ(one_byte_short.missing_bytes, 1);
  EXPECT_EQ(one_byte_short.max_tokens, 0);
}

TEST(MemoryFit, SaysByHowMuchAModelIsTooLarge) {
  const MemoryFit fit = judge_fit(1'342'000'000'000, 70'000, 23'000'000'000);
  EXPECT_EQ(fit.missing_bytes, 1'342'000'000'000 + 70'000 * 64 - 23'000'000'000);
  EXPECT_EQ(fit.max_tokens, 0);
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
  EXPECT_GT(fit.max_tokens, int64_t{1} << 40);
}

TEST(MemoryFit, AGpuGivesAShareOfItsMemoryLessWhatIsInUse) {
  EXPECT_EQ(gpu_budget_bytes(1000, 100, 0.5), 400);
  EXPECT_FALSE(judge_fit(10, 1, gpu_budget_bytes(1000, 900, 0.5)).fits()) << "nothing is left";
}

}  // namespace
}  // namespace hadal::cli
