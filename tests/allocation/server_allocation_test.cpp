// Tests an allocation that fails anywhere in the server while it answers a request: the request gets one
// answer or one error, the next request is answered as usual, and the ledger is empty. What requests really
// allocate is compared with what the ledger says.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/memory_reserve.h"
#include "server/admission/request_memory.h"
#include "server/http/http_ledger.h"
#include "server/http/http_parser.h"
#include "tests/allocation/failing_allocator.h"
#include "tests/server/http_test_client.h"
#include "tests/server/http_test_server.h"
#include "tests/server/test_server.h"
#include "text/grammar/grammar.h"

namespace hadal::server {
namespace {

using hadal::testing::Exempt;
using hadal::testing::Failure;
using hadal::testing::Victims;
using testing::ClientResponse;
using testing::TestClient;
using testing::TestServer;

std::string post(const std::string& path, const std::string& body) {
  return fmt::format("POST {} HTTP/1.1\r\nHost: h\r\nContent-Length: {}\r\n\r\n{}", path, body.size(), body);
}

// Reads an answer with a Content-Length and discards it. Returns its status.
int discard_answer(TestClient& client) {
  while (client.received.find("\r\n\r\n") == std::string::npos) {
    if (!client.receive_some()) return 0;
  }
  const std::string_view received = client.received;
  const size_t field = received.find("Content-Length: ");
  if (field == std::string::npos) return 0;
  size_t left = std::strtoull(client.received.c_str() + field + 16, nullptr, 10);
  left -= received.size() - received.find("\r\n\r\n") - 4;
  const int status = std::atoi(client.received.c_str() + received.find(' ') + 1);
  static char buffer[1 << 16];
  while (left > 0) {
    pollfd ready{client.fd(), POLLIN, 0};
    if (::poll(&ready, 1, TestClient::kDeadlineMs) != 1) return 0;
    const ssize_t count = ::recv(client.fd(), buffer, std::min(left, sizeof(buffer)), 0);
    if (count <= 0) return 0;
    left -= static_cast<size_t>(count);
  }
  return status;
}

// FailingServer is a server with grammars over the engine and the tokenizer of a TestServer.
class FailingServer : public ::testing::Test {
 protected:
  FailingServer() {
    set_log_level(LogLevel::kOff);
    config_.vocab_size = testing::kVocab;
    config_.max_position_embeddings = 4096;
    config_.eos_token_ids = {1};
    if (grammar_available()) {
      grammars_ =
          GrammarCompiler::create(base_.tokenizer(), {.vocab_size = testing::kVocab, .end_ids = {1}}).value();
    }
    ServerOptions options;
    options.served_model_name = "hadal-tiny";
    options.memory = memory_;
    server_ = std::make_unique<Server>(Server::Parts{.options = std::move(options),
                                                     .config = config_,
                                                     .engine = base_.engine(),
                                                     .tokenizer = &base_.tokenizer(),
                                                     .chat_format = ChatFormat::kV2,
                                                     .grammars = grammars_.get()},
                                       1);
    server_->set_ready(1.5);
    HttpServerOptions http;
    http.port = 0;
    http.num_threads = 1;
    http.access_log = false;
    EXPECT_TRUE(server_->listen(http).ok());
  }
  ~FailingServer() override {
    base_.gate().open();
    server_->stop();
    server_.reset();
    EXPECT_EQ(memory_->total(), 0U) << "no connection is left";
    set_log_level(LogLevel::kInfo);
  }

  uint16_t port() { return server_->port(); }

  void expect_normal() {
    TestClient client(port());
    client.send(post("/generate", R"({"text":"Hello","sampling_params":{"max_new_tokens":3}})"));
    const ClientResponse answer = client.receive_response();
    EXPECT_EQ(answer.status, 200) << answer.body;
    EXPECT_NE(answer.body.find("\"completion_tokens\":3"), std::string::npos);
    const auto of_requests = [&] { return memory_->total() - memory_->bytes(MemoryKind::kConnection); };
    EXPECT_TRUE(testing::eventually([&] { return of_requests() == 0; })) << of_requests();
    EXPECT_TRUE(testing::eventually([&] {
      const EngineStats stats = base_.engine().stats();
      return stats.scheduler.num_running == 0 && stats.scheduler.num_queued == 0;
    }));
  }

