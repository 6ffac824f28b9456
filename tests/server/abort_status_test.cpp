// Tests what a client is told of a generation that was aborted: both APIs use one table.
#include <gtest/gtest.h>

#include <string>
#include <thread>

#include <boost/json.hpp>

#include "server/json/api_error.h"
#include "tests/server/test_server.h"

namespace hadal::server {
namespace {

using testing::events_of;
using testing::parsed;
using testing::TestServer;
namespace json = boost::json;

TEST(AbortStatus, IsAStatusOnOpenAisPathsAndAnAnswerOnGenerate) {
  const auto openai = [](AbortReason reason) {
    return abort_status(ErrorStyle::kOpenAi, reason).value_or(0);
  };
  const auto native = [](AbortReason reason) {
    return abort_status(ErrorStyle::kSglang, reason).value_or(0);
  };
  EXPECT_EQ(openai(AbortReason::kNone), 0);
  EXPECT_EQ(openai(AbortReason::kClient), 0) << "who asked for the abort gets an answer";
  EXPECT_EQ(openai(AbortReason::kShutdown), 503);
  EXPECT_EQ(openai(AbortReason::kFault), 500);
  EXPECT_EQ(openai(AbortReason::kRequest), 400);
  EXPECT_EQ(openai(AbortReason::kMemory), 503);
  for (const AbortReason reason : {AbortReason::kNone, AbortReason::kClient, AbortReason::kShutdown,
                                   AbortReason::kFault, AbortReason::kRequest})
    EXPECT_EQ(native(reason), 0) << static_cast<int>(reason);
  EXPECT_EQ(native(AbortReason::kMemory), 503);
}

TEST(AbortStatus, AShutdownIsAnAnswerOfGenerateThatSaysWhy) {
  TestServer server;
  server.gate().allow(1);
  const auto ask = [&](const char* fields) {
    return server.send(
        "POST", "/generate",
        std::string(R"({"input_ids":[3],"sampling_params":{"max_new_tokens":3000,"ignore_eos":true})") +
            fields + "}");
  };
  const auto whole = ask("");
  const auto stream = ask(R"(,"stream":true)");
  ASSERT_TRUE(server.io().run_until([&] {
    server.gate().allow(1);
    return stream->num_writes > 0;
  }));
  std::thread drain([&] { server.engine().drain(std::chrono::milliseconds(0)); });
  const bool ended = server.io().run_until([&] {
    server.gate().allow(1);
    return whole->complete && stream->complete;
  });
  server.gate().open();
  drain.join();
  ASSERT_TRUE(ended);
  EXPECT_EQ(whole->response.status, 200) << whole->response.body;
  const json::value last(events_of(stream->response.body).back());
  for (const json::value& answer : {parsed(whole->response), last}) {
    const json::value& reason = answer.at("meta_info").at("finish_reason");
    EXPECT_EQ(reason.at("type").as_string(), "abort") << answer;
    EXPECT_FALSE(reason.at("message").as_string().empty()) << answer;
    EXPECT_FALSE(answer.as_object().contains("error")) << answer;
  }
}

}  // namespace
}  // namespace hadal::server
