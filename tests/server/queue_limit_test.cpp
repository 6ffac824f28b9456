// Tests how the queue's limit appears to clients: a request starts whole or not at all, and one client's
// requests leave places for another's.
#include <gtest/gtest.h>

#include <string>

#include <boost/json.hpp>

#include "server/admission/api_keys.h"
#include "tests/server/test_server.h"

namespace hadal::server {
namespace {

using testing::has_retry_after;
using testing::parsed;
using testing::TestExchange;
using testing::TestServer;

const std::string kOne = R"({"input_ids":[3],"sampling_params":{"max_new_tokens":2}})";

// Returns a queue of 16 places, of which one client may have 14, and two clients with keys.
testing::TestServerOptions sixteen_places() {
  testing::TestServerOptions options;
  options.engine.max_running_requests = 1;
  options.engine.max_queued_requests = 16;
  options.chat_format = ChatFormat::kV31;
  options.server.keys = std::make_shared<KeyRing>(std::vector<ApiKey>{{"alice", "a"}, {"bob", "b"}}, "root");
  return options;
}

HeaderList key(const std::string& key) {
  return {{"authorization", "Bearer " + key}};
}

// Returns requests of `count` choices, one for each path that generates.
std::vector<std::pair<std::string, std::string>> bodies_of(int64_t count) {
  const std::string n = std::to_string(count);
  std::string prompts = "\"a\"";
  for (int64_t i = 1; i < count; ++i) prompts += ",\"a\"";
  return {{"/generate", R"({"text":"a","sampling_params":{"max_new_tokens":2,"n":)" + n + "}}"},
          {"/generate", R"({"text":"a","stream":true,"sampling_params":{"max_new_tokens":2,"n":)" + n + "}}"},
          {"/v1/completions", R"({"prompt":[)" + prompts + R"(],"max_tokens":2})"},
          {"/v1/chat/completions",
           R"({"messages":[{"role":"user","content":"a"}],"max_tokens":2,"n":)" + n + "}"}};
}

TEST(QueueLimit, ABatchThatDoesNotFitStartsNothingAndIsA503) {
  TestServer server(sixteen_places());
  server.engine().pause();
  std::vector<std::shared_ptr<TestExchange>> waiting;
  for (int i = 0; i < 10; ++i) waiting.push_back(server.send("POST", "/generate", kOne, key("a")));
  for (const auto& [path, body] : bodies_of(5)) {
    const HttpResponse refused = server.call("POST", path, body, key("a"));
    EXPECT_EQ(refused.status, 503) << path << refused.body;
    EXPECT_TRUE(has_retry_after(refused)) << path;
    EXPECT_NE(refused.body.find("10 of its requests are waiting, and this one needs 5 places; allowed: 14"),
              std::string::npos)
        << refused.body;
  }
  for (int i = 0; i < 2; ++i) server.engine().check_integrity();  // now the figures are published
  EXPECT_EQ(server.engine().stats().num_requests, 10);
  EXPECT_EQ(server.engine().stats().num_aborted, 0);
  int64_t num_requests = 10;
  for (const auto& [path, body] : bodies_of(4)) {
    const auto last = server.send("POST", path, body, key("a"));
    num_requests += 4;
    ASSERT_TRUE(server.io().run_until([&] {
      server.engine().check_integrity();
      return server.engine().stats().num_requests == num_requests || last->complete;
    }));
    EXPECT_EQ(last->num_answers, 0) << path << last->response.body;
    last->disconnect();
    for (int i = 0; i < 2; ++i) server.engine().check_integrity();  // its places are free again
  }
  server.engine().resume();
  for (const auto& exchange : waiting) {
    ASSERT_TRUE(server.wait(*exchange));
    EXPECT_EQ(exchange->response.status, 200);
  }
}

TEST(QueueLimit, AClientThatFillsItsPartLeavesRoomForAnother) {
  TestServer server(sixteen_places());
  server.engine().pause();
  std::vector<std::shared_ptr<TestExchange>> waiting;
  for (int i = 0; i < 14; ++i) waiting.push_back(server.send("POST", "/generate", kOne, key("a")));
  const HttpResponse refused = server.call("POST", "/generate", kOne, key("a"));
  EXPECT_EQ(refused.status, 503);
  EXPECT_NE(refused.body.find("14 of its requests are waiting; allowed: 14"), std::string::npos)
      << refused.body;
  for (int i = 0; i < 2; ++i) waiting.push_back(server.send("POST", "/generate", kOne, key("b")));
  const HttpResponse full = server.call("POST", "/generate", kOne, key("b"));
  EXPECT_EQ(full.status, 503);
  EXPECT_NE(full.body.find("the queue is full: 16 requests are waiting"), std::string::npos) << full.body;
  server.engine().resume();
  for (const auto& exchange : waiting) {
    ASSERT_TRUE(server.wait(*exchange));
    EXPECT_EQ(exchange->response.status, 200) << exchange->response.body;
  }
}

TEST(QueueLimit, ARequestThatIsRefusedLaterReturnsItsPlaces) {
  TestServer server(sixteen_places());
  const std::pair<const char*, const char*> refused[] = {
      {"/generate", R"({"input_ids":[[3],[4]],"rid":["x","x"],"sampling_params":{"n":7}})"},
      {"/generate", R"({"input_ids":[3],"sampling_params":{"n":14,"regex":"a"}})"},
      {"/v1/completions", R"({"prompt":[[3],[4]],"rid":["x","x"]})"},
      {"/v1/completions", R"({"prompt":[3],"n":14,"regex":"a"})"},
      {"/v1/chat/completions", R"({"messages":[{"role":"user","content":"a"}],"n":14,"regex":"a"})"}};
  for (const auto& [path, body] : refused) {
    for (int i = 0; i < 8; ++i) {  // even two places each would fill the queue
      const HttpResponse answer = server.call("POST", path, body, key("a"));
      EXPECT_EQ(answer.status, 400) << path << answer.body;
    }
  }
  for (const auto& [path, body] : bodies_of(14)) {
    const auto whole = server.send("POST", path, body, key("a"));
    ASSERT_TRUE(server.wait(*whole));
    EXPECT_EQ(whole->response.status, 200) << path << whole->response.body;
  }
}

TEST(QueueLimit, AClientThatLeavesWhileItsChoicesAreStartedStartsNoMoreAndReturnsItsPlaces) {
  testing::TestServerOptions options;
  options.engine.max_running_requests = 1;
  options.engine.max_queued_requests = 2400;  // one client may have 2,100 of them
  std::string prompts = "[[3]";
  for (int i = 1; i < 16; ++i) prompts += ",[3]";
  prompts += "]";
  const std::pair<const char*, std::string> requests[] = {
      {"/generate", R"({"input_ids":)" + prompts + R"(,"sampling_params":{"max_new_tokens":4,"n":128}})"},
      {"/v1/completions", R"({"prompt":)" + prompts + R"(,"max_tokens":4,"n":128})"}};
  for (const auto& [path, body] : requests) {
    TestServer server(options);
    server.engine().pause();
    const auto num_started = [&] {
      server.engine().check_integrity();
      return server.engine().stats().num_requests;
    };
    const auto leaves = server.send("POST", path, body);
    ASSERT_TRUE(server.io().run_until([&] { return num_started() > 0; }));
    const int64_t started = num_started();
    EXPECT_LT(started, 16 * 128) << path;
    leaves->disconnect();
    server.engine().resume();
    // There are places for this request only if those of the other request are free again.
    ASSERT_TRUE(server.io().run_until([&] {
      server.engine().check_integrity();
      return server.engine().stats().num_aborted == started && server.io().is_empty();
    }));
    const auto stays = server.send("POST", path, body);
    ASSERT_TRUE(server.wait(*stays));
    EXPECT_EQ(stays->response.status, 200) << stays->response.body;
    EXPECT_EQ(num_started(), started + 16 * 128) << path;
    EXPECT_EQ(leaves->num_answers, 0);
  }
}

TEST(QueueLimit, ARequestThatCanNeverFitIsA400ThatNamesTheCounts) {
  TestServer server(sixteen_places());
  for (const auto& [path, body] : bodies_of(15)) {
    const HttpResponse refused = server.call("POST", path, body, key("a"));
    EXPECT_EQ(refused.status, 400) << path << refused.body;
    EXPECT_FALSE(has_retry_after(refused));
    EXPECT_NE(refused.body.find("the request has 15 generations"), std::string::npos) << refused.body;
    EXPECT_NE(refused.body.find("allowed: 14"), std::string::npos) << refused.body;
  }
  EXPECT_EQ(server.engine().stats().num_requests, 0);
  EXPECT_EQ(server.call("POST", "/generate", kOne, key("a")).status, 200);
}

TEST(QueueLimit, TheLimitInForceIsInTheServersInformation) {
  const auto shown = [](const EngineOptions& engine) {
    TestServer server({.engine = engine});
    return parsed(server.call("GET", "/get_server_info")).at("max_queued_requests");
  };
  EXPECT_EQ(shown({.max_queued_requests = 16}), boost::json::value(16));
  EXPECT_EQ(shown({.max_running_requests = 512, .max_queued_requests = kDefaultMaxQueued}),
            boost::json::value(8192));
  EXPECT_TRUE(shown({}).is_null()) << "no limit";
}

}  // namespace
}  // namespace hadal::server
