// Tests /v1/completions, /v1/tokenize and /v1/detokenize over an engine that generates a script's tokens.
#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <string>
#include <thread>

#include <boost/json.hpp>

#include "tests/server/test_server.h"

namespace hadal::server {
namespace {

using testing::events_of;
using testing::parsed;
using testing::str;
using testing::TestServer;
namespace json = boost::json;

HttpResponse complete(TestServer& server, std::string body) {
  return server.call("POST", "/v1/completions", std::move(body));
}

TEST(OpenAiCompletion, ALongModelNameIsRefusedBecauseEventsRepeatIt) {
  TestServer server;
  const auto ask = [&](size_t bytes) {
    return server.call(
        "POST", "/v1/completions",
        fmt::format(R"({{"model":"{}","prompt":[3],"max_tokens":1}})", std::string(bytes, 'm')));
  };
  EXPECT_EQ(ask(256).status, 200);
  const auto refused = ask(257);
  EXPECT_EQ(refused.status, 400);
  EXPECT_NE(refused.body.find("model: has 257 bytes; must have at most 256"), std::string::npos)
      << refused.body;
}

TEST(OpenAiCompletion, AnswersSixteenTokensByDefault) {
  TestServer server;
  const HttpResponse response = complete(server, R"({"model":"m","prompt":[5,6,7]})");
  ASSERT_EQ(response.status, 200) << response.body;
  const json::value answer = parsed(response);
  EXPECT_EQ(str(answer.at("object")), "text_completion");
  EXPECT_TRUE(str(answer.at("id")).starts_with("cmpl-"));
  EXPECT_EQ(str(answer.at("model")), "m");
  const json::value& choice = answer.at("choices").at(0);
  EXPECT_EQ(str(choice.at("text")), server.said(3, 16));
  EXPECT_EQ(str(choice.at("finish_reason")), "length");
  EXPECT_TRUE(choice.at("logprobs").is_null());
  EXPECT_EQ(answer.at("usage").at("prompt_tokens").to_number<int>(), 3);
  EXPECT_EQ(answer.at("usage").at("completion_tokens").to_number<int>(), 16);
}

TEST(OpenAiCompletion, PromptsAndChoicesKeepTheirOrder) {
  TestServer server;
  const json::value answer =
      parsed(complete(server, R"({"prompt":[[3],[4,5],[6,7,8]],"n":2,"best_of":2,"max_tokens":3,"seed":1})"));
  const json::array& choices = answer.at("choices").as_array();
  ASSERT_EQ(choices.size(), 6U);
  for (size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(choices[i].at("index").to_number<size_t>(), i);
    EXPECT_EQ(str(choices[i].at("text")), server.said(static_cast<int64_t>(i / 2) + 1, 3));
  }
  EXPECT_EQ(answer.at("usage").at("prompt_tokens").to_number<int>(), 6);
  EXPECT_EQ(answer.at("usage").at("completion_tokens").to_number<int>(), 18);
  EXPECT_EQ(
      parsed(complete(server, R"({"prompt":["a","b"],"max_tokens":1})")).at("choices").as_array().size(), 2U);
}

constexpr const char* kEndless = R"({"prompt":[3],"max_tokens":4000,"ignore_eos":true})";
constexpr const char* kEndlessStream =
    R"({"prompt":[3],"max_tokens":4000,"ignore_eos":true,"stream":true,"stream_options":{"include_usage":true}})";

TEST(OpenAiCompletion, AnAnswerCutByAShutdownIsAnError) {
  TestServer server;
  server.gate().allow(1);
  const auto whole = server.send("POST", "/v1/completions", kEndless);
  const auto stream = server.send("POST", "/v1/completions", kEndlessStream);
  // The engine may run the first of the two requests alone for some steps.
  ASSERT_TRUE(server.io().run_until([&] {
    server.gate().allow(1);
    return stream->num_writes > 0;
  }));
  std::thread drain([&] { server.engine().drain(std::chrono::milliseconds(0)); });
  // Steps are allowed one by one, so that the drain comes long before the answers' ends.
  const bool ended = server.io().run_until([&] {
    server.gate().allow(1);
    return whole->complete && stream->complete;
  });
  server.gate().open();
  drain.join();
  ASSERT_TRUE(ended);
  EXPECT_EQ(whole->response.status, 503) << whole->response.body;
  EXPECT_EQ(str(parsed(whole->response).at("error").at("type")), "service_unavailable_error");
  EXPECT_EQ(stream->response.status, 200);
  const std::vector<json::object> events = events_of(stream->response.body);
  EXPECT_EQ(str(events.back().at("error").at("code")), "service_unavailable");
  EXPECT_FALSE(str(events.back().at("error").at("message")).empty());
}

TEST(OpenAiCompletion, ARequestedAbortIsAnAnswer) {
  TestServer server;
  server.engine().pause();
  const auto exchange = server.send("POST", "/v1/completions", kEndless);
  EXPECT_EQ(server.call("POST", "/abort_request", R"({"abort_all":true})").status, 200);
  server.engine().resume();
  ASSERT_TRUE(server.wait(*exchange));
  EXPECT_EQ(exchange->response.status, 200);
  EXPECT_EQ(str(parsed(exchange->response).at("choices").at(0).at("finish_reason")), "abort");
}

TEST(OpenAiCompletion, AnExpressionThatNeedsBacktrackingIsTheClientsError) {
  TestServer server({.script = "a"});
  const HttpResponse response =
      complete(server, R"({"prompt":[3],"max_tokens":1000,"stop_regex":["b","(.*)\\1!"]})");
  EXPECT_EQ(response.status, 400) << response.body;
  EXPECT_EQ(str(parsed(response).at("error").at("message")),
            R"(stop_regex: entry 1 '(.*)\1!': back-references are not supported (\1 at byte 4))");
  EXPECT_EQ(server.generate(R"({"input_ids":[3],"sampling_params":{"stop_regex":"(?:a{99}){99}"}})").status,
            400);
}

TEST(OpenAiCompletion, EveryEventHasATextAndTheStreamIsTheWholeText) {
  TestServer server;
  const std::string body =
      R"({"prompt":["a","b c"],"n":2,"max_tokens":7,"echo":true,"logprobs":1,"best_of":1,"ignore_eos":true,"stream":FLAG,
          "stream_options":{"include_usage":true}})";
  const auto with = [&](std::string_view flag) {
    std::string out = body;
    return out.replace(out.find("FLAG"), 4, flag);
  };
  const json::value whole = parsed(complete(server, with("false")));
  std::map<size_t, std::string> texts;
  std::map<size_t, json::array> values, offsets;
  json::value usage;
  for (const json::object& event : events_of(complete(server, with("true")).body)) {
    EXPECT_EQ(str(event.at("object")), "text_completion");
    if (event.at("choices").as_array().empty()) {
      usage = event.at("usage");
      continue;
    }
    EXPECT_TRUE(event.at("usage").is_null());
    const json::value& choice = event.at("choices").at(0);
    const auto index = choice.at("index").to_number<size_t>();
    texts[index] += str(choice.at("text"));
    for (const json::value& value : choice.at("logprobs").at("token_logprobs").as_array()) {
      values[index].push_back(value);
    }
    for (const json::value& value : choice.at("logprobs").at("text_offset").as_array()) {
      offsets[index].push_back(value);
    }
  }
  ASSERT_EQ(texts.size(), 4U);
  for (size_t i = 0; i < 4; ++i) {
    const json::value& choice = whole.at("choices").at(i);
    EXPECT_EQ(texts[i], str(choice.at("text")));
    EXPECT_TRUE(texts[i].starts_with(i < 2 ? "a" : "b c")) << texts[i];
    EXPECT_EQ(values[i], choice.at("logprobs").at("token_logprobs").as_array());
    EXPECT_EQ(offsets[i], choice.at("logprobs").at("text_offset").as_array());
  }
  EXPECT_EQ(usage, whole.at("usage"));
}

