// Tests that the memory of requests is counted before it is taken, is bounded by one limit, and is given
// back.
#include "server/admission/request_memory.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <boost/json.hpp>

#include "server/admission/memory_costs.h"
#include "server/http/http_ledger.h"
#include "server/metrics.h"
#include "tests/server/http_test_client.h"
#include "tests/server/http_test_server.h"
#include "tests/server/test_server.h"

namespace hadal::server {
namespace {

using testing::has_retry_after;
using testing::TestClient;
using testing::TestServer;
namespace json = boost::json;

constexpr size_t kRoomy = size_t{1} << 40;

std::shared_ptr<RequestMemory> memory_of(size_t limit) {
  return std::make_shared<RequestMemory>(limit);
}

void expect_empty(const RequestMemory& memory) {
  EXPECT_EQ(memory.total(), 0U);
  for (size_t i = 0; i < kNumMemoryKinds; ++i) {
    const auto kind = static_cast<MemoryKind>(i);
    EXPECT_EQ(memory.bytes(kind), 0U) << to_string(kind);
  }
}

// Returns the options of a server with this ledger.
TestServer::Options with(const std::shared_ptr<RequestMemory>& memory) {
  TestServer::Options options;
  options.server.memory = memory;
  options.chat_format = ChatFormat::kV2;
  return options;
}

TEST(RequestMemory, TakesUpToItsLimitAndCountsWhatItRefuses) {
  RequestMemory memory(100);
  EXPECT_TRUE(memory.take(MemoryKind::kBody, 60));
  EXPECT_FALSE(memory.take(MemoryKind::kPrompt, 41));
  EXPECT_FALSE(memory.take(MemoryKind::kPrompt, SIZE_MAX));
  EXPECT_TRUE(memory.take(MemoryKind::kPrompt, 40));
  EXPECT_FALSE(memory.take(MemoryKind::kOutput, 1));
  EXPECT_TRUE(memory.take(MemoryKind::kOutput, 0));
  memory.take_always(MemoryKind::kOutput, 5);
  EXPECT_EQ(memory.total(), 105U);
  EXPECT_EQ(memory.refused(MemoryKind::kPrompt), 2);
  EXPECT_EQ(memory.refused(MemoryKind::kOutput), 1);
  memory.give_back(MemoryKind::kBody, 60);
  memory.give_back(MemoryKind::kPrompt, 40);
  memory.give_back(MemoryKind::kOutput, 5);
  expect_empty(memory);
}

TEST(RequestMemory, AKindMayHaveALimitOfItsOwn) {
  using Taken = RequestMemory::Taken;
  RequestMemory memory(100);
  EXPECT_EQ(memory.take_within(MemoryKind::kBody, 40, 50), Taken::kTaken);
  EXPECT_TRUE(memory.take(MemoryKind::kJson, 50));
  EXPECT_EQ(memory.take_within(MemoryKind::kBody, 11, 50), Taken::kKindReached);
  EXPECT_EQ(memory.take_within(MemoryKind::kBody, 11, 60), Taken::kReached);
  EXPECT_EQ(memory.bytes(MemoryKind::kBody), 40U);
  EXPECT_EQ(memory.total(), 90U);
  EXPECT_EQ(memory.refused(MemoryKind::kBody), 1);
  EXPECT_EQ(memory.take_within(MemoryKind::kBody, 10, 50), Taken::kTaken);
}

TEST(RequestMemory, ManyThreadsNeverPassTheLimitAndLeaveNothing) {
  RequestMemory memory(1000);
  std::atomic<bool> passed{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (size_t round = 0; round < 20'000; ++round) {
        const size_t bytes = 1 + round % 400;
        if (!memory.take(MemoryKind::kChoice, bytes)) continue;
        if (memory.bytes(MemoryKind::kChoice) > 1000) passed = true;
        memory.give_back(MemoryKind::kChoice, bytes);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_FALSE(passed);
  expect_empty(memory);
}

TEST(MemoryCharge, GivesBackWhatItHoldsWhenItEndsOrIsReplaced) {
  const auto memory = memory_of(1000);
  {
    MemoryCharge charge(memory);
    EXPECT_TRUE(charge.add(MemoryKind::kBody, 300).ok());
    MemoryCharge moved = std::move(charge);
    EXPECT_EQ(memory->total(), 300U);
    const Result<void> refused = moved.add(MemoryKind::kGrammar, 701);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.status().code, StatusCode::kResourceExhausted);
    EXPECT_NE(refused.status().message.find("max-request-memory"), std::string::npos);
    EXPECT_NE(refused.status().message.find("its grammar"), std::string::npos);
    moved.set(MemoryKind::kBody, 100);
    EXPECT_EQ(memory->total(), 100U);
    MemoryCharge other(memory);
    EXPECT_TRUE(other.add(MemoryKind::kJson, 7).ok());
    other = std::move(moved);
    EXPECT_EQ(memory->total(), 100U);
  }
  expect_empty(*memory);
}

TEST(RequestMemory, IsEmptyAfterEveryKindOfRequest) {
  const auto memory = memory_of(kRoomy);
  TestServer server(with(memory));
  const std::vector<std::pair<std::string, std::string>> requests = {
      {"/generate", R"({"text":"Hello","sampling_params":{"max_new_tokens":5}})"},
      {"/generate", R"({"text":["a","b"],"sampling_params":{"max_new_tokens":600,"n":3},"stream":true})"},
      {"/generate",
       R"({"input_ids":[5,6,7],"return_logprob":true,"logprob_start_len":0,"top_logprobs_num":20})"},
      {"/v1/completions", R"({"model":"m","prompt":"Hi","max_tokens":700,"logprobs":5,"echo":true,"n":2})"},
      {"/v1/completions", R"({"model":"m","prompt":"Hi","max_tokens":7,"stream":true,"logprobs":3})"},
      {"/v1/chat/completions", R"({"model":"m","messages":[{"role":"user","content":"Hi"}],"max_tokens":9})"},
      {"/tokenize", R"({"prompt":["one two","three"]})"},
      {"/detokenize", R"({"tokens":[5,6,7]})"},
      {"/generate", R"({"text":"a","sampling_params":{"max_new_tokens":-1}})"},
      {"/generate", "not JSON"},
      {"/v1/completions", R"({"prompt":[1000000]})"},
      {"/generate", "{\"text\":\"a\",\"x\":[" + std::string(2 << 20, '1') + "]}"},
  };
  for (const auto& [path, body] : requests) {
    const auto exchange = server.send("POST", path, body);
    ASSERT_TRUE(server.wait(*exchange)) << path << body.substr(0, 100);
    EXPECT_NE(exchange->response.status, 503);
    server.io().run_until([&] { return memory->total() == 0; });
    expect_empty(*memory);
  }
  server.gate().allow(3);
  const auto gone =
      server.send("POST", "/generate", R"({"text":"a","sampling_params":{"max_new_tokens":900}})");
  EXPECT_GT(memory->total(), 0U);
  gone->disconnect();
  expect_empty(*memory);
  server.gate().open();
}

TEST(RequestMemory, CountsAChoiceUntilItsAnswerIsComplete) {
  const auto memory = memory_of(kRoomy);
  TestServer server(with(memory));
  server.gate().allow(0);
  const auto exchange = server.send(
      "POST", "/generate",
      R"({"input_ids":[1,2,3,4],"return_logprob":true,"logprob_start_len":1,"top_logprobs_num":2,)"
      R"("sampling_params":{"max_new_tokens":10,"n":2}})");
  ASSERT_TRUE(server.io().run_until([&] { return server.gate().holds_engine(); }));
  EXPECT_EQ(memory->bytes(MemoryKind::kChoice), 2 * kChoiceBytes + 4 * kPromptTokenBytes);
  EXPECT_EQ(memory->bytes(MemoryKind::kOutput), 2 * 10 * kKeptTokenBytes);
  EXPECT_EQ(memory->bytes(MemoryKind::kLogprob), 2 * (3 + 10) * 3 * kKeptLogprobBytes);
  EXPECT_EQ(memory->bytes(MemoryKind::kJson), 0U);  // only while it is read
  EXPECT_EQ(memory->bytes(MemoryKind::kPrompt), 0U);
  server.gate().open();
  ASSERT_TRUE(server.wait(*exchange));
  expect_empty(*memory);
}

TEST(RequestMemory, CountsTheListsAndTheStopExpressionsOfEachChoice) {
  const auto memory = memory_of(kRoomy);
  TestServer server(with(memory));
  server.gate().allow(0);
  // Returns how much one request with these parameters has counted while it runs.
  const auto counted = [&](const std::string& parameters, MemoryKind kind) {
    const auto exchange =
        server.send("POST", "/generate",
                    R"({"input_ids":[1],"sampling_params":{"max_new_tokens":10,"n":2)" + parameters + "}}");
    // A body with stop expressions is parsed by a worker, so its memory is counted later.
    EXPECT_TRUE(server.io().run_until([&] { return memory->bytes(kind) > 0; })) << parameters;
    const size_t bytes = memory->bytes(kind);
    exchange->disconnect();
    EXPECT_TRUE(server.io().run_until([&] { return memory->bytes(kind) == 0; })) << parameters;
    return bytes;
  };
  const size_t plain = counted("", MemoryKind::kChoice);
  EXPECT_GE(counted(R"(,"logit_bias":{"1":1,"2":1})", MemoryKind::kChoice), plain + 2 * 2 * 8);
  EXPECT_GE(counted(R"(,"stop_token_ids":[7,8,9])", MemoryKind::kChoice), plain + 2 * 3 * 4);
  EXPECT_EQ(counted(R"(,"repetition_penalty":1.1)", MemoryKind::kChoice), plain + kPenalisedPromptTokenBytes)
      << "both choices share the tokens of the prompt";
  EXPECT_EQ(counted(R"(,"frequency_penalty":0.1)", MemoryKind::kChoice), plain);
  EXPECT_EQ(counted(R"(,"frequency_penalty":0.1)", MemoryKind::kOutput),
            counted("", MemoryKind::kOutput) + 2 * 10 * kCountedTokenBytes);
  EXPECT_GE(counted(R"(,"stop":"abcdefgh")", MemoryKind::kChoice), plain + 2 * 8);
  // Each choice has a search with three threads of 16 bytes and a stamp of 8 for each instruction.
  EXPECT_GE(counted(R"(,"stop_regex":".{500}Q")", MemoryKind::kChoice), plain + 2 * 500 * 56);
  EXPECT_EQ(counted(R"(,"stop":"a")", MemoryKind::kOutput), 2 * 10 * kKeptTokenBytes);
  EXPECT_EQ(counted(R"(,"stop_regex":"a")", MemoryKind::kOutput),
            2 * 10 * (kKeptTokenBytes + kHeldTokenBytes));
  server.gate().open();
  expect_empty(*memory);
}

TEST(RequestMemory, BeyondTheLimitIs503InTheFormOfTheApiAndOthersAreServed) {
  const auto memory = memory_of(400 << 10);
  TestServer server(with(memory));
  server.gate().allow(0);
  const std::string large = R"("max_tokens":200,"prompt":"Hi","n":2,"logprobs":1)";
  const auto running = server.send("POST", "/v1/completions", R"({"model":"m",)" + large + "}");
  ASSERT_TRUE(server.io().run_until([&] { return server.gate().holds_engine(); }));
  ASSERT_GT(memory->total(), 150U << 10);
  EXPECT_FALSE(running->complete);

  const HttpResponse openai = server.call("POST", "/v1/completions", R"({"model":"m",)" + large + "}");
  EXPECT_EQ(openai.status, 503) << openai.body;
  EXPECT_TRUE(has_retry_after(openai));
  const json::value error = json::parse(openai.body).at("error");
  EXPECT_EQ(error.at("type").as_string(), "service_unavailable_error");
  EXPECT_NE(error.at("message").as_string().find("max-request-memory"), json::string::npos);

  const HttpResponse native =
      server.generate(R"({"text":"Hi","sampling_params":{"max_new_tokens":200,"n":20}})");
  EXPECT_EQ(native.status, 503) << native.body;
  EXPECT_TRUE(has_retry_after(native));
  EXPECT_EQ(json::parse(native.body).at("type").as_string(), "ServiceUnavailableError");

  server.gate().open();
  const HttpResponse small = server.generate(R"({"text":"Hi","sampling_params":{"max_new_tokens":4}})");
  EXPECT_EQ(small.status, 200) << small.body;
  ASSERT_TRUE(server.wait(*running));
  EXPECT_EQ(running->response.status, 200) << running->response.body;
  expect_empty(*memory);
  EXPECT_GT(memory->refused(MemoryKind::kLogprob) + memory->refused(MemoryKind::kOutput) +
                memory->refused(MemoryKind::kChoice),
            1);
}

// An answer is counted in blocks while it grows, because most answers end early.
TEST(RequestMemory, AnAnswerThatOutgrowsTheLimitEndsWithItsOneError) {
  const size_t first = kChoiceBytes + kTokenBlock * kKeptTokenBytes;
  const auto memory = memory_of(first + (20 << 10));
  TestServer server(with(memory));
  const HttpResponse native = server.generate(R"({"text":"Hi","sampling_params":{"max_new_tokens":1000}})");
  EXPECT_EQ(native.status, 503) << native.body;
  EXPECT_TRUE(has_retry_after(native));
  expect_empty(*memory);
  const HttpResponse openai =
      server.call("POST", "/v1/completions", R"({"model":"m","prompt":"Hi","max_tokens":1000})");
  EXPECT_EQ(openai.status, 503) << openai.body;
  expect_empty(*memory);
  EXPECT_EQ(memory->refused(MemoryKind::kOutput), 2);
  // The tokens of a stream leave the server when its client reads them.
  const auto stream = server.send("POST", "/v1/completions",
                                  R"({"model":"m","prompt":"Hi","max_tokens":1000,"stream":true})");
  ASSERT_TRUE(server.wait(*stream));
  EXPECT_NE(stream->response.body.find("\"finish_reason\":\"length\""), std::string::npos);
  expect_empty(*memory);
}

TEST(RequestMemory, AStreamWhoseClientDoesNotReadIsCountedAndEndsAtTheLimit) {
  const auto memory = memory_of(200 << 10);
  TestServer server(with(memory));
  server.gate().allow(0);
  const auto stream =
      server.send("POST", "/v1/completions",
                  R"({"model":"m","prompt":"Hi","max_tokens":1500,"stream":true,"logprobs":5})");
  stream->is_writable = false;
  server.gate().open();
  ASSERT_TRUE(
      server.io().run_until([&] { return stream->complete || memory->refused(MemoryKind::kLogprob) > 0; }));
  ASSERT_TRUE(server.wait(*stream));
  EXPECT_NE(stream->response.body.find("\"error\":"), std::string::npos);
  EXPECT_TRUE(stream->response.body.ends_with("data: [DONE]\n\n"));
  expect_empty(*memory);
}

TEST(RequestMemory, ValuesOfALargeBodyAreCountedAsTheyAreParsed) {
  const std::string body = "{\"text\":\"a\",\"x\":[" + [] {
    std::string list;
    for (int i = 0; i < (1 << 20); ++i) list += "1,";
    return list;
  }() + "1]}";
  {
    const auto memory = memory_of(body.size() * kTextBytesPerByte + (8 << 20));
    TestServer server(with(memory));
    const HttpResponse refused = server.generate(body);
    EXPECT_EQ(refused.status, 503) << refused.body;
    EXPECT_EQ(memory->refused(MemoryKind::kJson), 1);
    expect_empty(*memory);
  }
  // The same number of bytes of text needs little memory.
  const auto memory = memory_of(body.size() * kTextBytesPerByte + (8 << 20));
  TestServer server(with(memory));
  const HttpResponse answer =
      server.generate("{\"text\":\"a\",\"sampling_params\":{\"max_new_tokens\":1},\"x\":\"" +
                      std::string(body.size(), 'y') + "\"}");
  EXPECT_EQ(answer.status, 200) << answer.body;
  expect_empty(*memory);
}

TEST(RequestMemory, BodiesAndUnreadAnswersOfConnectionsAreCounted) {
  // The client's share of the memory has room for one of its two bodies.
  const auto memory = memory_of((300'000 + 3 * kConnectionBytes) * 8 / 7);
  const std::string answer(200'000, 'x');
  const auto server = testing::start_server(
      [&](const std::shared_ptr<HttpExchange>& exchange) {
        exchange->respond(testing::text_response(exchange->request().path == "/x" ? "short" : answer));
      },
      [&](HttpServerOptions& options) {
        options.memory = memory;
        options.num_threads = 1;
      });
  const std::string head = "POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 290000\r\n\r\n";
  TestClient first(server->port());
  first.send(head + std::string(100'000, 'a'));
  ASSERT_TRUE(testing::eventually([&] { return memory->bytes(MemoryKind::kBody) == 290'000; }));
  TestClient second(server->port());
  second.send(head + std::string(100'000, 'a'));
  const auto refused = second.receive_response();
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(refused.headers.count("retry-after"), 1U);
  EXPECT_EQ(server->ledger().refused(Refusal::kMemory), 1);
  EXPECT_EQ(memory->refused(MemoryKind::kBody), 1);
  // An answer for which there is no room becomes an error too.
  TestClient third(server->port());
  third.send("GET /large HTTP/1.1\r\nHost: h\r\n\r\n");
  EXPECT_EQ(third.receive_response().status, 503);
  first.send(std::string(190'000, 'a'));
  EXPECT_EQ(first.receive_response().status, 200);
  third.send("GET /large HTTP/1.1\r\nHost: h\r\n\r\n");
  EXPECT_EQ(third.receive_response().body, answer);
  for (TestClient* client : {&first, &second, &third}) client->close();
  EXPECT_TRUE(testing::eventually([&] { return memory->total() == 0; }));
  expect_empty(*memory);
}

// Returns a request whose headers have about this many bytes.
std::string request_with_headers(size_t bytes) {
  return "GET /x HTTP/1.1\r\nHost: h\r\nX-Long: " + std::string(bytes, 'x') + "\r\n\r\n";
}

TEST(RequestMemory, HeadersAreCountedFromTheirFirstByteUntilTheAnswerIsComplete) {
  const auto memory = memory_of(kRoomy);
  std::shared_ptr<HttpExchange> kept;
  testing::Counter begun;
  const auto server = testing::start_server(
      [&](std::shared_ptr<HttpExchange> exchange) {
        kept = std::move(exchange);
        begun.add();
      },
      [&](HttpServerOptions& options) {
        options.memory = memory;
        options.num_threads = 1;
      });
  const std::string request = request_with_headers(20'000);
  TestClient client(server->port());
  client.send(request.substr(0, 15'000));  // waits to be parsed
  ASSERT_TRUE(testing::eventually([&] { return memory->bytes(MemoryKind::kHeader) >= 2 * 15'000; }));
  client.send(request.substr(15'000));
  ASSERT_TRUE(begun.wait_for(1));
  EXPECT_TRUE(testing::eventually([&] { return memory->bytes(MemoryKind::kHeader) < 2 * 15'000; }));
  EXPECT_GE(memory->bytes(MemoryKind::kHeader), 20'000U);
  server->io_thread(0).post([&] { std::exchange(kept, nullptr)->respond(testing::text_response("ok")); });
  EXPECT_EQ(client.receive_response().status, 200);
  EXPECT_TRUE(testing::eventually([&] { return memory->total() == kConnectionBytes; }));
  // A client that leaves in the middle of its headers leaves no memory in the ledger.
  client.send(request.substr(0, 15'000));
  ASSERT_TRUE(testing::eventually([&] { return memory->bytes(MemoryKind::kHeader) >= 2 * 15'000; }));
  client.close();
  EXPECT_TRUE(testing::eventually([&] { return memory->total() == 0; }));
}

TEST(RequestMemory, HeadsTogetherHaveAnEighth) {
  const auto memory = memory_of(size_t{1} << 20);
  HeadCharge one(memory);
  HeadCharge other(memory);
  EXPECT_TRUE(one.grow_to(100 << 10));
  EXPECT_FALSE(other.grow_to(40 << 10));
  EXPECT_EQ(memory->refused(MemoryKind::kHeader), 1);
  EXPECT_EQ(memory->bytes(MemoryKind::kHeader), (104U << 10) + HeadCharge::kBlock)
      << "the first block is granted";
  EXPECT_FALSE(HeadCharge::has_room(*memory, 40 << 10));
  MemoryCharge body(memory);
  EXPECT_TRUE(body.try_add(MemoryKind::kBody, 800 << 10)) << "the rest is for bodies and answers";
}

TEST(RequestMemory, WithoutMemoryLongHeadersAreRefusedAndSmallRequestsAnswered) {
  const auto memory = memory_of(1'000'000);
  const auto server = testing::start_server(
      [](const std::shared_ptr<HttpExchange>& exchange) { exchange->respond(testing::text_response("ok")); },
      [&](HttpServerOptions& options) { options.memory = memory; });
  ASSERT_TRUE(memory->take(MemoryKind::kOutput, 1'000'000));
  for (const bool in_pieces : {false, true}) {
    TestClient client(server->port());
    client.send(in_pieces ? request_with_headers(20'000).substr(0, 15'000) : request_with_headers(20'000));
    const auto refused = client.receive_response();
    EXPECT_EQ(refused.status, 503);
    EXPECT_EQ(refused.headers.count("retry-after"), 1U);
  }
  EXPECT_EQ(memory->refused(MemoryKind::kHeader), 2);
  EXPECT_EQ(server->ledger().refused(Refusal::kMemory), 2);
  TestClient small(server->port());
  small.send(request_with_headers(1000));
  EXPECT_EQ(small.receive_response().status, 200);
  memory->give_back(MemoryKind::kOutput, 1'000'000);
  TestClient large(server->port());
  large.send(request_with_headers(20'000));
  EXPECT_EQ(large.receive_response().status, 200);
  for (TestClient* client : {&small, &large}) client->close();
  EXPECT_TRUE(testing::eventually([&] { return memory->total() == 0; }));
}

TEST(RequestMemory, IsOnThePageOfMetricsByKind) {
  RequestMemory memory(1000);
  EXPECT_TRUE(memory.take(MemoryKind::kPrompt, 17));
  EXPECT_FALSE(memory.take(MemoryKind::kGrammar, 1000));
  const Metrics metrics({.enabled = true, .prefix = "p:", .model_name = "m"});
  const std::string page = metrics.text({}, nullptr, &memory);
  EXPECT_NE(
      page.find("p:request_memory_bytes{engine_type=\"unified\",model_name=\"m\",kind=\"prompt\"} 17\n"),
      std::string::npos)
      << page;
  EXPECT_NE(page.find("kind=\"grammar\"} 1\n"), std::string::npos);
  EXPECT_NE(page.find("p:request_memory_limit_bytes{engine_type=\"unified\",model_name=\"m\"} 1000\n"),
            std::string::npos);
}

}  // namespace
}  // namespace hadal::server
