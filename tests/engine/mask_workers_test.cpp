// Tests the workers that make masks, without an engine: whose mask comes next, what an expensive one may
// delay, and how a constraint's failure ends its request. The clock is the tests' own, and constraints wait
// at doors, so nothing depends on how fast the machine is.
#include "engine/loop/mask_workers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "tests/engine/fake_executor.h"
#include "tests/engine/test_requests.h"

namespace hadal {
namespace {

using testing::Door;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kTestVocab = 64;
constexpr size_t kWords = 2;

// This constraint calls a function for each mask.
class Scripted final : public TokenConstraint {
 public:
  explicit Scripted(std::function<void()> on_mask) : on_mask_(std::move(on_mask)) {}
  void fill_mask(std::span<uint32_t> allowed) override {
    on_mask_();
    allowed[0] = 0b10U;
  }
  bool accept_token(int32_t) override { return true; }
  void rollback(int64_t) override {}

 private:
  std::function<void()> on_mask_;
};

// This constraint allows only n as token n, and counts the tokens that are undone.
class Counting final : public TokenConstraint {
 public:
  explicit Counting(std::function<void()> on_mask) : on_mask_(std::move(on_mask)) {}
  void fill_mask(std::span<uint32_t> allowed) override {
    on_mask_();
    allowed[0] = 1U << num_accepted_;
  }
  bool accept_token(int32_t token_id) override { return token_id == num_accepted_++; }
  void rollback(int64_t num_tokens) override {
    num_accepted_ -= static_cast<int32_t>(num_tokens);
    num_undone_ += num_tokens;
  }
  int64_t num_undone() const { return num_undone_; }

 private:
  std::function<void()> on_mask_;
  int32_t num_accepted_ = 0;
  int64_t num_undone_ = 0;
};

std::vector<DraftNode> chain(const std::vector<int32_t>& tokens) {
  std::vector<DraftNode> drafts;
  for (const int32_t token : tokens)
    drafts.push_back({.token = token, .parent = static_cast<int32_t>(drafts.size())});
  return drafts;
}

// The workers have one thread in each lane.
class MaskWorkersTest : public ::testing::Test {
 protected:
  using Task = std::shared_ptr<MaskTask>;

  static Task task(uint64_t client, std::function<void()> on_mask) {
    return std::make_shared<MaskTask>(std::make_unique<Scripted>(std::move(on_mask)), kTestVocab, client);
  }
  // Returns a task whose masks cost `seconds` each, and which write down its name.
  Task named(const std::string& name, uint64_t client, double seconds) {
    return task(client, [this, name, seconds] {
      const std::lock_guard lock(mutex_);
      order_.push_back(name);
      now_ = now_ + seconds;
    });
  }
  // Waits until the mask of `one` is ready, and takes it.
  MaskWorkers::Outcome take(const Task& one) {
    while (!workers_.is_ready(*one)) std::this_thread::yield();
    std::vector<uint32_t> words(kWords);
    return workers_.take(*one, words);
  }
  // Makes a first mask that costs nothing, so that the task is a quick one.
  Task quick(uint64_t client, std::function<void()> on_mask) {
    const Task one = task(client, std::move(on_mask));
    workers_.post(one, {});
    EXPECT_EQ(take(one).error, "");
    return one;
  }
  std::vector<std::string> order() {
    const std::lock_guard lock(mutex_);
    return order_;
  }

