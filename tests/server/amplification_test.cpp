// Tests what one request may cost its neighbours: bytes of its answer, places in the queue, copies of its
// prompt.
#include <gtest/gtest.h>

#include <string>

#include <boost/json.hpp>

#include "server/native_output.h"
#include "tests/server/test_server.h"

namespace hadal::server {
namespace {

using testing::events_of;
using testing::TestServer;
namespace json = boost::json;

// Returns a prompt of `count` token ids as JSON.
std::string prompt_of(int64_t count) {
  std::string out = "[7";
  for (int64_t i = 1; i < count; ++i) out += fmt::format(",{}", 3 + i % 500);
  return out + "]";
}

TEST(Amplification, PromptScoresStandInTheFirstAndTheLastEventOfACumulativeStream) {
  TestServer server;
  const std::string body = R"({"input_ids":)" + prompt_of(300) +
                           R"(,"return_logprob":true,"logprob_start_len":0,"top_logprobs_num":8,)"
                           R"("sampling_params":{"max_new_tokens":40,"ignore_eos":true})";
  const std::string whole = server.generate(body + "}").body;
  const HttpResponse stream = server.generate(body + R"(,"stream":true})");
  const auto events = events_of(stream.body);
  ASSERT_EQ(events.size(), 40U);
  for (size_t i = 0; i < events.size(); ++i) {
    const json::value& meta = events[i].at("meta_info");
    const size_t expected = i == 0 || i + 1 == events.size() ? 300 : 0;
    EXPECT_EQ(meta.at("input_token_logprobs").as_array().size(), expected) << i;
    EXPECT_EQ(meta.at("input_top_logprobs").as_array().size(), expected) << i;
    EXPECT_EQ(meta.at("output_token_logprobs").as_array().size(), i + 1);
  }
  // The scores of the prompt alone would be more if each of the 40 events repeated them.
  EXPECT_LE(stream.body.size(), 8 * whole.size());
}

TEST(Amplification, BytesOfACumulativeStreamAreLinearInItsTokens) {
  TestServer server;
  constexpr int64_t kTokens = 1500;
  const std::string body = R"({"input_ids":[3,4],"return_logprob":true,"top_logprobs_num":128,"stream":true,)"
                           R"("sampling_params":{"ignore_eos":true,"max_new_tokens":)" +
                           std::to_string(kTokens) + "}}";
  const HttpResponse stream = server.generate(body);
  const auto events = events_of(stream.body);
  const json::value& last = events.back().at("meta_info");
  EXPECT_EQ(last.at("completion_tokens").to_number<int64_t>(), kTokens);
  EXPECT_EQ(last.at("output_top_logprobs").as_array().size(), static_cast<size_t>(kTokens));
  const size_t final_bytes = json::serialize(events.back()).size();
  EXPECT_LE(stream.body.size(), kTokens * kEventBytesPerToken + 2 * final_bytes);
  // Each event repeats all that came before it, also where events wait for tokens.
  size_t before = 0;
  for (const json::object& event : events) {
    const size_t count = event.at("meta_info").at("output_token_logprobs").as_array().size();
    EXPECT_GT(count, before);
    EXPECT_EQ(event.at("output_ids").as_array().size(), count);
    before = count;
  }
}

TEST(Amplification, AStreamOfTextAloneHasAnEventForEachToken) {
  TestServer server;
  const auto events = events_of(
      server
          .generate(
              R"({"input_ids":[3],"stream":true,"sampling_params":{"max_new_tokens":1000,"ignore_eos":true}})")
          .body);
  EXPECT_EQ(events.size(), 1000U);
}

}  // namespace
}  // namespace hadal::server
