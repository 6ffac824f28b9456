// Tests that a request whose answer cannot be made ends with a reason and leaves nothing behind, and that a
// request with many log-probabilities is delivered in many tasks.
#include "server/generation/generation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>

#include "server/generation/delta_pieces.h"
#include "server/generation/request_registry.h"
#include "tests/server/http_test_server.h"
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
  EXPECT_TRUE(context.requests.reserve({"job", ""}));  // free again
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
  EXPECT_TRUE(context.requests.reserve({"job", ""}));  // the refused request keeps nothing
}

// Returns a request with 400 scored tokens of prompt and an answer of 100, each with 127 alternatives.
GenerationRequest scored_request(bool stream) {
  GenerationRequest request;
  std::vector<int32_t> ids(401);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = 10 + static_cast<int32_t>(i);
  request.input_ids = std::move(ids);
  request.sampling.max_new_tokens = 100;
  request.sampling.ignore_eos = true;
  request.logprobs = {.enabled = true, .start = 0, .top_num = 127};
  request.stream = stream;
  request.keeps_answer = !stream;
  return request;
}
constexpr size_t kPositionsPerPiece = kLogprobsPerPiece / 128;

// Runs the tasks that have been posted, those that they post, and so on.
void run_tasks(testing::TestIo& io, int rounds = 200) {
  for (int i = 0; i < rounds; ++i) {
    bool has_run = false;
    io.post([&has_run] { has_run = true; });
    ASSERT_TRUE(io.run_until([&has_run] { return has_run; }));
  }
}

TEST(Generation, ManyLogprobsAreDeliveredInPiecesEachInATaskOfItsOwn) {
  TestServer server;
  std::vector<GenerationDelta> deltas;
  auto started = Generation::start(server.server().context(), server.io(), scored_request(false),
                                   [&](GenerationDelta delta) { deltas.push_back(std::move(delta)); });
  ASSERT_TRUE(started.ok()) << started.status().message;
  size_t before = 0;
  size_t most_in_a_task = 0;
  ASSERT_TRUE(server.io().run_until([&] {  // this is called between any two tasks
    most_in_a_task = std::max(most_in_a_task, deltas.size() - before);
    before = deltas.size();
    return !deltas.empty() && deltas.back().finish_reason != FinishReason::kNone;
  }));
  EXPECT_EQ(most_in_a_task, 1U);
  ASSERT_EQ(deltas.size(), (500 + kPositionsPerPiece - 1) / kPositionsPerPiece);
  std::vector<int32_t> prompt, output;
  for (const GenerationDelta& delta : deltas) {
    const bool last = &delta == &deltas.back();
    EXPECT_EQ(delta.has_more, !last);
    EXPECT_EQ(delta.text.empty(), !last);
    EXPECT_EQ(delta.token_ids.size(), last ? 100U : 0U);
    EXPECT_LE(delta.prompt_logprobs.size() + delta.logprobs.size(), kPositionsPerPiece);
    for (const TokenLogprob& entry : delta.prompt_logprobs) {
      EXPECT_EQ(entry.top.size(), 127U);
      EXPECT_TRUE(output.empty());
      prompt.push_back(entry.token_id);
    }
    for (const TokenLogprob& entry : delta.logprobs) output.push_back(entry.token_id);
  }
  ASSERT_EQ(prompt.size(), 400U);
  for (size_t i = 0; i < prompt.size(); ++i) EXPECT_EQ(prompt[i], 11 + static_cast<int32_t>(i));
  EXPECT_EQ(output, server.said_ids(401, 100));
  EXPECT_EQ(output, deltas.back().token_ids);
}

TEST(Generation, PiecesOfSeveralRequestsTakeTurns) {
  TestServer server;
  std::string order;
  bool ended[2] = {};
  for (const size_t i : {size_t{0}, size_t{1}}) {
    ASSERT_TRUE(Generation::start(server.server().context(), server.io(), scored_request(false),
                                  [&order, &ended, i](const GenerationDelta& delta) {
                                    order += i == 0 ? 'a' : 'b';
                                    ended[i] = !delta.has_more;
                                  })
                    .ok());
  }
  // Both requests have ended in the engine before the first of their pieces is delivered.
  ASSERT_TRUE(testing::eventually([&] { return server.engine().stats().generation_tokens == 200; }));
  ASSERT_TRUE(server.io().run_until([&] { return ended[0] && ended[1]; }));
  EXPECT_NE(order.find("abab"), std::string::npos) << order;
}

TEST(Generation, PiecesWaitForAPausedClientAndEndWithOneThatLeaves) {
  for (const bool leaves : {false, true}) {
    TestServer server;
    ServerContext& context = server.server().context();
    std::shared_ptr<Generation> generation;
    size_t num_deltas = 0;
    size_t prompt_positions = 0;
    size_t positions = 0;
    std::string text;
    bool ended = false;
    auto started =
        Generation::start(context, server.io(), scored_request(true), [&](const GenerationDelta& delta) {
          ++num_deltas;
          prompt_positions += delta.prompt_logprobs.size();
          positions += delta.logprobs.size();
          text += delta.text;
          ended = delta.finish_reason != FinishReason::kNone;
          if (num_deltas == 2) leaves ? generation->cancel() : generation->pause();
        });
    ASSERT_TRUE(started.ok()) << started.status().message;
    generation = std::move(started).value();
    ASSERT_TRUE(server.io().run_until([&] { return num_deltas == 2; }));
    ASSERT_TRUE(server.io().run_until([&] { return server.engine().stats().scheduler.num_running == 0; }));
    run_tasks(server.io());
    EXPECT_EQ(num_deltas, 2U);
    generation->resume();
    run_tasks(server.io());
    EXPECT_EQ(ended, !leaves);
    EXPECT_EQ(prompt_positions, leaves ? 2 * kPositionsPerPiece : 400U);
    EXPECT_EQ(positions, leaves ? 0U : 100U);
    EXPECT_EQ(text, leaves ? std::string() : server.said(401, 100));
  }
}

TEST(Generation, AnAnswerThatCannotBeMadeEndsItsRequestAtAnyPiece) {
  TestServer server;
  size_t num_deltas = 0;
  std::optional<GenerationDelta> last;
  auto started = Generation::start(server.server().context(), server.io(), scored_request(false),
                                   [&](GenerationDelta delta) {
                                     if (++num_deltas == 3) throw std::runtime_error("no memory");
                                     if (!delta.has_more) last = std::move(delta);
                                   });
  ASSERT_TRUE(started.ok());
  ASSERT_TRUE(server.io().run_until([&] { return last.has_value(); }));
  run_tasks(server.io());
  EXPECT_EQ(num_deltas, 4U);
  EXPECT_EQ(last->finish_reason, FinishReason::kAbort);
  EXPECT_EQ(last->abort_reason, AbortReason::kFault);
}

}  // namespace
}  // namespace hadal::server