  void try_every_allocation(const std::string& text) {
    try_every_allocation([&](int64_t) { return text; });
  }
  // Sends text_of(k) while the k-th allocation of the server fails, for each k in turn. If the client gets an
  // error, its status is 503.
  template <typename TextOf>
  void try_every_allocation(TextOf text_of) {
    const Exempt exempt;
    int64_t num_errors = 0;
    int64_t k = 0;
    for (bool has_fired = true; has_fired;) {
      ++k;
      const std::string text = text_of(k);
      SCOPED_TRACE(fmt::format("call {} of {}", k, text.substr(0, 40)));
      TestClient client(port());
      client.send("GET /health HTTP/1.1\r\nHost: h\r\n\r\n");
      EXPECT_EQ(client.receive_response().status, 200);
      hadal::testing::fail_allocation(k, Victims::kAll, Failure::kWithHandler);
      client.send(text);
      const ClientResponse answer = client.receive_response();
      has_fired = hadal::testing::stop_failing();
      if (answer.status == 503) {
        ++num_errors;
        EXPECT_EQ(answer.headers.count("retry-after"), 1U);
      } else {
        EXPECT_EQ(answer.status, 200) << answer.body;
        if (answer.body.find("\"error\":") != std::string::npos) {  // an error inside a stream
          ++num_errors;
          EXPECT_NE(answer.body.find("\"service_unavailable\""), std::string::npos) << answer.body;
        }
      }
      expect_normal();
      if (HasFailure()) return;
    }
    EXPECT_GT(k, 50);
    EXPECT_GT(num_errors, 5);
  }

