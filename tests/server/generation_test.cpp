// A request whose answer cannot be made ends with a reason and leaves nothing behind.
#include "server/generation.h"

#include <gtest/gtest.h>

#include <stdexcept>

#include "server/request_registry.h"
#include "tests/server/test_server.h"

namespace hadal::server {
namespace {

using testing::TestServer;

GenerationRequest long_request() {
  GenerationRequest request;
  request.rid = "job";
  request.input_ids = {3};
  request.sampling.max_new_tokens = 3000;
  request.sampling.ignore_eos = true;
  request.stream = true;
  return request;
}

TEST(Generation, AnAnswerThatCannotBeMadeEndsItsRequest) {
  TestServer server;
  server.gate().allow(2);  // the engine cannot end before its request fails
  ServerContext& context = server.server().context();
  std::optional<GenerationDelta> last;
  auto started = Generation::start(context, server.io(), long_request(), [&](GenerationDelta delta) {
    if (delta.finish_reason == FinishReason::kNone) throw std::runtime_error("no memory");
    last = std::move(delta);
  });
  ASSERT_TRUE(started.ok()) << started.status().message;
  ASSERT_TRUE(server.io().run_until([&] { return last.has_value(); }));
  server.gate().open();
  EXPECT_EQ(last->finish_reason, FinishReason::kAbort);
  EXPECT_EQ(last->abort_reason, AbortReason::kFault);
  EXPECT_EQ(last->matched, "no memory");
  ASSERT_TRUE(server.io().run_until([&] { return server.engine().stats().num_aborted == 1; }));
  EXPECT_TRUE(context.requests.reserve("job"));  // free again
}

TEST(Generation, ARidBelongsToOneRequestUntilThatEnds) {
  TestServer server;
  ServerContext& context = server.server().context();
  const auto ignore = [](const GenerationDelta&) {};
  const auto first = Generation::start(context, server.io(), long_request(), ignore);
  ASSERT_TRUE(first.ok());
  const auto second = Generation::start(context, server.io(), long_request(), ignore);
  ASSERT_FALSE(second.ok());
  EXPECT_NE(second.status().message.find("rid 'job' is in use"), std::string::npos);
  EXPECT_EQ(context.requests.find_prefix("job"), std::vector<RequestId>{(*first)->id()});
  (*first)->cancel();
  GenerationRequest refused = long_request();
  refused.input_ids = {};
  EXPECT_FALSE(Generation::start(context, server.io(), std::move(refused), ignore).ok());
  EXPECT_TRUE(context.requests.reserve("job"));  // the refused request keeps nothing
}

}  // namespace
}  // namespace hadal::server
