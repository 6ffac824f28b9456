// Tests whose mask comes next, without threads and without a clock.
#include "engine/loop/mask_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "engine/loop/mask_workers.h"

namespace hadal {
namespace {

using ::testing::ElementsAre;

// Names the tasks of a queue. What a task costs is in seconds.
class MaskQueueTest : public ::testing::Test {
 protected:
  MaskQueue::Place push(const std::string& name, uint64_t client, double cost_s, double used_s = 0.0) {
    auto task = std::make_shared<MaskTask>(nullptr, 64, client);
    tasks_[task.get()] = {name, client, cost_s};
    return queue_.push(std::move(task), client, used_s);
  }
  // Begins the next task and returns its name, or "none".
  std::string begin() {
    const std::shared_ptr<MaskTask> task = queue_.pop();
    if (task == nullptr) return "none";
    const Named& named = tasks_.at(task.get());
    running_[named.name] = named;
    return named.name;
  }
  void end(const std::string& name) {
    const Named named = running_.at(name);
    running_.erase(name);
    queue_.finish(named.client, named.cost_s);
  }
  // Carries out the next tasks one after another, as one thread would.
  std::vector<std::string> run(size_t count = SIZE_MAX) {
    std::vector<std::string> order;
    while (order.size() < count) {
      const std::string name = begin();
      if (name == "none") break;
      order.push_back(name);
      end(name);
    }
    return order;
  }

