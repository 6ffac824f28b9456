#include "base/printable.h"

#include <gtest/gtest.h>

namespace hadal {
namespace {

TEST(Printable, WritesControlBytesOut) {
  EXPECT_EQ(printable("a\x1b[2J\n\x7f\tb"), "a\\x1b[2J\\n\\x7f\\tb");
  EXPECT_EQ(printable("\xc2\x9b"
                      "2J naïve 东西"),
            "\\x9b2J naïve 东西");
}

}  // namespace
}  // namespace hadal
