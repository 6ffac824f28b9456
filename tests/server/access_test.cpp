// Tests which client may do what (keys, hosts, methods), what a refusal repeats, and what health probes cost.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "server/admission/api_keys.h"
#include "server/generation/parse_task.h"
#include "server/json/api_error.h"
#include "tests/server/test_server.h"

namespace hadal::server {
namespace {

using testing::TestServer;

TEST(KeyFile, HasNamesKeysAndComments) {
  const auto keys = parse_key_file("# c\n\nalice  a1\r\n b2\n\tbob b3\n");
  ASSERT_TRUE(keys.ok()) << keys.status().message;
  ASSERT_EQ(keys->size(), 3U);
  EXPECT_EQ((*keys)[0].name + "=" + (*keys)[0].key, "alice=a1");
  EXPECT_EQ((*keys)[1].name + "=" + (*keys)[1].key, "line4=b2");
  EXPECT_EQ((*keys)[2].name + "=" + (*keys)[2].key, "bob=b3");
}

TEST(KeyFile, ErrorsNameTheLineAndNeverTheKey) {
  for (const std::string& text :
       {std::string("a secret more"), std::string("ok secret\nb secret"), "x secret" + std::string(2000, 's'),
        std::string("x secret\x01"), std::string(200, 'n') + " secret", std::string("admin secret")}) {
    const auto keys = parse_key_file(text);
    ASSERT_FALSE(keys.ok());
    EXPECT_NE(keys.status().message.find("line "), std::string::npos);
    EXPECT_EQ(keys.status().message.find("secret"), std::string::npos) << keys.status().message;
  }
  EXPECT_FALSE(parse_key_file("# nothing\n").ok()) << "a file without keys must not open the server";
}

TEST(KeyRing, FindsEveryKeyAndForgetsReplacedOnes) {
  KeyRing ring({{"alice", "a1"}, {"bob", "b1"}}, "root");
  EXPECT_EQ(ring.find("a1").name, "alice");
  EXPECT_EQ(ring.find("b1").name, "bob");
  EXPECT_EQ(ring.find("root").rights, KeyRing::Rights::kAdmin);
  for (const std::string& wrong :
       {std::string(), std::string("a"), std::string("a11"), std::string(5000, 'a')})
    EXPECT_EQ(ring.find(wrong).rights, KeyRing::Rights::kNone);
  ring.replace({{"alice", "a2"}});
  EXPECT_EQ(ring.find("a1").rights, KeyRing::Rights::kNone);
  EXPECT_EQ(ring.find("a2").name, "alice");
  EXPECT_FALSE(KeyRing({}, "").find("").rights != KeyRing::Rights::kNone);
}

TEST(KeyRing, FindsEachOfTenThousandKeysAndNoOther) {
  std::vector<ApiKey> keys;
  for (int i = 0; i < 10'000; ++i) keys.push_back({fmt::format("name-{}", i), fmt::format("key-{}", i)});
  const KeyRing ring(keys, "root");
  for (const ApiKey& key : keys) {
    ASSERT_EQ(ring.find(key.key).name, key.name);
    ASSERT_EQ(ring.find(key.key + "x").rights, KeyRing::Rights::kNone);
  }
  EXPECT_EQ(ring.find("root").rights, KeyRing::Rights::kAdmin);
  EXPECT_TRUE(ring.needs_key());
}

TEST(Hosts, BrowsersMustNameAnAllowedOne) {
  TestServer server({.server = {.allowed_hosts = {"box.example"}}});
  const auto status = [&](const std::string& host) {
    return server.call("GET", "/model_info", "", {{"host", host}, {"origin", "http://" + host}}).status;
  };
  for (const char* host : {"localhost", "LOCALHOST:30000", "a.localhost", "127.0.0.1:30000", "10.1.2.3",
                           "[::1]:30000", "[2001:db8::1]", "Box.Example:80"})
    EXPECT_EQ(status(host), 200) << host;
  for (const char* host :
       {"evil.example", "evillocalhost", "box.example.evil", "127.0.0.1.evil", "[evil]", ""})
    EXPECT_EQ(status(host), 403) << host;
  EXPECT_EQ(server.call("GET", "/model_info", "", {{"host", "evil.example"}}).status, 200);
}

TEST(Admission, BodiesAreReadOnlyWhereTheyAreNeeded) {
  TestServer server({.server = {.keys = testing::keys_of("k")}});
  const auto limit = [&](const char* method, const char* path) {
    HttpRequest request{.method = method, .path = path, .headers = {{"authorization", "Bearer k"}}};
    const HttpAdmission admission = server.server().admit(request);
    EXPECT_FALSE(admission.refusal.has_value()) << path;
    return admission.max_body_bytes;
  };
  for (const char* path : {"/health", "/ping", "/health_generate", "/flush_cache", "/continue_generation"})
    EXPECT_EQ(limit("POST", path), 0U) << path;
  for (const char* path : {"/model_info", "/metrics", "/v1/models", "/"})
    EXPECT_EQ(limit("GET", path), 0U) << path;
  EXPECT_EQ(limit("POST", "/abort_request"), size_t{4} << 10);
  EXPECT_EQ(limit("POST", "/generate"), SIZE_MAX);
}

// The log lines that clients without a key cause are bounded (server/http/line_budget.h). The lines of
// clients with a key are not.
TEST(AccessLog, OnlyWhatStrangersMayCauseIsBounded) {
  const auto always = [](TestServer& server, const char* method, const char* path, const char* key) {
    HttpRequest request{.method = method, .path = path, .headers = {{"authorization", key}}};
    return server.server().admit(request).always_logged;
  };
  TestServer with_key({.server = {.keys = testing::keys_of("k")}});
  EXPECT_TRUE(always(with_key, "POST", "/generate", "Bearer k"));
  EXPECT_TRUE(always(with_key, "GET", "/health", "Bearer k"));
  EXPECT_TRUE(always(with_key, "GET", "/nowhere", "Bearer k"));
  for (const char* path : {"/health", "/ping", "/metrics", "/"})
    EXPECT_FALSE(always(with_key, "GET", path, "")) << path;
  TestServer open;
  EXPECT_TRUE(always(open, "POST", "/generate", ""));
  EXPECT_FALSE(always(open, "GET", "/health", ""));
}

TEST(Health, AnyNumberOfProbesCostsOneToken) {
  TestServer server;
  server.gate().allow(0);
  std::vector<std::shared_ptr<testing::TestExchange>> asked;
  for (int i = 0; i < 200; ++i) asked.push_back(server.send("GET", "/health_generate"));
  asked[0]->disconnect();  // the others still get their answer
  server.gate().open();
  for (size_t i = 1; i < asked.size(); ++i) {
    ASSERT_TRUE(server.wait(*asked[i]));
    EXPECT_EQ(asked[i]->response.status, 200);
  }
  EXPECT_EQ(server.engine().stats().generation_tokens, 1);
}

TEST(Health, ProbesOneAfterTheOtherShareATokenForHalfASecond) {
  TestServer server;
  for (int i = 0; i < 20; ++i) EXPECT_EQ(server.call("GET", "/health_generate", "").status, 200);
  EXPECT_LT(server.engine().stats().generation_tokens, 20);
}

TEST(Errors, RepeatAtMostSixtyFourCharacters) {
  TestServer server;
  const std::string big(1'000'000, 'x');
  for (const std::string& body :
       {"{\"" + big + "\":1}", "{\"text\":\"a\",\"sampling_params\":{\"" + big + "\":1}}",
        "{\"text\":\"a\",\"sampling_params\":{\"temperature\":\"" + big + "\"}}",
        "{\"text\":\"a\",\"stream\":[\"" + big + "\"]}"}) {
    const HttpResponse answer = server.generate(body);
    EXPECT_EQ(answer.status, 400);
    EXPECT_LT(answer.body.size(), 1000U);
  }
  EXPECT_LT(server.call("GET", "/" + big).body.size(), 1000U);
}

}  // namespace
}  // namespace hadal::server
