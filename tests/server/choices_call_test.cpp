// Tests that an abort also applies to choices which are not started yet.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <boost/json.hpp>

#include "server/generation/request_registry.h"
#include "tests/server/test_server.h"

namespace hadal::server {
namespace {

using testing::parsed;
using testing::TestServer;
namespace json = boost::json;

// A turn of a millisecond starts far fewer choices than 64 · 64.
constexpr size_t kPrompts = 64;
constexpr size_t kChoicesOfEach = 64;

std::string prompts() {
  std::string list = "[[3]";
  for (size_t i = 1; i < kPrompts; ++i) list += ",[3]";
  return list + "]";
}

// Sends a request, whose body a worker parses, and runs only the tasks of its first turns.
std::shared_ptr<testing::TestExchange> begun(TestServer& server, std::string path, std::string body) {
  server.gate().allow(0);
  auto exchange = server.send("POST", std::move(path), std::move(body));
  bool has_begun = false;
  EXPECT_TRUE(server.io().run_until([&] { return std::exchange(has_begun, !server.io().is_empty()); }));
  EXPECT_FALSE(server.io().is_empty()) << "all choices have been started";
  return exchange;
}

// Starts all choices before the engine goes on, because the engine might otherwise end a choice before its
// abort arrives.
void start_the_rest(TestServer& server) {
  EXPECT_TRUE(server.io().run_until([&] { return server.io().is_empty(); }));
  server.gate().open();
}

// Aborts a running request by a prefix of its id, and returns its answer.
json::value aborted(TestServer& server, std::string path, std::string body) {
  const auto exchange = begun(server, std::move(path), std::move(body));
  const json::value abort = parsed(server.call("POST", "/abort_request", R"({"rid":"jo"})"));
  EXPECT_EQ(abort.at("num_requests").to_number<size_t>(), kPrompts * kChoicesOfEach);
  start_the_rest(server);
  EXPECT_TRUE(server.wait(*exchange));
  EXPECT_EQ(exchange->response.status, 200) << exchange->response.body;
  return parsed(exchange->response);
}

TEST(AbortRequest, MeansChoicesOfACompletionThatWaitToBeStarted) {
  TestServer server;
  const json::value answer =
      aborted(server, "/v1/completions",
              R"({"rid":"job","max_tokens":20,"ignore_eos":true,"n":64,"prompt":)" + prompts() + "}");
  EXPECT_EQ(answer.at("choices").as_array().size(), kPrompts * kChoicesOfEach);
  for (const json::value& choice : answer.at("choices").as_array())
    ASSERT_EQ(choice.at("finish_reason").as_string(), "abort") << choice;
}

TEST(AbortRequest, MeansChoicesOfGenerateThatWaitToBeStarted) {
  TestServer server;
  const json::value answer = aborted(
      server, "/generate",
      R"({"rid":"job","sampling_params":{"max_new_tokens":20,"ignore_eos":true,"n":64},"input_ids":)" +
          prompts() + "}");
  EXPECT_EQ(answer.as_array().size(), kPrompts * kChoicesOfEach);
  for (const json::value& choice : answer.as_array())
    ASSERT_EQ(choice.at("meta_info").at("finish_reason").at("type").as_string(), "abort") << choice;
}

TEST(AbortRequest, OfOneChoiceThatWaitsLeavesTheOthers) {
  TestServer server;
  const auto exchange =
      begun(server, "/v1/completions",
            R"({"rid":"job","max_tokens":2,"ignore_eos":true,"n":64,"prompt":)" + prompts() + "}");
  const json::value abort = parsed(server.call("POST", "/abort_request", R"({"rid":"job_4095"})"));
  EXPECT_EQ(abort.at("num_requests").to_number<int64_t>(), 1);
  start_the_rest(server);
  ASSERT_TRUE(server.wait(*exchange));
  const json::value answer = parsed(exchange->response);
  for (const json::value& choice : answer.at("choices").as_array()) {
    const bool is_meant = choice.at("index").to_number<int64_t>() == 4095;
    ASSERT_EQ(choice.at("finish_reason").as_string(), is_meant ? "abort" : "length") << choice;
  }
}

TEST(WaitingChoices, AreMarkedByTheirIdAndKeyUntilTheyAreStarted) {
  RequestRegistry registry;
  WaitingChoices alices(registry, "alice", {"job_0", "job_1", "job_2"});
  {
    WaitingChoices bobs(registry, "bob", {"job_0"});
    EXPECT_EQ(registry.mark_prefix("job", "").count, 4U) << "the admin means all keys";
    EXPECT_EQ(registry.mark_prefix("job", "bob").count, 1U);
    EXPECT_TRUE(bobs.set_started(0));
  }
  EXPECT_EQ(registry.mark_prefix("job", "bob").count, 0U);

  WaitingChoices next(registry, "alice", {"next_0", "next_1"});
  EXPECT_FALSE(next.set_started(0));
  EXPECT_EQ(registry.mark_prefix("next", "alice").count, 1U);
  EXPECT_TRUE(next.set_started(1));
}

TEST(WaitingChoices, ThatHaveTheirEngineIdAreAmongTheStarted) {
  RequestRegistry registry;
  WaitingChoices waiting(registry, "", {"job_0", "job_1"});
  ASSERT_TRUE(registry.reserve({.rid = "job_0", .key_name = ""}));
  EXPECT_EQ(registry.mark_prefix("job", "").count, 2U) << "its id is reserved only";
  registry.set({.rid = "job_0", .key_name = ""}, 7);
  const RequestRegistry::Meant meant = registry.mark_prefix("job", "");
  EXPECT_EQ(meant.started, std::vector<RequestId>{7});
  EXPECT_EQ(meant.count, 2U) << "the one that has just started counts once";
}

// Otherwise a client that repeats an abort would fill the engine's inbox.
TEST(RequestRegistry, AnAbortThatIsRepeatedMeansTheSameRequestsAndReturnsTheirIdsOnce) {
  RequestRegistry registry;
  for (const char* const rid : {"job_1", "job_2", "other"}) ASSERT_TRUE(registry.reserve({rid, "key"}));
  registry.set({"job_1", "key"}, 1);
  registry.set({"job_2", "key"}, 2);
  WaitingChoices waiting(registry, "key", {"job_3", "job_4", "job_5"});
  EXPECT_EQ(registry.mark_prefix("job_1", "key").started, std::vector<RequestId>{1});
  const RequestRegistry::Meant first = registry.mark_prefix("job", "");
  EXPECT_EQ(first.started, std::vector<RequestId>{2});
  EXPECT_EQ(first.count, 5U);
  const RequestRegistry::Meant again = registry.mark_prefix("job", "key");
  EXPECT_TRUE(again.started.empty());
  EXPECT_EQ(again.count, 5U);
  // Another request may use the id of one that has ended.
  registry.remove({"job_1", "key"}, 1);
  ASSERT_TRUE(registry.reserve({"job_1", "key"}));
  registry.set({"job_1", "key"}, 6);
  EXPECT_EQ(registry.mark_prefix("job", "key").started, std::vector<RequestId>{6});
}

TEST(WaitingChoices, AreMeantByEachPrefixOfTheirIdsAndByNoOther) {
  RequestRegistry registry;
  const std::vector<std::string> rids = {"job_10", "job_11", "job_2", "job_11_b"};
  for (const auto& [prefix, expected] :
       std::vector<std::pair<std::string, std::vector<bool>>>{{"", {true, true, true, true}},
                                                              {"j", {true, true, true, true}},
                                                              {"job_", {true, true, true, true}},
                                                              {"job_1", {true, true, false, true}},
                                                              {"job_11", {false, true, false, true}},
                                                              {"job_2", {false, false, true, false}},
                                                              {"job_3", {false, false, false, false}},
                                                              {"jab", {false, false, false, false}},
                                                              {"job_11_b_c", {false, false, false, false}}}) {
    WaitingChoices waiting(registry, "", rids);
    const auto count = static_cast<size_t>(std::count(expected.begin(), expected.end(), true));
    EXPECT_EQ(registry.mark_prefix(prefix, "").count, count) << prefix;
    EXPECT_EQ(registry.mark_prefix(prefix, "").count, count) << prefix << " again";
    for (size_t i = 0; i < rids.size(); ++i) EXPECT_EQ(waiting.set_started(i), expected[i]) << prefix << i;
    EXPECT_EQ(registry.mark_prefix(prefix, "").count, 0U) << prefix << " after the start";
  }
}

}  // namespace
}  // namespace hadal::server
