// Tests answers that take time: streams, slow readers, answers from other threads and thousands at once.
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tests/server/http_test_client.h"
#include "tests/server/http_test_server.h"

namespace hadal::server {
namespace {

using testing::Counter;
using testing::start_server;
using testing::TestClient;
using testing::text_response;

// Writes the pieces from `next` to `end`, one per task.
void stream_pieces(const std::shared_ptr<HttpExchange>& exchange, int next, int end) {
  if (next == end) return exchange->finish();
  exchange->write("piece " + std::to_string(next) + "\n");
  exchange->io().post([=] { stream_pieces(exchange, next + 1, end); });
}

std::string all_pieces(int n) {
  std::string text;
  for (int i = 0; i < n; ++i) text += "piece " + std::to_string(i) + "\n";
  return text;
}

TEST(HttpStream, TwoThousandStreamsAtOnceEachGetTheirOwn) {
  constexpr int kStreams = 2000;
  constexpr int kPieces = 20;
  std::atomic<int> open{0};
  std::vector<std::shared_ptr<HttpExchange>> waiting[2];
  std::atomic<HttpServer*> running{nullptr};
  const auto server = start_server([&](const std::shared_ptr<HttpExchange>& exchange) {
    HttpResponse head;
    head.headers = {{"Stream", exchange->request().path}};
    exchange->start_stream(std::move(head));
    waiting[exchange->io().index()].push_back(exchange);
    if (open.fetch_add(1) + 1 < kStreams) return;
    // All streams are open and now run together.
    for (int thread = 0; thread < 2; ++thread)
      running.load()->io_thread(thread).post([&waiting, thread] {
        for (const auto& each : std::exchange(waiting[thread], {})) stream_pieces(each, 0, kPieces);
      });
  });
  running = server.get();
  std::vector<std::unique_ptr<TestClient>> clients;
  for (int i = 0; i < kStreams; ++i) {
    clients.push_back(std::make_unique<TestClient>(server->port()));
    ASSERT_TRUE(clients.back()->connected());
    ASSERT_TRUE(clients.back()->send("GET /" + std::to_string(i) + " HTTP/1.1\r\nHost: h\r\n\r\n"));
  }
  const std::string expected = all_pieces(kPieces);
  for (int i = 0; i < kStreams; ++i) {
    const auto response = clients[static_cast<size_t>(i)]->receive_response();
    ASSERT_EQ(response.status, 200) << i;
    ASSERT_EQ(response.headers.at("stream"), "/" + std::to_string(i));
    ASSERT_EQ(response.body, expected);
  }
}

TEST(HttpStream, ASlowReaderPausesTheWriterAndThenGetsEverything) {
  constexpr size_t kPiece = 10'000;
  constexpr int kPieces = 2000;  // 20 MB, more than socket buffers can store
  std::atomic<int> written{0};
  std::atomic<int> pauses{0};
  std::function<void(std::shared_ptr<HttpExchange>)> pump =
      [&](const std::shared_ptr<HttpExchange>& exchange) {
        while (exchange->writable() && written < kPieces) {
          exchange->write(std::string(kPiece, static_cast<char>('a' + written % 26)));
          ++written;
        }
        if (written == kPieces) return exchange->finish();
        ++pauses;
        exchange->on_writable([&, exchange] { pump(exchange); });
      };
  const auto server = start_server([&](const std::shared_ptr<HttpExchange>& exchange) {
    exchange->start_stream({});
    pump(exchange);
  });
  TestClient client(server->port(), /*ipv6=*/false, /*receive_buffer=*/8192);
  client.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
  ASSERT_TRUE(testing::eventually([&] { return pauses > 0; }));
  const int before = written;
  EXPECT_LT(before, kPieces) << "the writer must stop while the client does not read";
  const auto response = client.receive_response();
  EXPECT_EQ(response.body.size(), kPiece * kPieces);
  for (int i = 0; i < kPieces; ++i)
    ASSERT_EQ(response.body[static_cast<size_t>(i) * kPiece], static_cast<char>('a' + i % 26)) << i;
  EXPECT_EQ(written, kPieces);
}

TEST(HttpStream, OnWritableIsCalledSoonWhenThereIsRoom) {
  const auto server = start_server([](const std::shared_ptr<HttpExchange>& exchange) {
    exchange->start_stream({});
    exchange->on_writable([exchange] {
      exchange->write("room");
      exchange->finish();
    });
  });
  TestClient client(server->port());
  EXPECT_EQ(client.get("/").body, "room");
}

TEST(HttpStream, AnswersComeFromOtherThreadsThroughPost) {
  std::vector<std::thread> threads;
  std::mutex mutex;
  const auto server = start_server([&](const std::shared_ptr<HttpExchange>& exchange) {
    const std::lock_guard lock(mutex);
    threads.emplace_back([exchange = exchange]() mutable {
      HttpExchange& target = *exchange;
      IoThread& io = target.io();
      for (int i = 0; i < 3; ++i)
        io.post([exchange, i] {
          if (i == 0) exchange->start_stream({});
          exchange->write(std::to_string(i));
          if (i == 2) exchange->finish();
        });
      exchange.reset();  // the last pointer may be dropped on any thread
    });
  });
  for (int i = 0; i < 50; ++i) EXPECT_EQ(TestClient(server->port()).get("/").body, "012");
  for (auto& thread : threads) thread.join();
}

TEST(HttpStream, TasksOfOneThreadRunInOrderAndDelayedOnesLater) {
  std::vector<int> order;  // on one I/O thread
  const auto server = start_server(
      [&](const std::shared_ptr<HttpExchange>& exchange) {
        IoThread& io = exchange->io();
        io.post_after(std::chrono::milliseconds(20), [&order, exchange] {
          order.push_back(3);
          std::string text;
          for (const int i : order) text += std::to_string(i);
          exchange->respond(text_response(text));
        });
        io.post_after(std::chrono::milliseconds(1), [&order] { order.push_back(2); });
        io.post([&order] { order.push_back(0); });
        io.post([&order, &io] {
          order.push_back(1);
          io.post([] { throw std::runtime_error("a task that fails harms nobody"); });
        });
      },
      [](HttpServerOptions& options) { options.num_threads = 1; });
  TestClient client(server->port());
  EXPECT_EQ(client.get("/").body, "0123");
}

TEST(HttpStream, AForgottenStreamEndsTheConnection) {
  const auto server = start_server([](const std::shared_ptr<HttpExchange>& exchange) {
    exchange->start_stream({});
    exchange->write("half");
    exchange->io().post([exchange] {});  // dropped when this has run
  });
  TestClient client(server->port());
  client.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
  EXPECT_TRUE(client.receive_to_end());
  // The head may end in a 0 too, because its request id may.
  const size_t body = client.received.find("\r\n\r\n");
  ASSERT_NE(body, std::string::npos);
  EXPECT_EQ(client.received.find("0\r\n\r\n", body + 4), std::string::npos)
      << "a truncated answer must not look complete";
}

}  // namespace
}  // namespace hadal::server
