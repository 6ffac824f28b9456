// Tests what one HTTP request may demand: alternatives, tokens of all its generations and scores of prompts.
#include "server/admission/request_limits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include <boost/json.hpp>

#include "server/admission/memory_costs.h"
#include "server/admission/request_memory.h"
#include "server/json/sampling_fields.h"
#include "server/native/native_request.h"
#include "tests/server/test_server.h"

namespace hadal::server {
namespace {

using ::testing::HasSubstr;
using testing::parsed;
using testing::TestServer;
namespace json = boost::json;

testing::TestServerOptions options_with(const RequestLimits& limits) {
  testing::TestServerOptions options;
  options.server.request_limits = limits;
  options.chat_format = ChatFormat::kV2;
  return options;
}

constexpr const char* kHello = R"("messages":[{"role":"user","content":"Hello"}])";

// Sends {`fields`} and returns the error's message, or an empty text for 200.
std::string refusal(TestServer& server, const std::string& path, const std::string& fields) {
  const HttpResponse answer = server.call("POST", path, "{" + fields + "}");
  if (answer.status == 200) return {};
  EXPECT_EQ(answer.status, 400) << answer.body;
  return parsed(answer).at("error").at("message").as_string().c_str();
}

std::string generate_with(int64_t top_num) {
  return fmt::format(
      R"("input_ids":[3,4],"return_logprob":true,"top_logprobs_num":{},"sampling_params":{{"max_new_tokens":1}})",
      top_num);
}
std::string completion_with(int64_t logprobs) {
  return fmt::format(R"("prompt":[3,4],"max_tokens":1,"logprobs":{})", logprobs);
}
std::string chat_with(int64_t top_logprobs) {
  return fmt::format(R"({},"max_tokens":1,"logprobs":true,"top_logprobs":{})", kHello, top_logprobs);
}

TEST(RequestLimits, WithoutTheFlagTheLimitIs128AndThatOfOpenAisChatIs20) {
  TestServer server(options_with({}));
  EXPECT_EQ(refusal(server, "/generate", generate_with(128)), "");
  EXPECT_EQ(refusal(server, "/generate", generate_with(129)),
            "top_logprobs_num is 129; must be an integer in [0, 128]");
  EXPECT_EQ(refusal(server, "/v1/completions", completion_with(128)), "");
  EXPECT_EQ(refusal(server, "/v1/completions", completion_with(129)),
            "logprobs is 129; must be an integer in [0, 128]");
  EXPECT_EQ(refusal(server, "/v1/chat/completions", chat_with(20)), "");
  EXPECT_EQ(refusal(server, "/v1/chat/completions", chat_with(21)),
            "top_logprobs is 21; must be an integer in [0, 20]");
}

TEST(RequestLimits, TheFlagLowersTheAlternativesOfEveryEndpoint) {
  TestServer five(options_with({.max_logprobs = 5}));
  EXPECT_EQ(refusal(five, "/generate", generate_with(5)), "");
  EXPECT_EQ(refusal(five, "/generate", generate_with(6)),
            "top_logprobs_num is 6; must be an integer in [0, 5] (--max-logprobs)");
  EXPECT_EQ(
      refusal(five, "/generate", R"("input_ids":[[3],[4]],"return_logprob":true,"top_logprobs_num":[1,128])"),
      "top_logprobs_num is 128; must be an integer in [0, 5] (--max-logprobs)");
  EXPECT_EQ(refusal(five, "/v1/completions", completion_with(5)), "");
  EXPECT_EQ(refusal(five, "/v1/completions", completion_with(6)),
            "logprobs is 6; must be an integer in [0, 5] (--max-logprobs)");
  EXPECT_EQ(refusal(five, "/v1/chat/completions", chat_with(5)), "");
  EXPECT_EQ(refusal(five, "/v1/chat/completions", chat_with(6)),
            "top_logprobs is 6; must be an integer in [0, 5] (--max-logprobs)");

  TestServer none(options_with({.max_logprobs = 0}));
  EXPECT_EQ(refusal(none, "/generate", generate_with(0)), "");
  EXPECT_THAT(refusal(none, "/generate", generate_with(1)), HasSubstr("[0, 0] (--max-logprobs)"));
  EXPECT_EQ(refusal(none, "/v1/completions", completion_with(0)), "");
  EXPECT_EQ(refusal(none, "/v1/chat/completions", std::string(kHello) + R"(,"max_tokens":1,"logprobs":true)"),
            "");

  TestServer fifty(options_with({.max_logprobs = 50}));
  EXPECT_EQ(refusal(fifty, "/v1/chat/completions", chat_with(21)),
            "top_logprobs is 21; must be an integer in [0, 20]");
}

TEST(RequestLimits, TokensOfAllGenerationsOfARequestAreBounded) {
  TestServer server(options_with({.max_tokens = 1000}));
  const auto generate = [](int64_t max_new_tokens) {
    return fmt::format(
        R"("input_ids":[[3,4,5,6,7,8],[3,4,5,6]],"sampling_params":{{"n":10,"max_new_tokens":{}}})",
        max_new_tokens);
  };
  EXPECT_EQ(refusal(server, "/generate", generate(45)), "");  // 10 x (6 + 45 + 4 + 45)
  EXPECT_EQ(refusal(server, "/generate", generate(46)),
            "the request asks for 1020 tokens (generations: 20; tokens of prompts: 100, of answers: 920); at "
            "most 1000 are allowed (--max-request-tokens)");
  // Each prompt has its own parameters.
  EXPECT_EQ(
      refusal(server, "/generate",
              R"("input_ids":[[3],[4]],"sampling_params":[{"max_new_tokens":2},{"max_new_tokens":996}])"),
      "");
  EXPECT_THAT(
      refusal(server, "/generate",
              R"("input_ids":[[3],[4]],"sampling_params":[{"max_new_tokens":2},{"max_new_tokens":997}])"),
      HasSubstr("asks for 1001 tokens (generations: 2;"));

  const auto complete = [](int64_t max_tokens) {
    return fmt::format(R"("prompt":[[3,4,5,6,7,8],[3,4,5,6]],"n":10,"max_tokens":{})", max_tokens);
  };
  EXPECT_EQ(refusal(server, "/v1/completions", complete(45)), "");
  EXPECT_THAT(refusal(server, "/v1/completions", complete(46)), HasSubstr("asks for 1020 tokens"));

  EXPECT_EQ(refusal(server, "/v1/chat/completions", std::string(kHello) + R"(,"n":2,"max_tokens":480)"), "");
  EXPECT_THAT(refusal(server, "/v1/chat/completions", std::string(kHello) + R"(,"n":2,"max_tokens":500)"),
              HasSubstr("generations: 2;"));
}

TEST(RequestLimits, LengthsThatTheServerChoosesCountToo) {
  testing::TestServerOptions options = options_with({.max_tokens = 127});
  options.engine.context_length = 64;
  TestServer server(options);
  EXPECT_EQ(refusal(server, "/v1/chat/completions", kHello), "");
  EXPECT_THAT(refusal(server, "/v1/chat/completions", std::string(kHello) + R"(,"n":2)"),
              HasSubstr("asks for 128 tokens (generations: 2;"));
  EXPECT_THAT(refusal(server, "/generate", R"("input_ids":[[3,4],[3,4]])"), HasSubstr("asks for 128 tokens"));
}

// A request that can never be accepted is a client's error, even while memory is short, and leaves nothing
// behind.
TEST(RequestLimits, AreCheckedBeforeMemoryIsTakenAndAnythingIsStarted) {
  const auto memory = std::make_shared<RequestMemory>(size_t{1} << 20);
  testing::TestServerOptions options = options_with({.max_tokens = 1000});
  options.server.memory = memory;
  TestServer server(options);
  const std::string many = R"("n":128,"max_tokens":8)";
  EXPECT_THAT(refusal(server, "/v1/completions", R"("prompt":[3],)" + many),
              HasSubstr("asks for 1152 tokens"));
  EXPECT_THAT(refusal(server, "/v1/chat/completions", std::string(kHello) + "," + many),
              HasSubstr("--max-request-tokens"));
  EXPECT_THAT(
      refusal(server, "/generate", R"("input_ids":[3],"sampling_params":{"n":128,"max_new_tokens":8})"),
      HasSubstr("asks for 1152 tokens"));
  for (size_t i = 0; i < kNumMemoryKinds; ++i) EXPECT_EQ(memory->refused(static_cast<MemoryKind>(i)), 0) << i;
  EXPECT_EQ(memory->total(), 0U);
  EXPECT_EQ(server.engine().stats().scheduler.num_queued + server.engine().stats().scheduler.num_running, 0);
}

TEST(RequestLimits, ScoresOfPromptsAreBoundedOverAllChoices) {
  TestServer server(options_with({.max_prompt_logprobs = 100}));
  const auto generate = [](int64_t start, int64_t top_num) {
    return fmt::format(R"("input_ids":[3,4,5,6,7,8,9,10,11,12],"return_logprob":true,"logprob_start_len":{},)"
                       R"("top_logprobs_num":{},"sampling_params":{{"n":2,"max_new_tokens":1}})",
                       start, top_num);
  };
  EXPECT_EQ(refusal(server, "/generate", generate(0, 4)), "");  // 2 x 10 x (1 + 4)
  EXPECT_EQ(
      refusal(server, "/generate", generate(0, 5)),
      "logprob_start_len: asks for 120 log-probabilities of prompts (generations: 2; tokens of prompts: "
      "20); at most 100 are allowed (--max-prompt-logprobs)");
  EXPECT_EQ(refusal(server, "/generate", generate(5, 9)), "");
  EXPECT_THAT(refusal(server, "/generate", generate(5, 10)), HasSubstr("asks for 110"));
  EXPECT_EQ(refusal(server, "/generate", generate(-1, 128)), "") << "those of the answer have other bounds";

  const auto complete = [](const char* echo, int64_t logprobs) {
    return fmt::format(
        R"("prompt":[[3,4,5,6,7],[8,9,10,11,12]],"echo":{},"logprobs":{},"n":2,"max_tokens":1)", echo,
        logprobs);
  };
  EXPECT_EQ(refusal(server, "/v1/completions", complete("true", 4)), "");
  EXPECT_THAT(refusal(server, "/v1/completions", complete("true", 5)),
              HasSubstr("logprobs: asks for 120 log-probabilities of prompts"));
  EXPECT_EQ(refusal(server, "/v1/completions", complete("false", 128)), "");

  TestServer none(options_with({.max_prompt_logprobs = 0}));
  EXPECT_THAT(refusal(none, "/generate", generate(9, 0)), HasSubstr("--max-prompt-logprobs"));
  EXPECT_EQ(refusal(none, "/generate", generate(-1, 5)), "");
}

TEST(RequestLimits, DefaultsLetHonestBatchesThroughAndNotTheLargestRequests) {
  for (const int64_t context : {4096, 32'768, 163'840}) {
    const int64_t limit = default_max_request_tokens(context);
    EXPECT_LE(1024 * (1024 + 1024), limit);
    EXPECT_LE(kMaxChoices * context, limit) << "one prompt with every choice that the API allows";
    EXPECT_LT(8 * limit, static_cast<int64_t>(kMaxBatch) * context);
  }
  EXPECT_EQ(default_max_request_tokens(4096), 4'194'304);
  EXPECT_EQ(default_max_request_tokens(163'840), 20'971'520);

  RequestBudget budget{RequestLimits{}};
  const LogprobOptions ten{.enabled = true, .start = 0, .top_num = 10};
  for (int prompt = 0; prompt < 64; ++prompt) budget.add(4096, 1, ten, 1);
  EXPECT_TRUE(budget.check_prompt_logprobs().ok());
  EXPECT_TRUE(budget.check_tokens().ok()) << "no limit";
  for (int prompt = 0; prompt < 64; ++prompt) budget.add(4096, 1, ten, 1);
  EXPECT_FALSE(budget.check_prompt_logprobs().ok());
  RequestBudget one{RequestLimits{}};
  one.add(163'840, 0, {.enabled = true, .start = 0, .top_num = 20}, 1);
  EXPECT_TRUE(one.check_prompt_logprobs().ok());
  EXPECT_EQ(kDefaultMaxPromptLogprobs * static_cast<int64_t>(kKeptLogprobBytes), int64_t{1} << 30);
}

}  // namespace
}  // namespace hadal::server
