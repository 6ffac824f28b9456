// Tests the token buckets of clients. The tests set the time.
#include "server/admission/rate_limit.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

#include <boost/json.hpp>

#include "server/admission/api_keys.h"
#include "server/admission/request_gate.h"
#include "tests/server/test_server.h"

namespace hadal::server {
namespace {

using Clock = RateLimiter::Clock;
using testing::TestServer;

Clock::time_point at_second(double second) {
  return Clock::time_point{} + std::chrono::hours(1) +
         std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(second));
}

std::map<std::string, std::string> map_of(const HeaderList& headers) {
  return {headers.begin(), headers.end()};
}

TEST(RateLimits, AreTwoNumbers) {
  const RateLimits limits = parse_rate_limits("0.5,60000", "--rate-limit").value();
  EXPECT_EQ(limits.requests_per_second, 0.5);
  EXPECT_EQ(limits.tokens_per_minute, 60000);
  EXPECT_EQ(parse_rate_limits("0,100", "f")->requests_per_second, 0);
  EXPECT_EQ(parse_rate_limits("3,0", "f")->tokens_per_minute, 0);
  for (const char* text : {"", "5", "5,", ",5", "5,6,7", "0,0", "-1,5", "5,x", "nan,5", "inf,5", "1e5,5",
                           "5 ,6", "1,0.5", "9999999999999,1"}) {
    const auto wrong = parse_rate_limits(text, "--rate-limit");
    ASSERT_FALSE(wrong.ok()) << text;
    EXPECT_TRUE(wrong.status().message.starts_with(fmt::format("--rate-limit is '{}'; must ", text)));
  }
}

TEST(RateLimits, EachMistakeHasATextOfItsOwn) {
  for (const auto& [text, says] : std::vector<std::pair<const char*, const char*>>{
           {"5", "two numbers with a comma between them"},
           {"5,6,7", "two numbers with a comma between them"},
           {"x,5",
            "begin with requests a second, a number in [0, 1e+12] without an exponent, but there is 'x'"},
           {"5,-1",
            "end with tokens a minute, 0 (no limit) or a number in [1, 1e+12] without an exponent, but "
            "there is '-1'"},
           {"1,0.5", "but there is '0.5'"},
           {"0,0", "a number above 0"}}) {
    const auto wrong = parse_rate_limits(text, "--rate-limit");
    ASSERT_FALSE(wrong.ok()) << text;
    EXPECT_NE(wrong.status().message.find(says), std::string::npos) << wrong.status().message;
  }
}

TEST(RateLimiter, RequestsBeyondTheRateWait) {
  RateLimiter limiter({.requests_per_second = 2});
  EXPECT_TRUE(limiter.admit("a", at_second(0)).admitted);
  EXPECT_TRUE(limiter.admit("a", at_second(0)).admitted);
  const auto refused = limiter.admit("a", at_second(0));
  EXPECT_FALSE(refused.admitted);
  EXPECT_EQ(refused.retry_after_s, 1);
  EXPECT_NE(refused.reason.find("2 requests a second"), std::string::npos) << refused.reason;
  EXPECT_TRUE(limiter.admit("b", at_second(0)).admitted) << "each client has buckets of its own";
  EXPECT_FALSE(limiter.admit("a", at_second(0.49)).admitted) << "what was refused has taken nothing";
  EXPECT_TRUE(limiter.admit("a", at_second(0.51)).admitted);
  EXPECT_FALSE(limiter.admit("a", at_second(0.6)).admitted);
  int admitted = 0;
  for (int i = 0; i < 1000; ++i) admitted += limiter.admit("a", at_second(10 + 0.01 * i)).admitted ? 1 : 0;
  EXPECT_EQ(admitted, 2 + 19) << "a second's worth at once, then the rate";
}

TEST(RateLimiter, ASlowRateAllowsOneRequestAtOnce) {
  RateLimiter limiter({.requests_per_second = 0.1});
  EXPECT_TRUE(limiter.admit("a", at_second(0)).admitted);
  EXPECT_EQ(limiter.admit("a", at_second(0)).retry_after_s, 10);
  EXPECT_TRUE(limiter.admit("a", at_second(10.01)).admitted);
}

TEST(RateLimiter, ADebtOfTokensIsPaidBeforeTheNextRequest) {
  RateLimiter limiter({.tokens_per_minute = 600});
  EXPECT_TRUE(limiter.admit("a", at_second(0)).admitted);
  limiter.take_tokens("a", 500, at_second(0));
  EXPECT_TRUE(limiter.admit("a", at_second(0)).admitted) << "there are tokens left, so a request begins";
  limiter.take_tokens("a", 700, at_second(0));
  const auto refused = limiter.admit("a", at_second(0));
  EXPECT_FALSE(refused.admitted);
  EXPECT_EQ(refused.retry_after_s, 61) << "600 tokens of debt at 10 a second, and one to begin with";
  EXPECT_FALSE(limiter.admit("a", at_second(60)).admitted);
  EXPECT_TRUE(limiter.admit("a", at_second(60.2)).admitted);
}

TEST(RateLimiter, HeadersHaveOpenAIsNamesAndForms) {
  RateLimiter limiter({.requests_per_second = 5, .tokens_per_minute = 60'000});
  const auto first = map_of(limiter.admit("a", at_second(0)).headers);
  const std::map<std::string, std::string> expected = {
      {"x-ratelimit-limit-requests", "5"},       {"x-ratelimit-remaining-requests", "4"},
      {"x-ratelimit-reset-requests", "200ms"},   {"x-ratelimit-limit-tokens", "60000"},
      {"x-ratelimit-remaining-tokens", "60000"}, {"x-ratelimit-reset-tokens", "0ms"}};
  EXPECT_EQ(first, expected);
  limiter.take_tokens("a", 90'000, at_second(0));
  const auto then = map_of(limiter.admit("a", at_second(0)).headers);
  EXPECT_EQ(then.at("x-ratelimit-remaining-tokens"), "0");
  EXPECT_EQ(then.at("x-ratelimit-reset-tokens"), "1m30s");
  EXPECT_EQ(RateLimiter({.requests_per_second = 1}).admit("a", at_second(0)).headers.size(), 3U)
      << "what has no limit has no header";
  EXPECT_EQ(format_reset(0.0165), "17ms");
  EXPECT_EQ(format_reset(8.64), "8.64s");
  EXPECT_EQ(format_reset(360), "6m0s");
  EXPECT_EQ(format_reset(3661), "1h1m1s");
}

TEST(RateLimiter, RemembersABoundedNumberOfClients) {
  RateLimiter limiter({.requests_per_second = 1, .tokens_per_minute = 60}, /*max_clients=*/100);
  for (int i = 0; i < 100; ++i) limiter.take_tokens(std::to_string(i), 1000, at_second(0));
  EXPECT_EQ(limiter.num_clients(), 100U);
  // All clients are in debt, so new clients share one pair of buckets.
  EXPECT_TRUE(limiter.admit("x", at_second(0.1)).admitted);
  EXPECT_FALSE(limiter.admit("y", at_second(0.1)).admitted);
  EXPECT_FALSE(limiter.admit("5", at_second(0.1)).admitted) << "nobody's debt is forgotten";
  EXPECT_EQ(limiter.num_clients(), 100U);
  // After their debts are paid, the clients are forgotten, which changes nothing for them.
  EXPECT_TRUE(limiter.admit("y", at_second(2000)).admitted);
  EXPECT_EQ(limiter.num_clients(), 1U);
}

TEST(RateLimiter, ManyHonestClientsAreForgottenAgain) {
  RateLimiter limiter({.requests_per_second = 1});
  for (int i = 0; i < 100'000; ++i)
    EXPECT_TRUE(limiter.admit(std::to_string(i), at_second(0.01 * i)).admitted);
  EXPECT_LT(limiter.num_clients(), 5000U);
}

TEST(RateLimiter, TimeThatGoesBackFillsNothing) {
  RateLimiter limiter({.requests_per_second = 1});
  EXPECT_TRUE(limiter.admit("a", at_second(100)).admitted);
  EXPECT_FALSE(limiter.admit("a", at_second(50)).admitted);
  EXPECT_FALSE(limiter.admit("a", at_second(100.5)).admitted);
  EXPECT_TRUE(limiter.admit("a", at_second(101)).admitted);
}

// ---- at the gate
// -------------------------------------------------------------------------------------------

TEST(RequestGate, RefusesBeforeTheBodyAndSaysWhen) {
  const auto keys = std::make_shared<KeyRing>(std::vector<ApiKey>{{"alice", "a"}, {"bob", "b"}}, "root");
  Router router(keys, {});
  const auto nothing = [](const std::shared_ptr<HttpExchange>&) {};
  router.add(
      {.method = "POST", .path = "/v1/chat/completions", .style = ErrorStyle::kOpenAi, .handler = nothing});
  router.add({.method = "GET", .path = "/model_info", .handler = nothing});
  router.add({.method = "GET", .path = "/health", .access = Access::kOpen, .handler = nothing});
  const RequestGate gate(router, std::make_shared<RateLimiter>(RateLimits{.requests_per_second = 1}),
                         nullptr);
  const auto ask = [&](const char* key, double time, const char* method = "POST",
                       const char* path = "/v1/chat/completions") {
    return gate.admit({.method = method,
                       .path = path,
                       .headers = {{"authorization", std::string("Bearer ") + key}},
                       .client = "peer:127.0.0.1"},
                      at_second(time));
  };
  const HttpAdmission first = ask("a", 0);
  EXPECT_FALSE(first.refusal.has_value());
  EXPECT_EQ(map_of(first.answer_headers).at("x-ratelimit-remaining-requests"), "0");
  const HttpAdmission second = ask("a", 0);
  ASSERT_TRUE(second.refusal.has_value());
  EXPECT_EQ(second.refusal->status, 429);
  EXPECT_EQ(second.reason, Refusal::kRateLimit);
  EXPECT_EQ(map_of(second.refusal->headers).at("Retry-After"), "1");
  EXPECT_EQ(map_of(second.refusal->headers).at("x-ratelimit-reset-requests"), "1s");
  const auto error = testing::parsed(*second.refusal).at("error");
  EXPECT_EQ(error.at("code").as_string(), "rate_limit_exceeded");
  EXPECT_FALSE(ask("b", 0).refusal.has_value()) << "another key";
  for (int i = 0; i < 10; ++i) {
    EXPECT_FALSE(ask("root", 0).refusal.has_value()) << "the admin";
    EXPECT_FALSE(ask("a", 0, "GET", "/model_info").refusal.has_value()) << "no tokens are made";
    EXPECT_FALSE(ask("a", 0, "GET", "/health").refusal.has_value());
    EXPECT_EQ(ask("wrong", 0).refusal->status, 401) << "what has no key takes nothing from anybody";
  }
  EXPECT_FALSE(ask("a", 1.1).refusal.has_value());
}

TEST(RequestGate, ChargesPromptsAndAnswersEvenToClientsThatLeave) {
  TestServer server({.server = {.rate_limits = {.tokens_per_minute = 100}}});
  const std::string body =
      R"({"input_ids":[3,4,5,6,7,8,9,10],"sampling_params":{"n":2,"max_new_tokens":40,"ignore_eos":true}})";
  EXPECT_EQ(server.generate(body).status, 200);
  const auto left = [&] {
    const HttpAdmission admission =
        server.server().admit({.method = "POST", .path = "/generate", .client = "peer:127.0.0.1"});
    return admission.refusal ? -1
                             : std::stoi(map_of(admission.answer_headers).at("x-ratelimit-remaining-tokens"));
  };
  // The tokens that were taken come back in 52 seconds.
  const int after = left();
  EXPECT_GE(after, 100 - 8 - 2 * 40);
  EXPECT_LT(after, 100);
  server.gate().allow(80);
  const auto gone =
      server.send("POST", "/generate",
                  R"({"input_ids":[3],"sampling_params":{"max_new_tokens":4000,"ignore_eos":true}})");
  ASSERT_TRUE(server.io().run_until([&] { return server.engine().stats().generation_tokens >= 80 + 60; }));
  gone->disconnect();
  server.gate().open();
  EXPECT_TRUE(server.io().run_until([&] { return left() < after - 10; })) << left();
}

}  // namespace
}  // namespace hadal::server