TEST(OpenAiCompletion, ContinuousUsageGrows) {
  TestServer server;
  int64_t last = 0;
  for (
      const json::object& event : events_of(
          complete(
              server,
              R"({"prompt":"a","max_tokens":5,"stream":true,"stream_options":{"continuous_usage_stats":true}})")
              .body)) {
    const auto now = event.at("usage").at("completion_tokens").to_number<int64_t>();
    EXPECT_GE(now, last);
    last = now;
  }
  EXPECT_EQ(last, 5);
}

// lm-eval's loglikelihood requests the prompt's own log-probabilities.
TEST(OpenAiCompletion, EchoWithLogprobsScoresThePrompt) {
  for (const int max_tokens : {0, 1}) {
    TestServer server;
    const std::vector<int32_t> ids = server.tokenizer().encode("Hello world", false);
    const HttpResponse response =
        complete(server, json::serialize(json::object{{"prompt", json::array{json::value_from(ids)}},
                                                      {"max_tokens", max_tokens},
                                                      {"echo", true},
                                                      {"logprobs", 1},
                                                      {"temperature", 0}}));
    ASSERT_EQ(response.status, 200) << response.body;
    const json::value answer = parsed(response);
    const json::value& choice = answer.at("choices").at(0);
    const size_t count = ids.size() + static_cast<size_t>(max_tokens);
    const json::value& logprobs = choice.at("logprobs");
    for (const char* list : {"tokens", "token_logprobs", "top_logprobs", "text_offset"}) {
      EXPECT_EQ(logprobs.at(list).as_array().size(), count) << list;
    }
    EXPECT_TRUE(logprobs.at("token_logprobs").at(0).is_null());
    EXPECT_TRUE(logprobs.at("top_logprobs").at(0).is_null());
    EXPECT_EQ(logprobs.at("token_logprobs").at(1).to_number<double>(), -0.5);
    // The best alternative is reported exactly as the token's own value: lm-eval compares them.
    for (size_t i = 1; i < count; ++i) {
      EXPECT_EQ(logprobs.at("top_logprobs").at(i).at(str(logprobs.at("tokens").at(i))),
                logprobs.at("token_logprobs").at(i));
    }
    EXPECT_TRUE(str(choice.at("text")).starts_with("Hello world"));
    EXPECT_EQ(answer.at("usage").at("completion_tokens").to_number<int>(), max_tokens);
  }
}

