// Tests which clients share cached prefixes: keys, salts, and what a count of cached tokens reveals.
#include <gtest/gtest.h>

#include <string>

#include <boost/json.hpp>

#include "server/admission/api_keys.h"
#include "server/admission/cache_salt.h"
#include "tests/server/test_server.h"

namespace hadal::server {
namespace {

using testing::parsed;
using testing::TestServer;
namespace json = boost::json;

testing::TestServerOptions with_keys(bool isolated) {
  testing::TestServerOptions options;
  options.server.keys = std::make_shared<KeyRing>(std::vector<ApiKey>{{"alice", "a"}, {"bob", "b"}}, "root");
  options.server.isolate_cache_by_key = isolated;
  return options;
}

// Returns the body for a prompt of `secret` tokens that Alice may have sent, and one guessed token more.
std::string guess_body(int64_t secret, const std::string& more = {}) {
  std::string ids = "3";
  for (int64_t i = 1; i < secret; ++i) ids += "," + std::to_string(10 + i);
  return R"({"input_ids":[)" + ids + R"(,9],"sampling_params":{"max_new_tokens":1})" + more + "}";
}

int64_t cached(TestServer& server, const std::string& key, const std::string& body) {
  const HttpResponse answer = server.call("POST", "/generate", body, {{"authorization", "Bearer " + key}});
  EXPECT_EQ(answer.status, 200) << answer.body;
  return parsed(answer).at("meta_info").at("cached_tokens").to_number<int64_t>();
}

TEST(CacheIsolation, AGuessOfANeighboursPromptFindsNothingWithIsolation) {
  for (const int64_t guessed : {64, 128, 150, 200}) {
    TestServer server(with_keys(true));
    EXPECT_EQ(cached(server, "a", guess_body(200)), 0);
    EXPECT_EQ(cached(server, "a", guess_body(150)), 150) << "a key's own prefixes are used";
    EXPECT_EQ(cached(server, "b", guess_body(guessed)), 0) << guessed;
    EXPECT_EQ(cached(server, "root", guess_body(guessed)), 0)
        << "the admin's key has no name, but is no client's";
  }
}

TEST(CacheIsolation, WithoutIsolationAGuessRevealsOnlyWholePages) {
  TestServer server(with_keys(false));
  EXPECT_EQ(cached(server, "a", guess_body(200)), 0);
  EXPECT_EQ(cached(server, "b", guess_body(63)), 0);
  EXPECT_EQ(cached(server, "b", guess_body(190)), 128);
  EXPECT_EQ(cached(server, "a", guess_body(200)), 200);
}

TEST(CacheIsolation, SaltsDivideFurther) {
  for (const bool isolated : {false, true}) {
    TestServer server(with_keys(isolated));
    EXPECT_EQ(cached(server, "a", guess_body(200, R"(,"cache_salt":"x")")), 0);
    EXPECT_EQ(cached(server, "a", guess_body(200)), 0);
    EXPECT_EQ(cached(server, "a", guess_body(200, R"(,"cache_salt":"y")")), 0);
    EXPECT_EQ(cached(server, "a", guess_body(200, R"(,"cache_salt":"x")")), 200);
    EXPECT_EQ(cached(server, "b", guess_body(200, R"(,"cache_salt":"x")")), isolated ? 0 : 192)
        << "who knows the salt of another key shares its prefixes only without isolation";
  }
}

TEST(CacheIsolation, EveryEndpointThatGeneratesAcceptsASalt) {
  testing::TestServerOptions options;
  options.chat_format = ChatFormat::kV31;
  options.server.enable_cache_report = true;
  TestServer server(std::move(options));
  const std::string words(400, 'x');
  const auto ask = [&](const std::string& path, const std::string& salt) {
    const std::string prompt = path == "/v1/completions"
                                   ? R"("prompt":")" + words + '"'
                                   : R"("messages":[{"role":"user","content":")" + words + R"("}])";
    const std::string more = salt.empty() ? "" : R"(,"cache_salt":")" + salt + path + '"';
    const HttpResponse answer = server.call("POST", path, "{" + prompt + R"(,"max_tokens":1)" + more + "}");
    EXPECT_EQ(answer.status, 200) << answer.body;
    const json::value usage = parsed(answer).at("usage");
    const auto* details = usage.as_object().if_contains("prompt_tokens_details");
    return details == nullptr || details->is_null() ? int64_t{0}
                                                    : details->at("cached_tokens").to_number<int64_t>();
  };
  for (const char* path : {"/v1/completions", "/v1/chat/completions"}) {
    EXPECT_EQ(ask(path, "one"), 0) << path;
    EXPECT_EQ(ask(path, "two"), 0) << path;
    EXPECT_GT(ask(path, "one"), 50) << path;
  }
  // Ollama's answers do not say what was cached, but a chat with the same prompt does.
  const auto ask_ollama = [&](std::string_view more) {
    const HttpResponse answer =
        server.call("POST", "/api/chat",
                    R"({"model":"m","stream":false,"options":{"num_predict":1},"messages":[{"role":"user",)" +
                        (R"("content":"secret )" + words) + R"("}])" + std::string(more) + "}");
    EXPECT_EQ(answer.status, 200) << answer.body;
  };
  const auto cached_in_chat = [&] {
    const json::value usage =
        parsed(
            server.call("POST", "/v1/chat/completions",
                        R"({"max_tokens":1,"messages":[{"role":"user","content":"secret )" + words + "\"}]}"))
            .at("usage");
    const auto* details = usage.as_object().if_contains("prompt_tokens_details");
    return details == nullptr || details->is_null() ? int64_t{0}
                                                    : details->at("cached_tokens").to_number<int64_t>();
  };
  ask_ollama(R"(,"cache_salt":"mine")");
  EXPECT_LT(cached_in_chat(), 10);
  const auto two = parsed(server.generate(
      R"({"text":["a","b"],"cache_salt":["one","two"],"sampling_params":{"max_new_tokens":1}})"));
  EXPECT_EQ(two.as_array().size(), 2U);
}