  const MemoryReserve reserve_;
  const std::shared_ptr<RequestMemory> memory_ = std::make_shared<RequestMemory>(size_t{1} << 30);
  ModelConfig config_;
  TestServer base_;
  std::unique_ptr<GrammarCompiler> grammars_;
  std::unique_ptr<Server> server_;
};

TEST_F(FailingServer, AnswersGenerateOnceWhereverAnAllocationFails) {
  try_every_allocation(post(
      "/generate",
      R"({"text":"Hi","return_logprob":true,"top_logprobs_num":2,"sampling_params":{"max_new_tokens":3,"n":2}})"));
}

TEST_F(FailingServer, AnswersAStreamOfCompletionsOnceWhereverAnAllocationFails) {
  try_every_allocation(
      post("/v1/completions", R"({"model":"m","prompt":"Hi","max_tokens":3,"stream":true,"logprobs":1})"));
}

TEST_F(FailingServer, AnswersAChatOnceWhereverAnAllocationFails) {
  try_every_allocation(post("/v1/chat/completions",
                            R"({"model":"m","messages":[{"role":"user","content":"Hi"}],"max_tokens":2})"));
}

// The body is parsed on a worker.
TEST_F(FailingServer, AnswersALargeBodyOnceWhereverAnAllocationFails) {
  try_every_allocation(
      post("/generate", "{\"input_ids\":[1,2],\"sampling_params\":{\"max_new_tokens\":2},\"x\":\"" +
                            std::string(20'000, 'y') + "\"}"));
}

// The request's masks are made on a worker. A grammar that is new each time is compiled each time.
TEST_F(FailingServer, AnswersARequestWithAGrammarOnceWhereverAnAllocationFails) {
  if (!grammar_available()) GTEST_SKIP() << "built without xgrammar";
  try_every_allocation([](int64_t k) {
    return post(
        "/generate",
        fmt::format(R"({{"text":"Hi","sampling_params":{{"max_new_tokens":2,"regex":"x{:06}"}}}})", k));
  });
}

// The body is parsed on a worker as well.
TEST_F(FailingServer, AnswersARequestWithStopExpressionsOnceWhereverAnAllocationFails) {
  try_every_allocation(post(
      "/generate",
      R"({"text":"Hi","sampling_params":{"max_new_tokens":3,"stop_regex":["(?i)zz[^x]+y","(a|\\d)*q"]}})"));
}

TEST_F(FailingServer, AcceptsTheNextConnectionWhereverAnAllocationFails) {
  const Exempt exempt;
  int64_t k = 0;
  for (bool has_fired = true; has_fired && !HasFailure();) {
    SCOPED_TRACE(fmt::format("call {}", ++k));
    hadal::testing::fail_allocation(k, Victims::kAll, Failure::kWithHandler);
    TestClient client(port());
    client.send("GET /health HTTP/1.1\r\nHost: h\r\n\r\n");
    const ClientResponse answer = client.receive_response();
    has_fired = hadal::testing::stop_failing();
    // The connection itself may be lost.
    EXPECT_TRUE(answer.status == 200 || answer.status == 503 || client.at_end()) << answer.status;
    expect_normal();
  }
  EXPECT_GT(k, 10);
}

// Parses the head of a request whose body is still to come, and compares the bytes that it allocates with
// those that it reports to on_head.
TEST_F(FailingServer, HeadersAllocateNoMoreThanTheLedgerSays) {
  std::string small_fields, short_values;
  for (int i = 0; i < 900; ++i) small_fields += "a:\r\n";
  for (int i = 0; i < 900; ++i) short_values += "abcdefghijklmnop: abcdefghijklmnop\r\n";
  for (const std::string& rest :
       {std::string(), small_fields, short_values, "long: " + std::string(60'000, 'x') + "\r\n",
        std::string(60'000, 'n') + ": 1\r\n"}) {
    for (const size_t path : {size_t{1}, size_t{3000}}) {
      const std::string head = "POST /" + std::string(path, 'p') + "?" + std::string(path, 'q') +
                               " HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n" + rest + "\r\n";
      size_t counted = 0;
      HttpRequestParser parser(1 << 17, 1 << 17, {.on_head = [&counted](size_t bytes) {
                                 counted = bytes;
                                 return true;
                               }});
      const int64_t before = hadal::testing::live_bytes();
      hadal::testing::reset_peak();
      EXPECT_EQ(parser.feed(head), head.size());
      EXPECT_EQ(parser.state(), HttpRequestParser::State::kNeedMore);
      const auto allocated = static_cast<size_t>(hadal::testing::peak_bytes() - before);
      EXPECT_LE(allocated, counted + 1024 + 9) << head.substr(0, 40) << "… of " << head.size();
    }
  }
}

// Between two answers a connection keeps only small buffers, however long the answers are.
TEST_F(FailingServer, AConnectionKeepsNoMoreThanTheLedgerSays) {
  constexpr int64_t kClientBytes = 1024;  // allowance for the client, which is in this process too
  const auto ask = [](TestClient& client) {
    const ClientResponse answer = client.get("/");
    EXPECT_EQ(answer.status, 200);
    EXPECT_GT(answer.body.size(), kKeptBufferBytes);
    std::string().swap(client.received);
  };
  const auto open = [&](int count) {
    std::vector<std::unique_ptr<TestClient>> clients;
    for (int i = 0; i < count; ++i) {
      clients.push_back(std::make_unique<TestClient>(port()));
      for (int k = 0; k < 3; ++k) ask(*clients.back());
    }
    return clients;
  };
  const auto first = open(10);  // with what threads and libraries allocate once
  constexpr int kCount = 100;
  const int64_t before = hadal::testing::live_bytes();
  const auto clients = open(kCount);
  const int64_t each = (hadal::testing::live_bytes() - before) / kCount;
  std::printf("a connection holds %ld bytes\n", static_cast<long>(each));
  EXPECT_LE(each, static_cast<int64_t>(kConnectionBytes) + kClientBytes);
}

// The estimates are upper bounds: no request allocates more than its charge plus the memory that a thread
// always needs.
TEST_F(FailingServer, RequestsAllocateNoMoreThanTheLedgerSays) {
  constexpr int64_t kSlack = 512 << 10;  // allowance for threads, connections and the test itself
  std::string ids = "[1";
  for (int i = 0; i < 2000; ++i) ids += ",7";
  ids += ']';
  std::string biases = "{\"0\":1";
  for (int i = 1; i < 1024; ++i) biases += fmt::format(",\"{}\":1", i);
  biases += '}';
  std::string stop_ids = "[5";
  for (int i = 1; i < 1024; ++i) stop_ids += ",5";
  stop_ids += ']';
  const auto with_lists = [&](const std::string& more) {
    return R"({"text":"Hi","sampling_params":{"n":128,"max_new_tokens":16)" + more + "}}";
  };
  const auto with_stops = [](const std::string& stops) {
    return R"({"text":"Hi","sampling_params":{"n":64,"max_new_tokens":250,"ignore_eos":true,)" + stops + "}}";
  };
  std::string alternatives = ".{30}A";
  for (char c = 'B'; c <= 'Z'; ++c) alternatives += std::string("|.{30}") + c;
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"/generate", with_lists(",\"logit_bias\":" + biases)},
      {"/generate", with_lists(",\"stop_token_ids\":" + stop_ids)},
      {"/generate", with_lists(",\"logit_bias\":" + biases + ",\"stop_token_ids\":" + stop_ids)},
      // In the first two expressions every instruction eventually has a matcher thread. In the others only a
      // few have one, or the whole text is held back.
      {"/generate", with_lists(",\"stop_regex\":\"" + alternatives + "\"")},
      {"/generate", with_stops(R"("stop_regex":".{1000}Q")")},
      {"/generate", with_stops(R"("stop_regex":["[a-e]{40}Q","[f-p]{40}Q","[q-z]{40}Q","\\p{Lu}{40}Q"])")},
      {"/generate", with_stops(R"("stop_regex":"(?s)[a-z].*Q")")},
      {"/generate", with_stops(R"("stop":")" + std::string(4096, 'y') + R"(","stop_regex":"Q$")")},
      {"/generate", R"({"text":"Hi","sampling_params":{"max_new_tokens":40,"n":128}})"},
      {"/generate",
       R"({"text":"Hi","return_logprob":true,"top_logprobs_num":128,"sampling_params":{"max_new_tokens":200}})"},
      {"/generate",
       R"({"return_logprob":true,"logprob_start_len":0,"top_logprobs_num":20,"sampling_params":{"max_new_tokens":1},"input_ids":)" +
           ids + "}"},
      {"/generate", R"({"sampling_params":{"max_new_tokens":1,"n":100},"input_ids":)" + ids + "}"},
      {"/v1/completions", R"({"model":"m","prompt":"Hi","max_tokens":256,"n":32,"logprobs":5})"},
      {"/v1/chat/completions",
       R"({"model":"m","messages":[{"role":"user","content":"Hi"}],"max_tokens":200,"logprobs":true,"top_logprobs":20})"},
  };
  for (const auto& [path, body] : cases) {
    expect_normal();
    base_.gate().allow(0);  // so that the charge can be read
    const int64_t before = hadal::testing::live_bytes();
    hadal::testing::reset_peak();
    TestClient client(port());
    client.send(post(path, body));
    ASSERT_TRUE(testing::eventually([&] { return memory_->bytes(MemoryKind::kChoice) > 0; }));
    const auto charged = static_cast<int64_t>(memory_->total());
    base_.gate().open();
    EXPECT_EQ(discard_answer(client), 200);
    const int64_t used = hadal::testing::peak_bytes() - before;
    EXPECT_LE(used, charged + kSlack) << path << body.substr(0, 120);
    EXPECT_GE(used + kSlack, charged / 40) << "far too pessimistic: " << path << body.substr(0, 120);
    std::printf("%-22s charged %6ld KiB, used %6ld KiB\n", path.c_str(), static_cast<long>(charged >> 10),
                static_cast<long>(used >> 10));
  }
}

}  // namespace
}  // namespace hadal::server
