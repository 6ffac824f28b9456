// Tests bodies that are too large to be parsed on an I/O thread.
#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "server/generation/background_pool.h"
#include "server/generation/parse_task.h"
#include "server/json/json_fields.h"
#include "tests/server/test_server.h"

namespace hadal::server {
namespace {

using testing::parsed;
using testing::TestServer;

TEST(LargeBodies, BodiesWhoseToolsMustBeCheckedAreNeverParsedInline) {
  EXPECT_FALSE(is_parsed_inline(R"({"tools":[{"function":{"strict":true}}]})"));
  EXPECT_FALSE(is_parsed_inline(R"({"tools":[],"tool_choice":"required"})"));
  EXPECT_FALSE(is_parsed_inline(R"({"tools":[],"tool_ch\u006fice":"required"})"));
  EXPECT_TRUE(is_parsed_inline(R"({"tools":[]})"));
}

TEST(LargeBodies, AreParsedBesideTheIoThreadAndAnsweredLikeSmallOnes) {
  TestServer server;
  const std::string padding(kInlineBodyBytes, ' ');
  const std::string body = R"({"text":"Hello","sampling_params":{"max_new_tokens":4}})";
  const auto small = parsed(server.generate(body));
  const auto exchange = server.send("POST", "/generate", body + padding);
  EXPECT_FALSE(exchange->complete) << "the test's thread is the I/O thread";
  EXPECT_TRUE(exchange->request().body.empty());
  ASSERT_TRUE(server.wait(*exchange));
  EXPECT_EQ(parsed(exchange->response).at("text"), small.at("text"));
  EXPECT_EQ(server.generate("{" + padding).status, 400);
  EXPECT_EQ(server.call("POST", "/tokenize", R"({"prompt":"Hello"})" + padding).status, 200);
}

TEST(LargeBodies, BodiesThatMayHaveToolsAreLargeSooner) {
  const std::string padding(kInlineToolsBytes, ' ');
  for (const char* key : {R"("tools")", R"("t\u006fols")"}) {
    const std::string body = "{" + std::string(key) + ":[]}";
    EXPECT_TRUE(is_parsed_inline(R"({"tools":[]})"));
    EXPECT_FALSE(is_parsed_inline(body + padding)) << key;
  }
  EXPECT_TRUE(is_parsed_inline(R"({"text":"a"})" + padding));
}

TEST(LargeBodies, BodiesWithManyValuesAreLargeSooner) {
  const auto body = [](size_t num_commas) {
    std::string ids = "3";
    for (size_t i = 0; i < num_commas; ++i) ids += ",3";
    return R"({"tokens":[)" + ids + "]}";
  };
  EXPECT_TRUE(is_parsed_inline(body(kInlineCommas)));
  EXPECT_FALSE(is_parsed_inline(body(kInlineCommas + 1)));
  TestServer server;
  const auto few = server.send("POST", "/detokenize", body(kInlineCommas));
  EXPECT_TRUE(few->complete) << "the test's thread is the I/O thread";
  const auto many = server.send("POST", "/detokenize", body(kInlineCommas + 1));
  EXPECT_FALSE(many->complete);
  ASSERT_TRUE(server.wait(*many));
  EXPECT_EQ(many->response.status, 200) << many->response.body;
}

TEST(LargeBodies, BodiesThatMayHaveSeveralChoicesAreNeverParsedInline) {
  EXPECT_TRUE(is_parsed_inline(R"({"prompt":"say \"n\"","max_tokens":1})"));
  EXPECT_FALSE(is_parsed_inline(R"({"prompt":"a","n":128})"));
  EXPECT_FALSE(is_parsed_inline(R"({"prompt":"a","\u006e":128})"));
  TestServer server;
  const auto several =
      server.send("POST", "/generate", R"({"text":"Hello","sampling_params":{"n":2,"max_new_tokens":1}})");
  EXPECT_EQ(server.engine().stats().num_requests, 0) << "the test's thread is the I/O thread";
  ASSERT_TRUE(server.wait(*several));
  EXPECT_EQ(parsed(several->response).as_array().size(), 2U);
}

TEST(LargeBodies, TextsAreTokenisedAtOnceUpToALimit) {
  TestServer server;
  const auto body = [](const std::string& text) { return R"({"prompt":")" + text + "\"}"; };
  EXPECT_TRUE(server.send("POST", "/tokenize", body("Hello"))->complete);
  const auto large = server.send("POST", "/tokenize", body(std::string(kInlineBodyBytes, ' ')));
  EXPECT_FALSE(large->complete);
  ASSERT_TRUE(server.wait(*large));
  EXPECT_EQ(large->response.status, 200) << large->response.body;
}

TEST(LargeBodies, GenerateNothingForAClientThatHasGone) {
  TestServer server;
  const std::string body = R"({"text":"Hello","rid":"gone"})" + std::string(kInlineBodyBytes, ' ');
  const auto exchange = server.send("POST", "/generate", body);
  exchange->disconnect();
  EXPECT_EQ(server
                .generate(R"({"text":"Hello","sampling_params":{"max_new_tokens":1}})" +
                          std::string(kInlineBodyBytes, ' '))
                .status,
            200);
  EXPECT_EQ(exchange->num_answers, 0);
  EXPECT_EQ(server.engine().stats().num_requests, 1);
}

TEST(LargeBodies, WhatWaitsIsDroppedAtOnceWhenItsClientGoes) {
  TestServer server;
  ServerContext& context = server.server().context();
  std::promise<void> gate;
  const std::shared_future<void> opened = gate.get_future().share();
  for (int i = 0; i < 4; ++i) context.parsers.post([opened] { opened.wait(); }, std::to_string(i));
  auto charge = std::make_shared<int>();
  HttpRequest request{.method = "POST", .path = "/generate", .body = std::string(kInlineBodyBytes + 1, ' ')};
  request.body_charge = charge;
  const auto exchange = std::make_shared<testing::TestExchange>(server.io(), std::move(request));
  run_parse_work(context, exchange, ErrorStyle{}, [](std::string_view) -> ParseDone {
    ADD_FAILURE() << "its client has gone";
    return [](const std::shared_ptr<HttpExchange>&) {};
  });
  EXPECT_EQ(charge.use_count(), 2);
  exchange->disconnect();
  EXPECT_EQ(charge.use_count(), 1);
  EXPECT_EQ(exchange.use_count(), 1);
  gate.set_value();
}

TEST(LargeBodies, WithMoreValuesThanMemoryHoldsAreRefused) {
  std::string lists = R"({"text":"a","x":[)";
  for (int i = 0; i < 8'000'000; ++i) lists += "[],";
  const auto object = parse_json_object(lists + "[]]}");
  ASSERT_FALSE(object.ok());
  EXPECT_NE(object.status().message.find("256 MiB"), std::string::npos) << object.status().message;
}

}  // namespace
}  // namespace hadal::server
