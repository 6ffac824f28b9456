// Tests how much one request may cost other clients: bytes of its answer, tokens of all its generations,
// copies of its prompt and of the prompt's scores.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include <boost/json.hpp>

#include "server/native/native_output.h"
#include "tests/server/http_test_server.h"
#include "tests/server/test_server.h"

namespace hadal::server {
namespace {

using ::testing::ElementsAre;
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
  const HttpResponse stream = server.generate_step_by_step(body + R"(,"stream":true})");
  const auto events = events_of(stream.body);
  ASSERT_EQ(events.size(), 40U);
  for (size_t i = 0; i < events.size(); ++i) {
    const json::value& meta = events[i].at("meta_info");
    const size_t expected = i == 0 || i + 1 == events.size() ? 300 : 0;
    EXPECT_EQ(meta.at("input_token_logprobs").as_array().size(), expected) << i;
    EXPECT_EQ(meta.at("input_top_logprobs").as_array().size(), expected) << i;
    EXPECT_EQ(meta.at("output_token_logprobs").as_array().size(), i + 1);
  }
  // If each of the 40 events repeated the scores of the prompt, these alone would be larger.
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
  // Each event repeats everything that came before it, even if it was held back for more tokens.
  size_t before = 0;
  for (const json::object& event : events) {
    const size_t count = event.at("meta_info").at("output_token_logprobs").as_array().size();
    EXPECT_GT(count, before);
    EXPECT_EQ(event.at("output_ids").as_array().size(), count);
    before = count;
  }
}

constexpr const char* kTextAlone =
    R"({"input_ids":[3],"stream":true,"sampling_params":{"max_new_tokens":300,"ignore_eos":true}})";

TEST(Amplification, AStreamOfTextAloneHasAnEventForEachTokenWhileTheServerIsNotBehind) {
  TestServer server;
  EXPECT_EQ(events_of(server.generate_step_by_step(kTextAlone).body).size(), 300U);
}

TEST(Amplification, TokensThatWaitTogetherAreOneEventOnlyWhereEventsRepeatEverything) {
  for (const bool incremental : {false, true}) {
    testing::TestServerOptions options;
    options.server.stream_output_incremental = incremental;
    TestServer server(options);
    const auto exchange = server.send("POST", "/generate", kTextAlone);
    ASSERT_TRUE(testing::eventually([&] { return server.engine().stats().generation_tokens == 300; }));
    ASSERT_TRUE(server.wait(*exchange));
    const auto events = events_of(exchange->response.body);
    if (incremental) {
      EXPECT_EQ(events.size(), 300U);
    } else {
      EXPECT_LE(events.size(), 3U);  // the last chunks may come during the delivery
    }
    EXPECT_EQ(events.back().at("meta_info").at("completion_tokens").to_number<int64_t>(), 300);
    std::string text;
    for (const json::object& event : events) text += event.at("text").as_string().c_str();
    if (!incremental) text = events.back().at("text").as_string().c_str();
    EXPECT_EQ(text, server.said(1, 300));
  }
}

// Returns, for each choice of a stream, the number of entries that `count(event)` finds in its events.
template <typename Count>
std::map<int64_t, std::vector<size_t>> counts_by_choice(const HttpResponse& stream, Count count) {
  std::map<int64_t, std::vector<size_t>> out;
  for (const json::object& event : events_of(stream.body)) {
    const json::value* choices = event.if_contains("choices");
    const json::value& choice = choices == nullptr ? json::value(event) : choices->at(0);
    out[choice.at("index").to_number<int64_t>()].push_back(count(choice));
  }
  return out;
}

constexpr auto num_input_scores = [](const json::value& event) {
  const json::value& meta = event.at("meta_info");
  EXPECT_EQ(meta.at("input_token_logprobs").as_array().size(),
            meta.at("input_top_logprobs").as_array().size());
  return meta.at("input_token_logprobs").as_array().size();
};

TEST(Amplification, EachChoiceOfAStreamSendsThePromptsScoresOnceOrInItsFirstAndLastEvent) {
  const std::string body =
      R"({"input_ids":[[5,6,7,8],[9,10,11]],"return_logprob":true,"logprob_start_len":0,"top_logprobs_num":2,)"
      R"("stream":true,"sampling_params":{"n":2,"max_new_tokens":4,"ignore_eos":true}})";
  testing::TestServerOptions options;
  options.server.stream_output_incremental = true;
  TestServer incremental(options);
  TestServer cumulative;
  const auto once = counts_by_choice(incremental.generate(body), num_input_scores);
  const auto twice = counts_by_choice(cumulative.generate_step_by_step(body), num_input_scores);
  ASSERT_EQ(once.size(), 4U);
  ASSERT_EQ(twice.size(), 4U);
  for (int64_t choice = 0; choice < 4; ++choice) {
    const size_t prompt = choice < 2 ? 4 : 3;
    EXPECT_THAT(once.at(choice), ElementsAre(prompt, 0, 0, 0)) << choice;
    EXPECT_THAT(twice.at(choice), ElementsAre(prompt, 0, 0, prompt)) << choice;
  }
}

TEST(Amplification, AStreamOfCompletionsSendsThePromptsScoresAndItsTextOnceForEachChoice) {
  TestServer server;
  const HttpResponse stream = server.call("POST", "/v1/completions",
                                          R"({"prompt":[[5,6,7,8],[9,10,11]],"echo":true,"logprobs":2,"n":2,)"
                                          R"("stream":true,"max_tokens":3,"ignore_eos":true})");
  const auto tokens = counts_by_choice(
      stream, [](const json::value& choice) { return choice.at("logprobs").at("tokens").as_array().size(); });
  ASSERT_EQ(tokens.size(), 4U);
  for (int64_t choice = 0; choice < 4; ++choice) {
    const size_t prompt = choice < 2 ? 4 : 3;
    EXPECT_THAT(tokens.at(choice), ElementsAre(prompt + 1, 1, 1)) << choice;
  }
  std::map<int64_t, std::string> texts;
  for (const json::object& event : events_of(stream.body)) {
    const json::value& choice = event.at("choices").at(0);
    texts[choice.at("index").to_number<int64_t>()] += choice.at("text").as_string().c_str();
  }
  EXPECT_EQ(texts[0], server.tokenizer().decode(std::vector<int32_t>{5, 6, 7, 8}, true) + server.said(4, 3));
  EXPECT_EQ(texts[3], server.tokenizer().decode(std::vector<int32_t>{9, 10, 11}, true) + server.said(3, 3));
}

TEST(Amplification, AReaderThatFallsBehindGetsThePromptsScoresNoMoreOften) {
  testing::TestServerOptions options;
  options.server.stream_output_incremental = true;
  TestServer server(options);
  server.gate().allow(0);
  const auto exchange = server.send(
      "POST", "/generate",
      R"({"input_ids":[[5,6,7,8],[9,10,11]],"return_logprob":true,"logprob_start_len":0,"top_logprobs_num":2,)"
      R"("stream":true,"sampling_params":{"max_new_tokens":6,"ignore_eos":true}})");
  exchange->is_writable = false;  // the first event fills the buffer
  server.gate().open();
  ASSERT_TRUE(server.io().run_until(
      [&] { return exchange->num_writes > 0 && server.engine().stats().scheduler.num_running == 0; }));
  exchange->read_again();
  ASSERT_TRUE(server.wait(*exchange));
  const auto counts = counts_by_choice(exchange->response, num_input_scores);
  ASSERT_EQ(counts.size(), 2U);
  for (const auto& [choice, events] : counts) {
    const size_t prompt = choice == 0 ? 4 : 3;
    EXPECT_EQ(events.front(), prompt);
    for (size_t i = 1; i < events.size(); ++i) EXPECT_EQ(events[i], 0U);
  }
}

}  // namespace
}  // namespace hadal::server
