// Tests work beside the I/O threads: the pool of threads for it, and the grammars of requests, which this
// pool compiles.
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
#include "server/generation/grammar_task.h"
#include "server/generation/parse_task.h"
#include "tests/server/test_server.h"

namespace hadal::server {
namespace {

// Returns a schema that takes seconds to compile: its properties may come in an enormous number of orders.
std::string slow_schema() {
  std::string properties;
  for (int i = 0; i < 100; ++i) properties += fmt::format("{}\"p{}\":{{}}", i == 0 ? "" : ",", i);
  return fmt::format(R"({{"type":"object","minProperties":50,"maxProperties":60,"properties":{{{}}}}})",
                     properties);
}

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

class GrammarTask : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!grammar_available()) GTEST_SKIP() << "built without xgrammar";
    compiler_ = GrammarCompiler::create(server_.tokenizer(), {.vocab_size = testing::kVocab}).value();
    context_.emplace(server_.server().context());
    context_->grammars = compiler_.get();
  }
  Result<CompiledGrammars> compile(GrammarSpecs specs) {
    std::optional<Result<CompiledGrammars>> out;
    compile_grammars(*context_, server_.io(), "peer:test", std::move(specs),
                     [&](Result<CompiledGrammars> compiled) { out = std::move(compiled); });
    EXPECT_TRUE(server_.io().run_until([&] { return out.has_value(); }));
    return std::move(*out);
  }
  static std::shared_ptr<const GrammarSpec> regex(const char* text) {
    return std::make_shared<const GrammarSpec>(GrammarSpec{.kind = GrammarKind::kRegex, .text = text});
  }

  testing::TestServer server_;
  std::unique_ptr<GrammarCompiler> compiler_;
  std::optional<ServerContext> context_;
};

TEST_F(GrammarTask, CompilesEqualSpecsOnceAndKeepsTheirPlaces) {
  const auto one = regex("a+");
  const auto grammars = compile({one, one, nullptr, regex("b"), regex("a+"), one}).value();
  ASSERT_EQ(grammars.size(), 6U);
  for (const size_t i : {1, 4, 5}) EXPECT_EQ(grammars[i], grammars[0]);
  EXPECT_EQ(grammars[2], nullptr);
  EXPECT_NE(grammars[3], grammars[0]);
  EXPECT_EQ(compiler_->cache_stats().num_misses, 2);
  EXPECT_EQ(compiler_->cache_stats().num_hits, 0);
}

TEST_F(GrammarTask, ARequestThatIsLeftWhileItWaitsIsDroppedAtOnce) {
  std::promise<void> gate;
  const std::shared_future<void> opened = gate.get_future().share();
  context_->background.post([opened] { opened.wait(); }, "peer:test");
  const auto owned = std::make_shared<int>();
  const auto leave = compile_grammars(*context_, server_.io(), "peer:test", {regex("a+")},
                                      [owned](const Result<CompiledGrammars>&) { ADD_FAILURE(); });
  EXPECT_EQ(owned.use_count(), 2);
  leave();
  EXPECT_EQ(owned.use_count(), 1) << "what waited is destroyed";
  leave();
  gate.set_value();
  EXPECT_TRUE(compile({regex("b")}).ok());
  EXPECT_EQ(compiler_->cache_stats().num_misses, 1) << "what was left is not compiled";
}

TEST_F(GrammarTask, ARequestThatIsLeftBetweenItsGrammarsIsNotAnswered) {
  const auto owned = std::make_shared<int>();
  const auto leave = compile_grammars(*context_, server_.io(), "peer:test", {regex("a+"), regex("b+")},
                                      [owned](const Result<CompiledGrammars>&) { ADD_FAILURE(); });
  // The pool may have begun the first grammar, may wait for the second, or may have compiled both. In each
  // case done() would be called on this thread, which has run no task.
  leave();
  EXPECT_TRUE(server_.io().run_until([&] { return owned.use_count() == 1; }));
}

