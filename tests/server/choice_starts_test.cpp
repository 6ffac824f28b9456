// Tests that the choices of a request are started in turns.
#include "server/generation/choice_starts.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "tests/server/test_server.h"

namespace hadal::server {
namespace {

TEST(StartChoices, StartsAFewAtOnceAndLetsOtherTasksRunBetweenTheRest) {
  testing::TestIo io;
  std::vector<size_t> order;
  constexpr size_t kOther = 100;
  start_choices(io, 3, [&](size_t choice) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));  // longer than a turn
    order.push_back(choice);
    io.post([&] { order.push_back(kOther); });
    return true;
  });
  EXPECT_EQ(order, std::vector<size_t>{0});
  ASSERT_TRUE(io.run_until([&] { return order.size() == 6; }));
  EXPECT_EQ(order, (std::vector<size_t>{0, kOther, 1, kOther, 2, kOther}));
}

TEST(StartChoices, EndsWithTheFirstThatCannotBeStarted) {
  testing::TestIo io;
  const auto owned = std::make_shared<int>(0);
  start_choices(io, 5, [owned](size_t choice) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    ++*owned;
    return choice != 2;
  });
  ASSERT_TRUE(io.run_until([&] { return owned.use_count() == 1; }));
  EXPECT_EQ(*owned, 3);
}

}  // namespace
}  // namespace hadal::server
