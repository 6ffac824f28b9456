#include "base/philox.h"

#include <gtest/gtest.h>

#include <array>

namespace hadal {
namespace {

using Counter = std::array<uint32_t, 4>;
using Key = std::array<uint32_t, 2>;

// The answers are those that the authors published with their Random123 library.
TEST(Philox, MatchesThePublishedKnownAnswers) {
  EXPECT_EQ(philox4x32_10(Counter{0, 0, 0, 0}, Key{0, 0}),
            (Counter{0x6627e8d5U, 0xe169c58dU, 0xbc57ac4cU, 0x9b00dbd8U}));
  EXPECT_EQ(philox4x32_10(Counter{0xffffffffU, 0xffffffffU, 0xffffffffU, 0xffffffffU},
                          Key{0xffffffffU, 0xffffffffU}),
            (Counter{0x408f276dU, 0x41c83b0eU, 0xa20bc7c6U, 0x6d5451fdU}));
  EXPECT_EQ(philox4x32_10(Counter{0x243f6a88U, 0x85a308d3U, 0x13198a2eU, 0x03707344U},
                          Key{0xa4093822U, 0x299f31d0U}),
            (Counter{0xd16cfe09U, 0x94fdccebU, 0x5001e420U, 0x24126ea1U}));
}

}  // namespace
}  // namespace hadal