TEST(CacheIsolation, ABadSaltIsAnErrorThatNamesIt) {
  testing::TestServerOptions options;
  options.chat_format = ChatFormat::kV31;
  TestServer server(std::move(options));
  const std::string chat = R"("messages":[{"role":"user","content":"a"}])";
  for (const auto& [path, prompt] : {std::pair<const char*, std::string>{"/generate", R"("text":"a")"},
                                     {"/v1/completions", R"("prompt":"a")"},
                                     {"/v1/chat/completions", chat}}) {
    for (const std::string& salt :
         {std::string("\"\""), std::string("7"), '"' + std::string(257, 's') + '"'}) {
      const HttpResponse answer = server.call("POST", path, "{" + prompt + R"(,"cache_salt":)" + salt + "}");
      EXPECT_EQ(answer.status, 400) << path << salt;
      EXPECT_EQ(parsed(answer).at("error").at("param").as_string(), "cache_salt") << answer.body;
    }
    EXPECT_EQ(server.call("POST", path, "{" + prompt + R"(,"cache_salt":null})").status, 200);
  }
}

TEST(CacheSalts, DependOnTheKeyAndOnTheField) {
  const CacheSalt none;
  const CacheSalt x{.high = 1, .low = 2};
  EXPECT_EQ(salt_of_key("", x), x);
  EXPECT_EQ(salt_of_key("", none), none);
  EXPECT_NE(salt_of_key("alice", none), none);
  EXPECT_NE(salt_of_key("alice", none), salt_of_key("bob", none));
  EXPECT_NE(salt_of_key("alice", x), salt_of_key("alice", none));
  EXPECT_EQ(salt_of_key("alice", x), salt_of_key("alice", x));
}

}  // namespace
}  // namespace hadal::server