  std::atomic<double> now_ = 0.0;
  std::mutex mutex_;
  std::vector<std::string> order_;
  std::atomic<int> num_wakes_ = 0;
  MaskWorkers workers_{
      [this] { ++num_wakes_; },
      {.limits = {.base_s = 10.0, .per_token_s = 1.0}, .num_quick = 1, .num_slow = 1, .clock = [this] {
         return now_.load();
       }}};
};

TEST_F(MaskWorkersTest, TheClientWhoseMasksHaveCostLeastComesFirst) {
  Door door;
  const Task first = task(9, [&] { door.wait(); });
  workers_.post(first, {});
  std::vector<Task> tasks;
  for (const char* const name : {"a1", "a2", "a3"}) tasks.push_back(named(name, 1, 3.0));
  for (const char* const name : {"b1", "b2"}) tasks.push_back(named(name, 2, 2.0));
  for (const Task& one : tasks) workers_.post(one, {});
  door.open();
  for (const Task& one : tasks) EXPECT_EQ(take(one).error, "");
  // After a1 and b1, client 2 has used less (2 s of 3 s). After b2, client 1 has (3 s of 4 s).
  EXPECT_THAT(order(), ElementsAre("a1", "b1", "b2", "a2", "a3"));
}

TEST_F(MaskWorkersTest, TheCheapestOfAClientsTasksComesFirst) {
  const Task dear = named("dear", 1, 2.0);
  const Task cheap = named("cheap", 1, 1.0);
  for (const Task& one : {dear, cheap}) {
    workers_.post(one, {});
    take(one);
  }
  Door door;
  const Task first = task(9, [&] { door.wait(); });
  workers_.post(first, {});
  for (const Task& one : {dear, cheap}) workers_.post(one, {1});
  door.open();
  for (const Task& one : {dear, cheap}) take(one);
  EXPECT_THAT(order(), ElementsAre("dear", "cheap", "cheap", "dear"));
}

// The only thread of the slow lane waits, but a quick mask is made anyway.
TEST_F(MaskWorkersTest, AQuickMaskDoesNotWaitForASlowOne) {
  const Task cheap = quick(1, [] {});
  Door door;
  const Task slow = task(2, [&] { door.wait(); });
  workers_.post(slow, {});
  workers_.post(cheap, {1});
  const MaskWorkers::Outcome outcome = take(cheap);
  EXPECT_TRUE(outcome.is_ready);
  EXPECT_FALSE(outcome.is_slow);
  EXPECT_TRUE(cheap->allows(0, 1));
  EXPECT_FALSE(cheap->allows(0, 0));
  EXPECT_FALSE(workers_.is_ready(*slow));
  door.open();
  take(slow);
}

// A first mask, whose cost nobody knows, is a slow one.
TEST(MaskLanes, OneClientNeverOccupiesAllThreadsOfALane) {
  for (const bool is_slow : {true, false}) {
    MaskWorkers workers([] {}, {.num_quick = 2, .num_slow = 2});
    const auto task = [&](uint64_t client, std::function<void()> on_mask) {
      return std::make_shared<MaskTask>(std::make_unique<Scripted>(std::move(on_mask)), kTestVocab, client);
    };
    const auto take = [&](const std::shared_ptr<MaskTask>& one) {
      while (!workers.is_ready(*one)) std::this_thread::yield();
      std::vector<uint32_t> words(kWords);
      EXPECT_EQ(workers.take(*one, words).error, "");
    };
    Door door, begun;
    std::atomic<bool> waits = is_slow;
    std::atomic<int> num_begun = 0;
    const auto waiting = [&] {
      if (!waits) return;
      ++num_begun;
      begun.open();
      door.wait();
    };
    const std::shared_ptr<MaskTask> hostile[] = {task(1, waiting), task(1, waiting), task(1, waiting)};
    const auto honest = task(2, [] {});
    if (!is_slow) {
      for (const auto& one : {hostile[0], hostile[1], hostile[2], honest}) {
        workers.post(one, {});
        take(one);
      }
      waits = true;
    }
    for (const auto& one : hostile) workers.post(one, {});
    begun.wait();
    for (int i = 0; i < 3; ++i) {
      workers.post(honest, {});
      take(honest);
    }
    EXPECT_EQ(num_begun, 1);
    door.open();
    for (const auto& one : hostile) take(one);
  }
}

TEST_F(MaskWorkersTest, AMaskThatIsDroppedIsNotMade) {
  Door door;
  const Task first = task(9, [&] { door.wait(); });
  workers_.post(first, {});
  const Task dropped = named("dropped", 1, 0.0);
  const Task kept = named("kept", 2, 0.0);
  workers_.post(dropped, {});
  workers_.post(kept, {});
  workers_.drop(dropped);
  door.open();
  take(kept);
  EXPECT_THAT(order(), ElementsAre("kept"));
}

TEST_F(MaskWorkersTest, TheWorkerWakesTheEngineForAMaskThatWasLate) {
  Door door;
  const Task late = task(1, [&] { door.wait(); });
  workers_.post(late, {});
  std::vector<uint32_t> words(kWords);
  EXPECT_FALSE(workers_.take(*late, words).is_ready);
  EXPECT_EQ(num_wakes_, 0);
  door.open();
  while (num_wakes_ == 0) std::this_thread::yield();
  EXPECT_TRUE(take(late).is_ready);
}

TEST_F(MaskWorkersTest, AnAnswerWhoseMasksCostTooMuchTogetherIsTheRequestsError) {
  const Task costly = named("costly", 1, 4.0);  // three masks may take 13 s, and four 14 s
  for (int i = 1; i <= 3; ++i) {
    workers_.post(costly, {1});
    EXPECT_EQ(take(costly).error, "") << i;
  }
  workers_.post(costly, {1});
  const MaskWorkers::Outcome outcome = take(costly);
  EXPECT_EQ(outcome.reason, AbortReason::kRequest);
  EXPECT_EQ(outcome.error,
            "the grammar is too expensive: 4 tokens took 16.0 s of processor time; allowed are 10 s and 1 s "
            "for each token");
}

TEST_F(MaskWorkersTest, EachFailureOfAConstraintHasItsReason) {
  const Task memory = task(1, [] { throw std::bad_alloc(); });
  const Task request = task(2, [] { throw BadRequest("the request's fault"); });
  const Task library = task(3, [] { throw Error("a broken library"); });
  for (const Task& one : {memory, request, library}) workers_.post(one, {});
  const MaskWorkers::Outcome of_memory = take(memory);
  EXPECT_EQ(of_memory.reason, AbortReason::kMemory);
  EXPECT_THAT(of_memory.error, HasSubstr("no memory"));
  const MaskWorkers::Outcome of_request = take(request);
  EXPECT_EQ(of_request.reason, AbortReason::kRequest);
  EXPECT_EQ(of_request.error, "the request's fault");
  const MaskWorkers::Outcome of_library = take(library);
  EXPECT_EQ(of_library.reason, AbortReason::kFault);
  EXPECT_EQ(of_library.error, "a broken library");
}

// The masks after drafts end with the first draft that is not allowed, and drafts that were not sampled are
// undone.
TEST_F(MaskWorkersTest, MasksOfDraftsFollowThemAsFarAsTheyAreAllowed) {
  auto owned = std::make_unique<Counting>([] {});
  const Counting& constraint = *owned;
  const auto counting = std::make_shared<MaskTask>(std::move(owned), kTestVocab, 1);
  workers_.post(counting, {});
  EXPECT_EQ(take(counting).error, "");
  std::vector<uint32_t> words(4 * kWords);
  workers_.post_drafts(counting, chain({0, 1, 5, 3}));
  while (!workers_.is_ready(*counting)) std::this_thread::yield();
  workers_.take_drafts(counting, words);
  EXPECT_THAT(words, ElementsAre(0b10U, 0, 0b100U, 0, 0, 0, 0, 0));
  EXPECT_TRUE(counting->allows(0, 0) && counting->allows(1, 1) && counting->allows(2, 2));
  EXPECT_FALSE(counting->allows(2, 5));

  workers_.post(counting, {0, 1, 2});  // both drafts were right
  EXPECT_EQ(take(counting).error, "");
  EXPECT_EQ(constraint.num_undone(), 0);
  EXPECT_TRUE(counting->allows(0, 3));
  workers_.post_drafts(counting, chain({3, 4}));
  while (!workers_.is_ready(*counting)) std::this_thread::yield();
  workers_.take_drafts(counting, std::span(words).first(2 * kWords));
  workers_.post(counting, {3});  // the second one was not
  EXPECT_EQ(take(counting).error, "");
  EXPECT_EQ(constraint.num_undone(), 1);
  EXPECT_TRUE(counting->allows(0, 4));
}

// The worker follows one path after another. What it told the constraint last is undone as far as other
// tokens were sampled.
TEST_F(MaskWorkersTest, MasksOfATreeFollowEveryPathThatIsAllowed) {
  auto owned = std::make_unique<testing::ChainConstraint>(/*modulus=*/2);
  const auto task = std::make_shared<MaskTask>(std::move(owned), testing::kVocab, 1);
  testing::ChainConstraint other(2);
  const size_t num_words = testing::kVocab / 32;
  const auto mask_after = [&](const std::vector<int32_t>& tokens) {
    for (const int32_t token : tokens) EXPECT_TRUE(other.accept_token(token));
    std::vector<uint32_t> mask(num_words);
    other.fill_mask(mask);
    other.rollback(std::ssize(tokens));
    return mask;
  };
  std::vector<uint32_t> first(num_words);
  workers_.post(task, {});
  while (!workers_.is_ready(*task)) std::this_thread::yield();
  EXPECT_EQ(workers_.take(*task, first).error, "");
  EXPECT_EQ(first, mask_after({}));
  // The first token must be even, and all others must be odd.
  const std::vector<DraftNode> drafts = {{2, 0}, {4, 0}, {3, 0}, {5, 1}, {6, 1}, {7, 2}, {9, 4}, {11, 5}};
  const std::vector<std::vector<int32_t>> paths = {{2}, {4}, {}, {2, 5}, {}, {4, 7}, {2, 5, 9}, {}};
  std::vector<uint32_t> words(drafts.size() * num_words);
  workers_.post_drafts(task, drafts);
  while (!workers_.is_ready(*task)) std::this_thread::yield();
  workers_.take_drafts(task, words);
  for (size_t i = 0; i < drafts.size(); ++i) {
    SCOPED_TRACE(i);
    const std::vector<uint32_t> mask(words.begin() + i * num_words, words.begin() + (i + 1) * num_words);
    EXPECT_EQ(mask, paths[i].empty() ? std::vector<uint32_t>(num_words) : mask_after(paths[i]));
  }
  workers_.post(task, {2, 5, 9});
  while (!workers_.is_ready(*task)) std::this_thread::yield();
  EXPECT_EQ(workers_.take(*task, first).error, "");
  EXPECT_EQ(first, mask_after({2, 5, 9}));
}

TEST_F(MaskWorkersTest, LateMasksOfDraftsAreGivenUp) {
  Door door, begun;
  bool waits = false;
  const auto counting = std::make_shared<MaskTask>(std::make_unique<Counting>([&] {
                                                     if (!waits) return;
                                                     begun.open();
                                                     door.wait();
                                                   }),
                                                   kTestVocab, 1);
  workers_.post(counting, {});
  EXPECT_EQ(take(counting).error, "");
  waits = true;
  std::vector<uint32_t> words(2 * kWords);
  workers_.post_drafts(counting, chain({0, 1}));
  begun.wait();
  workers_.take_drafts(counting, words);  // a worker is making them
  EXPECT_THAT(words, ElementsAre(0, 0, 0, 0));
  workers_.post(counting, {0});
  EXPECT_FALSE(workers_.is_ready(*counting));
  door.open();
  EXPECT_EQ(take(counting).error, "");
  EXPECT_TRUE(counting->allows(0, 1));

  Door second;
  const Task blocking = quick(3, [&, first = true]() mutable {
    if (!std::exchange(first, false)) second.wait();
  });
  workers_.post(blocking, {1});
  workers_.post_drafts(counting, chain({1}));
  workers_.take_drafts(counting, std::span(words).first(kWords));  // they wait for a worker
  EXPECT_THAT(words, ElementsAre(0, 0, 0, 0));
  workers_.post(counting, {1});
  second.open();
  EXPECT_EQ(take(blocking).error, "");
  EXPECT_EQ(take(counting).error, "");
  EXPECT_TRUE(counting->allows(0, 2));
}

// While a NoMoreThreads exists, no thread can be started, because the stack of a new one would not fit into
// any memory.
class NoMoreThreads {
 public:
  NoMoreThreads() {
    pthread_attr_init(&before_);
    pthread_getattr_default_np(&before_);
    pthread_attr_t huge;
    pthread_attr_init(&huge);
    pthread_attr_setstacksize(&huge, size_t{1} << 50);
    pthread_setattr_default_np(&huge);
    pthread_attr_destroy(&huge);
  }
  ~NoMoreThreads() {
    pthread_setattr_default_np(&before_);
    pthread_attr_destroy(&before_);
  }
  NoMoreThreads(const NoMoreThreads&) = delete;
  NoMoreThreads& operator=(const NoMoreThreads&) = delete;

 private:
  pthread_attr_t before_{};
};

TEST(MaskThreads, WorkersWithoutAThreadAreNotMade) {
  const NoMoreThreads limit;
  EXPECT_THROW(std::thread([] {}).join(), std::system_error);
  EXPECT_THROW(MaskWorkers([] {}), std::system_error);
}

// The first request with a grammar comes when the system has no threads left.
TEST(MaskThreads, AConstrainedRequestNeedsNoNewThread) {
  EngineOptions options;
  options.max_total_tokens = 4096;
  options.context_length = 2048;
  bool has_failed = false;
  options.on_failure = [&](const std::string&) { has_failed = true; };
  const auto engine =
      Engine::create(std::make_unique<testing::FakeExecutor>(), testing::fake_config(), options).value();
  const NoMoreThreads limit;
  GenerateRequest request = testing::greedy_request({1, 2, 3}, 4);
  request.constraint = std::make_unique<testing::ChainConstraint>();
  EXPECT_EQ(testing::run(*engine, std::move(request)).last.finish_reason, FinishReason::kLength);
  EXPECT_FALSE(has_failed);
}

}  // namespace
}  // namespace hadal