// When a client leaves, the engine waits for none of its grammars, and the ledger gets its memory back.
TEST(Grammars, AClientThatLeavesWhileItsGrammarWaitsGivesBackItsMemoryAtOnce) {
  if (!grammar_available()) GTEST_SKIP() << "built without xgrammar";
  const auto memory = std::make_shared<RequestMemory>(size_t{1} << 30);
  testing::TestServer server({.server = {.memory = memory}, .with_grammars = true});
  std::promise<void> gate;
  const std::shared_future<void> opened = gate.get_future().share();
  for (int i = 0; i < 8; ++i)
    server.server().context().background.post([opened] { opened.wait(); }, std::to_string(i));
  for (const auto& [path, body] : std::vector<std::pair<std::string, std::string>>{
           {"/generate", R"({"text":"Hello","sampling_params":{"regex":"a+","max_new_tokens":4}})"},
           {"/generate", R"({"text":"Hello","stream":true,"sampling_params":{"regex":"b","n":3}})"},
           {"/v1/completions", R"({"prompt":"Hello","regex":"c+","max_tokens":4})"}}) {
    auto exchange = server.send("POST", path, body);
    ASSERT_TRUE(server.io().run_until([&] { return memory->bytes(MemoryKind::kGrammar) > 0; })) << path;
    exchange->disconnect();
    // Nothing of the request is left, except while the thread that has parsed it releases its reference.
    EXPECT_TRUE(server.io().run_until([&] { return exchange.use_count() == 1; })) << path;
    exchange.reset();
    EXPECT_EQ(memory->total(), 0U) << path;
  }
  gate.set_value();
  EXPECT_EQ(server.generate(R"({"text":"Hello","sampling_params":{"regex":"d+","max_new_tokens":2}})").status,
            200);
}

TEST(Grammars, ACompileThatTheLedgerHasNoRoomForIsRefused) {
  if (!grammar_available()) GTEST_SKIP() << "built without xgrammar";
  const auto memory = std::make_shared<RequestMemory>(size_t{32} << 20);
  testing::TestServer server({.server = {.memory = memory}, .with_grammars = true});
  const std::string constrained = R"({"text":"Hello","sampling_params":{"regex":"a+","max_new_tokens":2}})";
  EXPECT_EQ(server.generate(constrained).status, 503) << "a compile may take 64 MiB";
  EXPECT_EQ(memory->refused(MemoryKind::kGrammar), 1);
  // When the answer is here, the thread that has parsed the request may still hold a reference to it.
  EXPECT_TRUE(server.io().run_until([&] { return memory->total() == 0; }));
  EXPECT_EQ(server.generate(R"({"text":"Hello","sampling_params":{"max_new_tokens":2}})").status, 200);
}

TEST_F(GrammarTask, ADrainSkipsSpecsOfRequestsThatWouldBeRefused) {
  server_.server().drain(std::chrono::milliseconds(0));
  EXPECT_EQ(compile({regex("a+")}).status().code, StatusCode::kCancelled);
  EXPECT_EQ(compiler_->cache_stats().num_misses, 0);
}

// A compile that is running is given up, so that a drain need not wait for it.
TEST_F(GrammarTask, ADrainCancelsTheCompileThatRuns) {
  const auto slow = std::make_shared<const GrammarSpec>(
      GrammarSpec{.kind = GrammarKind::kJsonSchema, .text = slow_schema(), .field = "json_schema"});
  std::optional<Result<CompiledGrammars>> out;
  compile_grammars(*context_, server_.io(), "peer:test", {slow},
                   [&](Result<CompiledGrammars> compiled) { out = std::move(compiled); });
  server_.server().drain(std::chrono::milliseconds(0));
  EXPECT_TRUE(server_.io().run_until([&] { return out.has_value(); }));
  EXPECT_EQ(out->status().code, StatusCode::kCancelled) << out->status().message;
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
