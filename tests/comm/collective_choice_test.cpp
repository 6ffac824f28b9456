#include "comm/collective_choice.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "base/error.h"

namespace hadal {
namespace {

using Algorithm = CollectiveAlgorithm;
using Op = CollectiveOp;

struct Case {
  Op op;
  int64_t bytes;
  int ranks;
  Algorithm algorithm;
  int64_t bytes_received;
  double us;  // computed by hand from a = 3.3 µs and b = 380,000 bytes/µs
};

constexpr Case kCases[] = {
    {Op::kAllReduce, 14336, 1, Algorithm::kNothing, 0, 0.0},
    {Op::kAllReduce, 0, 8, Algorithm::kNothing, 0, 0.0},
    {Op::kAllReduce, 14336, 2, Algorithm::kOneShot, 14336, 3.3377},
    {Op::kAllReduce, 117440512, 2, Algorithm::kOneShot, 117440512, 312.354},
    {Op::kAllReduce, 14336, 8, Algorithm::kOneShot, 100352, 3.5641},
    // With four ranks the two algorithms cost the same at 836,000 bytes, and with eight ranks at 238,857
    // bytes.
    {Op::kAllReduce, 835996, 4, Algorithm::kOneShot, 2507988, 9.9},
    {Op::kAllReduce, 836004, 4, Algorithm::kTwoShot, 1254006, 9.9},
    {Op::kAllReduce, 238848, 8, Algorithm::kOneShot, 1671936, 7.6998},
    {Op::kAllReduce, 238864, 8, Algorithm::kTwoShot, 418012, 7.7},
    {Op::kAllReduce, 117440512, 8, Algorithm::kTwoShot, 205520896, 547.445},
    {Op::kReduceScatter, 117440512, 8, Algorithm::kOneShot, 102760448, 273.722},
    {Op::kAllGather, 14336, 8, Algorithm::kOneShot, 100352, 3.5641},
    {Op::kAllToAll, 1000000, 4, Algorithm::kOneShot, 750000, 5.2737},
    {Op::kAllToAll, 1, 8, Algorithm::kOneShot, 7, 3.3},
};

TEST(CollectiveChoice, FollowsTheModelOfTheLinks) {
  for (const Case& c : kCases) {
    const CollectiveChoice choice = choose_collective(c.op, c.bytes, c.ranks);
    SCOPED_TRACE(describe(choice));
    EXPECT_EQ(choice.algorithm, c.algorithm);
    EXPECT_EQ(choice.bytes_received, c.bytes_received);
    EXPECT_NEAR(choice.us, c.us, 1e-3 * c.us);
    EXPECT_EQ(choice.num_exchanges, c.algorithm == Algorithm::kNothing   ? 0
                                    : c.algorithm == Algorithm::kOneShot ? 1
                                                                         : 2);
  }
}

TEST(CollectiveChoice, NeverTakesTheSlowerAlgorithmOfAnAllReduce) {
  const LinkFigures link{.exchange_us = 2.0, .gigabytes_per_s = 100.0};
  for (int ranks = 2; ranks <= 8; ++ranks) {
    for (int64_t bytes = 16; bytes < int64_t{1} << 28; bytes *= 2) {
      const double one_shot = 2.0 + (ranks - 1) * static_cast<double>(bytes) / 1e5;
      const double two_shot = 4.0 + 2.0 * (ranks - 1) / ranks * static_cast<double>(bytes) / 1e5;
      const CollectiveChoice choice = choose_collective(Op::kAllReduce, bytes, ranks, link);
      EXPECT_LE(choice.us, std::fmin(one_shot, two_shot) * (1 + 1e-3)) << describe(choice);
    }
  }
}

TEST(CollectiveChoice, PrintsOneLine) {
  EXPECT_EQ(describe(choose_collective(Op::kAllReduce, 14336, 2)),
            "all_reduce of 14336 bytes over 2 ranks: one-shot, 14336 bytes received, 3.34 us");
  EXPECT_EQ(describe(choose_collective(Op::kAllGather, 8, 1)),
            "all_gather of 8 bytes over 1 ranks: nothing to do, 0 bytes received, 0.00 us");
}

TEST(CollectiveChoice, RefusesSizesAndRanksThatDoNotExist) {
  const auto error_of = [](int64_t bytes, int ranks) -> std::string {
    try {
      choose_collective(Op::kAllReduce, bytes, ranks);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_NE(error_of(-1, 2).find("a collective of -1 bytes"), std::string::npos);
  EXPECT_NE(error_of(16, 0).find("a collective of 0 ranks, allowed are 1 to 8"), std::string::npos);
  EXPECT_NE(error_of(16, 9).find("a collective of 9 ranks, allowed are 1 to 8"), std::string::npos);
}

}  // namespace
}  // namespace hadal