// The answers have more log-probabilities than one task turns into JSON (server/generation/delta_pieces.h).
TEST(OpenAiCompletion, AnswersMadeInManyTasksAreComplete) {
  TestServer server;
  json::array ids;
  for (int i = 0; i < 1000; ++i) ids.push_back(300 + i);
  json::object body{{"prompt", ids},  {"max_tokens", 20}, {"ignore_eos", true}, {"echo", true},
                    {"logprobs", 20}, {"temperature", 0}, {"stream", false}};
  const json::value whole = parsed(complete(server, json::serialize(body)));
  const json::value& logprobs = whole.at("choices").at(0).at("logprobs");
  body["stream"] = true;
  const std::vector<json::object> events = events_of(complete(server, json::serialize(body)).body);
  for (const char* list : {"tokens", "token_logprobs", "top_logprobs", "text_offset"}) {
    EXPECT_EQ(logprobs.at(list).as_array().size(), 1020U) << list;
    json::array streamed;
    for (const json::object& event : events) {
      for (const json::value& value : event.at("choices").at(0).at("logprobs").at(list).as_array())
        streamed.push_back(value);
    }
    EXPECT_EQ(streamed, logprobs.at(list).as_array()) << list;
  }
}

TEST(OpenAiCompletion, TokensThatAreNotTextByThemselvesShowTheirBytes) {
  TestServer server({.script = "🦊"});
  const json::value answer = parsed(complete(server, R"({"prompt":[5],"max_tokens":2,"logprobs":0})"));
  const std::vector<int32_t> ids = server.tokenizer().encode("🦊", false);
  ASSERT_GT(ids.size(), 1U) << "the fox is one token: choose a text that this vocabulary cuts";
  EXPECT_TRUE(str(answer.at("choices").at(0).at("logprobs").at("tokens").at(0)).starts_with("bytes:\\xf0"))
      << json::serialize(answer);
}

TEST(OpenAiCompletion, NeedsATokenizer) {
  TestServer server({.with_tokenizer = false});
  for (const char* body : {R"({"prompt":[5,6],"max_tokens":2})", R"({"prompt":"a"})"}) {
    const HttpResponse response = complete(server, body);
    EXPECT_EQ(response.status, 400);
    EXPECT_NE(response.body.find("use /generate"), std::string::npos) << response.body;
  }
  EXPECT_EQ(server.call("POST", "/v1/tokenize", R"({"prompt":"a"})").status, 400);
}

TEST(OpenAiCompletion, AnEmptyTextIsTheTokenThatTheTokenizerPutsBeforeEveryText) {
  TestServer server;
  for (const char* prompt : {R"("")", R"([""])"}) {
    const HttpResponse response = complete(
        server,
        fmt::format(R"({{"prompt":{},"max_tokens":1,"echo":true,"skip_special_tokens":false}})", prompt));
    ASSERT_EQ(response.status, 200) << response.body;
    const json::value answer = parsed(response);
    EXPECT_EQ(answer.at("usage").at("prompt_tokens"), json::value(1));
    EXPECT_EQ(str(answer.at("choices").at(0).at("text")).find("<"), std::string::npos)
        << "the echo is what the client wrote: " << response.body;
  }
  const HttpResponse native = server.generate(R"({"text":"","sampling_params":{"max_new_tokens":1}})");
  ASSERT_EQ(native.status, 200) << native.body;
  EXPECT_EQ(parsed(native).at("meta_info").at("prompt_tokens"), json::value(1));
  EXPECT_EQ(server.generate(R"({"input_ids":[]})").status, 400) << "there is no token";
}

