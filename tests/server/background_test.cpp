// Tests work beside the I/O threads: the pool of threads for it, the parsing of large bodies, and an
// operator's calls.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/cancel.h"
#include "server/admission/request_memory.h"
#include "server/generation/background_pool.h"
#include "server/generation/parse_task.h"
#include "tests/server/test_server.h"

namespace hadal::server {
namespace {

TEST(BackgroundPool, RunsTasksAndSurvivesOneThatThrows) {
  std::promise<void> done;  // used by tasks, so it must outlive the pool, here and below
  BackgroundPool pool(2);
  EXPECT_TRUE(pool.post([] { throw std::runtime_error("no"); }));
  EXPECT_TRUE(pool.post([&] { done.set_value(); }));
  done.get_future().wait();
  pool.stop();
  EXPECT_FALSE(pool.post([] {}));
}

TEST(BackgroundPool, RefusesTasksWhenItsQueueIsFull) {
  std::promise<void> gate;
  std::promise<void> started;
  BackgroundPool pool({.num_threads = 1, .max_queued = 2});
  pool.post([&] {
    started.set_value();
    gate.get_future().wait();
  });
  started.get_future().wait();
  EXPECT_TRUE(pool.post([] {}));
  EXPECT_TRUE(pool.post([] {}));
  EXPECT_FALSE(pool.post([] {}));
  gate.set_value();
}

TEST(BackgroundPool, ClientsTakeTurnsAndOneLeavesAThreadToOthers) {
  std::promise<void> gate;
  std::promise<void> started;
  const std::shared_future<void> opened = gate.get_future().share();
  std::promise<void> other;
  std::atomic<int> begun = 0;
  BackgroundPool pool({.num_threads = 2, .max_queued_per_client = 8, .max_running_per_client = 1});
  pool.post(
      [&] {
        ++begun;
        started.set_value();
        opened.wait();
      },
      "greedy");
  started.get_future().wait();
  for (int i = 0; i < 8; ++i) EXPECT_TRUE(pool.post([&] { ++begun; }, "greedy"));
  EXPECT_FALSE(pool.post([] {}, "greedy")) << "its share of the queue is full";
  EXPECT_TRUE(pool.post([&] { other.set_value(); }, "other"));
  other.get_future().wait();  // while the first client's task still runs
  EXPECT_EQ(begun, 1);
  std::promise<void> last;
  gate.set_value();
  while (!pool.post([&] { last.set_value(); }, "greedy")) std::this_thread::yield();
  last.get_future().wait();
  EXPECT_EQ(begun, 9);
}

TEST(BackgroundPool, ADroppedTaskIsDestroyedAtOnceAndTheOthersStillRun) {
  std::promise<void> gate;
  std::promise<void> started;
  std::promise<void> last;
  std::atomic<int> begun = 0;
  BackgroundPool pool({.num_threads = 1, .max_queued = 3, .max_queued_per_client = 2});
  const uint64_t running = pool.post(
      [&] {
        started.set_value();
        gate.get_future().wait();
      },
      "first");
  started.get_future().wait();
  auto owned = std::make_shared<int>();
  const uint64_t left = pool.post([&begun, owned] { ++begun; }, "first");
  EXPECT_TRUE(pool.post([&] { ++begun; }, "first"));
  const uint64_t only = pool.post([&begun, owned] { ++begun; }, "second");
  EXPECT_FALSE(pool.post([] {}, "third")) << "the queue is full";
  EXPECT_FALSE(pool.drop(running, "first")) << "it has begun";
  EXPECT_FALSE(pool.drop(left, "second")) << "it is another client's";
  EXPECT_EQ(owned.use_count(), 3);
  EXPECT_TRUE(pool.drop(left, "first"));
  EXPECT_TRUE(pool.drop(only, "second")) << "a client's last task, whose turn ends with it";
  EXPECT_EQ(owned.use_count(), 1);
  EXPECT_FALSE(pool.drop(left, "first"));
  EXPECT_FALSE(pool.drop(only, "second"));
  EXPECT_TRUE(pool.post([&] { last.set_value(); }, "second")) << "their places are free";
  gate.set_value();
  last.get_future().wait();
  pool.stop();
  EXPECT_EQ(begun, 1);
}

TEST(BackgroundPool, TellsALongTaskThatItIsStopping) {
  std::promise<void> started;
  std::atomic<bool> saw = false;
  BackgroundPool pool(1);
  pool.post([&] {
    started.set_value();
    while (!pool.stopping()) std::this_thread::yield();
    saw = true;
  });
  started.get_future().wait();
  EXPECT_FALSE(pool.stopping());
  pool.stop();
  EXPECT_TRUE(saw);
}

TEST(BackgroundPool, AfterTheAnnouncementTasksRunCancelledAndThePoolBecomesIdle) {
  std::promise<void> started;
  std::atomic<int> num_cancelled = 0;
  BackgroundPool pool(1);
  pool.post([&] {
    started.set_value();
    while (!is_cancelled()) std::this_thread::yield();
    ++num_cancelled;
  });
  pool.post([&] { num_cancelled += is_cancelled() ? 1 : 0; });
  started.get_future().wait();
  EXPECT_FALSE(pool.wait_idle(std::chrono::steady_clock::now()));
  pool.announce_stop();
  EXPECT_TRUE(pool.wait_idle(std::chrono::steady_clock::time_point::max()));
  EXPECT_EQ(num_cancelled, 2);
  EXPECT_TRUE(pool.post([&] { ++num_cancelled; })) << "it has not stopped yet";
  EXPECT_TRUE(pool.wait_idle(std::chrono::steady_clock::time_point::max()));
  EXPECT_EQ(num_cancelled, 3);
}

TEST(BackgroundPool, HelpRunsWhatWaitsWhileTheThreadsAreBusy) {
  std::promise<void> started;
  std::promise<void> gate;
  BackgroundPool pool(1);
  pool.post([&, opened = gate.get_future().share()] {
    started.set_value();
    opened.wait();
  });
  started.get_future().wait();
  int num_run = 0;
  for (int i = 0; i < 3; ++i) pool.post([&] { ++num_run; }, std::to_string(i));
  pool.help();
  EXPECT_EQ(num_run, 3);
  gate.set_value();
}

// The work of these tests ends only when it is cancelled.
class ParseWorkTest : public ::testing::Test {
 protected:
  // Sends a request whose body a worker parses, and waits until this work runs.
  std::shared_ptr<testing::TestExchange> send() {
    HttpRequest request{.method = "POST", .path = "/generate", .client = "peer:test"};
    request.body.assign(kInlineBodyBytes + 1, 'x');
    auto exchange = std::make_shared<testing::TestExchange>(server_.io(), std::move(request));
    run_parse_work(server_.server().context(), exchange, ErrorStyle::kOpenAi,
                   [this](std::string_view) -> ParseDone {
                     ++num_running_;
                     for (;;) check_cancelled();
                   });
    return exchange;
  }
  void wait_running() {
    while (num_running_ == 0) std::this_thread::yield();
  }

