#include "base/semaphore.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace hadal {
namespace {

TEST(Semaphore, AWaitReturnsForEachPostAlsoForEarlierOnes) {
  Semaphore semaphore;
  semaphore.post();
  semaphore.post();
  semaphore.wait();
  semaphore.wait();
  std::atomic<int> num_passed{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      semaphore.wait();
      ++num_passed;
    });
  }
  EXPECT_EQ(num_passed, 0);
  for (int i = 0; i < 4; ++i) semaphore.post();
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(num_passed, 4);
}

}  // namespace
}  // namespace hadal