TEST(OpenAiCompletion, ErrorsNameTheField) {
  TestServer server;
  const struct {
    std::string_view body, param;
  } cases[] = {
      {R"({})", "prompt"},
      {R"({"prompt":[]})", "prompt"},
      {R"({"prompt":[[]]})", "prompt[0]"},
      {R"({"prompt":[5,-1]})", "prompt[1]"},
      {R"({"prompt":[5,4096]})", "prompt[1]"},
      {R"({"prompt":["a",5]})", "prompt[1]"},
      {R"({"prompt":5})", "prompt"},
      {R"({"prompt":"a","suffix":"b"})", "suffix"},
      {R"({"prompt":"a","best_of":3,"n":2})", "best_of"},
      {R"({"prompt":"a","logprobs":129})", "logprobs"},
      {R"({"prompt":"a","logprobs":true})", "logprobs"},
      {R"({"prompt":"a","max_tokens":-1})", "max_tokens"},
      {R"({"prompt":"a","max_tokens":5000})", "max_tokens"},
      {R"({"prompt":"a","rid":["x","y"]})", "rid"},
      {R"({"prompt":"a","guided_regex":"b"})", "guided_regex"},
      {R"({"prompt":"a","stream_options":{"include_usage":1}})", "stream_options.include_usage"},
  };
  for (const auto& one : cases) {
    const HttpResponse response = complete(server, std::string(one.body));
    EXPECT_EQ(response.status, 400) << one.body;
    EXPECT_EQ(str(parsed(response).at("error").at("param")), one.param) << response.body;
  }
  EXPECT_EQ(complete(server, "{").status, 400);
  EXPECT_EQ(str(parsed(complete(server, R"({"prompt":"a","best_of":3,"n":2})")).at("error").at("message")),
            "best_of is 3; must be 1 or n, which is 2: choices are not ranked");
  // A prompt that is too long is an error, whatever length is requested.
  TestServer small({.engine = {.context_length = 64}});
  std::string ids = "3";
  for (int i = 0; i < 99; ++i) ids += ",3";
  const HttpResponse longer = complete(small, "{\"prompt\":[" + ids + "],\"max_tokens\":1}");
  EXPECT_EQ(str(parsed(longer).at("error").at("param")), "prompt") << longer.body;
}

TEST(OpenAiTokenize, ReturnsTokensAndTurnsThemBackIntoText) {
  TestServer server;
  const json::value one = parsed(server.call("POST", "/v1/tokenize", R"({"prompt":"Hello wörld"})"));
  const auto ids = json::value_to<std::vector<int32_t>>(one.at("tokens"));
  EXPECT_EQ(ids, server.tokenizer().encode("Hello wörld"));
  EXPECT_EQ(one.at("count").to_number<size_t>(), ids.size());
  EXPECT_EQ(one.at("max_model_len").to_number<int>(), 4096);
  const json::value bare =
      parsed(server.call("POST", "/v1/tokenize", R"({"prompt":["Hello","a"],"add_special_tokens":false})"));
  EXPECT_EQ(json::value_to<std::vector<int32_t>>(bare.at("tokens").at(0)),
            server.tokenizer().encode("Hello", false));
  EXPECT_EQ(bare.at("count").as_array().size(), 2U);

  const auto back = [&](const json::value& tokens, bool skip) {
    return parsed(
               server.call("POST", "/v1/detokenize",
                           json::serialize(json::object{{"tokens", tokens}, {"skip_special_tokens", skip}})))
        .at("text");
  };
  EXPECT_EQ(back(one.at("tokens"), true), json::value("Hello wörld"));
  EXPECT_TRUE(str(back(one.at("tokens"), false)).starts_with("<｜begin"));
  EXPECT_EQ(back(bare.at("tokens"), true), (json::value{"Hello", "a"}));
  EXPECT_EQ(back(json::array{}, true), json::value(""));
  EXPECT_EQ(server.call("POST", "/v1/detokenize", R"({"tokens":["a"]})").status, 400);
  EXPECT_EQ(server.call("POST", "/v1/detokenize", R"({"tokens":"a"})").status, 400);
  for (const char* body : {R"({"tokens":[5,4096]})", R"({"tokens":[[-1]]})"}) {
    const HttpResponse outside = server.call("POST", "/v1/detokenize", body);
    EXPECT_EQ(outside.status, 400);
    EXPECT_NE(outside.body.find("4095"), std::string::npos) << outside.body;
  }
}

}  // namespace
}  // namespace hadal::server