  std::atomic<int> num_running_ = 0;
  testing::TestServer server_;
};

TEST_F(ParseWorkTest, EndsWhenItsClientHasGone) {
  const auto exchange = send();
  wait_running();
  exchange->disconnect();
  EXPECT_TRUE(server_.server().context().parsers.wait_idle(std::chrono::steady_clock::time_point::max()));
  EXPECT_EQ(exchange->num_answers, 0);
}

TEST_F(ParseWorkTest, IsAnsweredAtTheEndOfADrainWhetherItRunsOrWaits) {
  const auto running = send();
  wait_running();
  const auto waiting = send();  // behind it, because a client has all threads but one
  const auto third = send();
  server_.server().drain(std::chrono::milliseconds(0));
  for (const auto& exchange : {running, waiting, third}) {
    ASSERT_TRUE(server_.wait(*exchange));
    EXPECT_EQ(exchange->response.status, 503) << exchange->response.body;
    EXPECT_EQ(exchange->response.headers, (HeaderList{{"Retry-After", "1"}}));
  }
}

// An operator's call does not wait for grammars.
TEST(Admin, HasAThreadOfItsOwn) {
  testing::TestServer server;
  std::promise<void> gate;
  const std::shared_future<void> opened = gate.get_future().share();
  for (int i = 0; i < 8; ++i) server.server().context().background.post([opened] { opened.wait(); });
  EXPECT_EQ(server.call("POST", "/flush_cache").status, 200);
  gate.set_value();
}

TEST(Admin, ADrainCarriesOutWhatCanBegin) {
  testing::TestServer server;
  const auto flush = server.send("POST", "/flush_cache");
  server.server().drain(std::chrono::minutes(1));
  ASSERT_TRUE(server.wait(*flush));
  EXPECT_EQ(flush->response.status, 200) << flush->response.body;
}

TEST(Admin, WhatHasNotBegunAtTheEndOfADrainIsAnsweredThoughTheThreadIsBusy) {
  testing::TestServer server;
  std::promise<void> started;
  std::promise<void> gate;
  server.server().context().admin.post([&, opened = gate.get_future().share()] {
    started.set_value();
    opened.wait();
  });
  started.get_future().wait();
  std::vector<std::shared_ptr<testing::TestExchange>> exchanges;
  for (const char* path : {"/flush_cache", "/pause_generation", "/start_profile", "/stop_profile"})
    exchanges.push_back(server.send("POST", path));
  server.server().drain(std::chrono::milliseconds(0));
  exchanges.push_back(server.send("POST", "/flush_cache"));  // on a connection that is still open
  for (const auto& exchange : exchanges) {
    ASSERT_TRUE(server.wait(*exchange)) << exchange->request().path;
    EXPECT_EQ(exchange->num_answers, 1);
    EXPECT_EQ(exchange->response.status, 503) << exchange->response.body;
    EXPECT_NE(exchange->response.body.find("shutting down"), std::string::npos) << exchange->response.body;
    EXPECT_EQ(exchange->response.headers, (HeaderList{{"Retry-After", "1"}}));
  }
  gate.set_value();
}

}  // namespace
}  // namespace hadal::server
