// Tests how much memory parsing a tool call needs in addition to its text, because requests are charged for
// it.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/allocation/failing_allocator.h"
#include "text/json_scan.h"

namespace hadal {
namespace {

TEST(JsonScan, TakesMemoryForTheDepthOfAValueAndNotForItsSize) {
  const std::string digits(300, '1');
  for (const std::string& part :
       {std::string("[],"), std::string("{\"a\":\"b\"},"), fmt::format("{},", digits)}) {
    JsonScan scan(128);
    ASSERT_EQ(scan.read("["), 1U);
    scan.read(part);
    const int64_t before = testing::live_bytes();
    testing::reset_peak();
    for (int i = 0; i < 10'000; ++i) ASSERT_EQ(scan.read(part), part.size());
    EXPECT_LT(testing::peak_bytes() - before, 4096) << part.substr(0, 20);
  }
}

}  // namespace
}  // namespace hadal