  struct Named {
    std::string name;
    uint64_t client = 0;
    double cost_s = 0.0;
  };
  MaskQueue queue_;
  std::map<const MaskTask*, Named> tasks_;
  std::map<std::string, Named> running_;
};

TEST_F(MaskQueueTest, ClientsWhoseMasksCostTheSameTakeTurns) {
  for (const char* name : {"a1", "a2", "a3"}) push(name, 1, 1.0);
  for (const char* name : {"b1", "b2", "b3"}) push(name, 2, 1.0);
  push("c1", 3, 1.0);
  EXPECT_THAT(run(), ElementsAre("a1", "b1", "c1", "a2", "b2", "a3", "b3"));
}

TEST_F(MaskQueueTest, TurnsAreEqualWhereMasksCostNothing) {
  for (const char* name : {"a1", "a2"}) push(name, 1, 0.0);
  for (const char* name : {"b1", "b2"}) push(name, 2, 0.0);
  EXPECT_THAT(run(), ElementsAre("a1", "b1", "a2", "b2"));
}

TEST_F(MaskQueueTest, AClientWithSlowMasksGetsAsMuchTimeAsTheOthers) {
  for (const char* name : {"slow1", "slow2"}) push(name, 1, 3.0);
  for (const char* name : {"a", "b", "c", "d", "e"}) push(name, 2, 1.0);
  EXPECT_THAT(run(), ElementsAre("slow1", "a", "b", "c", "slow2", "d", "e"));
}

// Otherwise a newcomer would have all the time that the others have worked before.
TEST_F(MaskQueueTest, AClientThatComesLaterGetsNoTimeForThePast) {
  for (const char* name : {"a1", "a2", "a3", "a4", "a5"}) push(name, 1, 1.0);
  EXPECT_THAT(run(3), ElementsAre("a1", "a2", "a3"));
  for (const char* name : {"b1", "b2", "b3", "b4"}) push(name, 2, 1.0);
  EXPECT_THAT(run(), ElementsAre("b1", "a4", "b2", "a5", "b3", "b4"));
}

TEST_F(MaskQueueTest, AClientCannotShedItsTimeByWaitingUntilItsMaskIsMade) {
  push("slow1", 1, 3.0);
  for (const char* name : {"a", "b", "c", "d", "e"}) push(name, 2, 1.0);
  EXPECT_THAT(run(2), ElementsAre("slow1", "a"));
  push("slow2", 1, 3.0);
  EXPECT_THAT(run(), ElementsAre("b", "c", "slow2", "d", "e"));
}

TEST_F(MaskQueueTest, EverNewClientsDoNotOvertakeAnOlderOneForEver) {
  push("slow1", 1, 10.0);
  push("other", 2, 1.0);
  EXPECT_THAT(run(1), ElementsAre("slow1"));
  push("slow2", 1, 10.0);
  int num_overtaking = 0;
  for (uint64_t client = 3; running_.empty(); ++client, ++num_overtaking) {
    push("new" + std::to_string(client), client, 1.0);
    const std::string name = begin();
    if (name == "slow2") break;
    end(name);
    ASSERT_LT(num_overtaking, 100);
  }
  EXPECT_GE(num_overtaking, 10) << "they have used less";
}

TEST_F(MaskQueueTest, ClientsThatHaveGoneAreForgottenAlthoughThereIsAlwaysWork) {
  push("long", 1, 1.0);
  EXPECT_EQ(begin(), "long");
  for (uint64_t client = 2; client < 1000; ++client) {
    push(std::to_string(client), client, 1.0);
    EXPECT_EQ(run(1).size(), 1U);
  }
  EXPECT_LT(queue_.num_clients(), 100);
}

TEST_F(MaskQueueTest, OfAClientsTasksTheOneThatHasUsedLeastComesFirst) {
  push("dear", 1, 1.0, 2.0);
  push("cheap", 1, 1.0, 1.0);
  push("later", 1, 1.0, 1.0);
  EXPECT_THAT(run(), ElementsAre("cheap", "later", "dear"));
}

TEST_F(MaskQueueTest, OnlySoManyTasksOfAClientRunAtOnce) {
  queue_.set_client_limit(2);
  for (const char* name : {"a1", "a2", "a3"}) push(name, 1, 1.0);
  EXPECT_EQ(begin(), "a1");
  EXPECT_EQ(begin(), "a2");
  EXPECT_EQ(begin(), "none");
  push("b1", 2, 1.0);
  EXPECT_EQ(begin(), "b1");
  EXPECT_EQ(begin(), "none");
  end("a2");
  EXPECT_EQ(begin(), "a3");
}

TEST_F(MaskQueueTest, AnErasedTaskIsNotChosenAndTheOthersKeepTheirPlaces) {
  const MaskQueue::Place a1 = push("a1", 1, 1.0);
  const MaskQueue::Place b1 = push("b1", 2, 1.0);
  push("a2", 1, 1.0);
  queue_.erase(b1);
  queue_.erase(a1);
  queue_.erase(a1);
  push("b2", 2, 1.0);
  EXPECT_THAT(run(), ElementsAre("a2", "b2"));
  EXPECT_EQ(begin(), "none");
}

// Compares each choice with one that looks at all clients.
TEST_F(MaskQueueTest, NoClientIsChosenWhileAnotherThatMayBeginHasUsedLess) {
  const uint32_t seed = 5;
  std::mt19937 random(seed);
  queue_.set_client_limit(3);
  std::map<uint64_t, double> used;
  std::map<uint64_t, int> waiting, running;
  for (uint64_t client = 1; client <= 6; ++client) {
    for (int i = 0; i < 200; ++i)
      push(std::to_string(client) + "-" + std::to_string(i), client, 0.001 * client);
    waiting[client] = 200;
    used[client] = 0.0;
  }
  int num_chosen = 0;
  while (num_chosen < 1200) {
    if (const std::string name = begin(); name != "none") {
      ++num_chosen;
      const uint64_t client = running_.at(name).client;
      for (const auto& [other, seconds] : used) {
        if (waiting[other] > 0 && running[other] < 3) {
          ASSERT_LE(used[client], seconds + 1e-9) << "seed " << seed << ", " << name << " before " << other;
        }
      }
      --waiting[client];
      ++running[client];
    }
    if (!running_.empty() && random() % 2 == 0) {
      const Named one = std::next(running_.begin(), random() % running_.size())->second;
      end(one.name);
      used[one.client] += one.cost_s;
      --running[one.client];
    }
  }
}

}  // namespace
}  // namespace hadal
