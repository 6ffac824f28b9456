// Tests the protocol half of a connection: writing, framing, slow readers, disconnects and misuse.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tests/server/http_connection_fixture.h"

namespace hadal::server {
namespace {

using testing::HttpConnectionTest;

TEST_F(HttpConnectionTest, WritesOfOneTaskAreOneSend) {
  socket_->receive(get("/wait"));
  {
    const HttpIoThread::Batch batch(*thread_);
    waiting_[0]->start_stream({});
    for (int i = 0; i < 10; ++i) waiting_[0]->write("token");
    EXPECT_EQ(socket_->num_sends, 0);
  }
  EXPECT_EQ(socket_->num_sends, 1);
  EXPECT_EQ(count(socket_->sent, "5\r\ntoken\r\n"), 10);
  {
    const HttpIoThread::Batch batch(*thread_);
    waiting_[0]->write("");  // an empty chunk would end the answer
    waiting_[0]->write("x");
    waiting_[0]->finish();
  }
  EXPECT_EQ(socket_->num_sends, 2);
  EXPECT_TRUE(socket_->sent.ends_with("1\r\nx\r\n0\r\n\r\n"));
}

TEST_F(HttpConnectionTest, ASlowReaderPausesTheWriter) {
  socket_->receive(get("/wait"));
  socket_->room = 0;
  const HttpIoThread::Batch batch(*thread_);
  waiting_[0]->start_stream({});
  EXPECT_TRUE(waiting_[0]->writable());
  waiting_[0]->write(std::string(1001, 'x'));
  EXPECT_FALSE(waiting_[0]->writable());
}

TEST_F(HttpConnectionTest, ADisconnectIsReportedOnceAndLaterCallsAreHarmless) {
  socket_->receive(get("/wait"));
  int told = 0;
  waiting_[0]->on_disconnect([&] { ++told; });
  {
    const HttpIoThread::Batch batch(*thread_);
    waiting_[0]->start_stream({});
  }
  socket_->end();
  EXPECT_EQ(told, 1);
  EXPECT_TRUE(waiting_[0]->disconnected());
  EXPECT_TRUE(socket_->closed());
  const HttpIoThread::Batch batch(*thread_);
  waiting_[0]->write("x");
  waiting_[0]->finish();
  waiting_[0]->respond({});
  waiting_[0]->on_disconnect([&] { ++told; });
  EXPECT_EQ(told, 1);
}

TEST_F(HttpConnectionTest, ACompleteAnswerReachesAHalfClosedClient) {
  socket_->room = 0;
  socket_->receive(get("/now"));
  socket_->end();
  EXPECT_FALSE(socket_->closed());
  socket_->take(SIZE_MAX / 2);
  EXPECT_EQ(num_answers(), 1);
  EXPECT_TRUE(socket_->closed());
}

TEST_F(HttpConnectionTest, WhatComesAfterARefusalIsDiscardedUpToALimit) {
  constexpr size_t kMost = size_t{1} << 20;
  const std::string piece(64 << 10, 'x');
  socket_->receive("nonsense\r\n\r\n");
  EXPECT_TRUE(socket_->sent.starts_with("HTTP/1.1 400")) << socket_->sent;
  EXPECT_TRUE(socket_->shut);
  size_t discarded = 0;
  while (socket_->wants_data()) {
    socket_->receive(piece);
    discarded += piece.size();
    ASSERT_LE(discarded, kMost + piece.size());
  }
  EXPECT_GE(discarded, kMost);
  EXPECT_FALSE(socket_->closed()) << "the answer may still be on its way";
  const auto now = HttpIoThread::Clock::now();
  {
    const HttpIoThread::Batch batch(*thread_);
    socket_->check_deadlines(now + std::chrono::seconds(3));
  }
  EXPECT_TRUE(socket_->closed());
}

TEST_F(HttpConnectionTest, WhatComesBehindALargeLastAnswerIsDiscardedUpToTheSameLimit) {
  socket_->room = 0;
  socket_->receive("GET /big HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
  size_t discarded = 0;
  while (socket_->wants_data()) {
    socket_->receive(std::string(64 << 10, 'x'));
    ASSERT_LE(discarded += 64 << 10, size_t{2} << 20);
  }
  EXPECT_FALSE(socket_->closed());
  socket_->take(SIZE_MAX / 2);
  EXPECT_EQ(num_answers(), 1) << "it is complete all the same";
  EXPECT_TRUE(socket_->sent.ends_with("bbb"));
  EXPECT_TRUE(socket_->shut);
  EXPECT_FALSE(socket_->wants_data());
}

TEST_F(HttpConnectionTest, EmptyLinesDoNotOutlastTheTimeOfARequest) {
  const auto start = HttpIoThread::Clock::now();
  const auto look = [&](std::chrono::seconds later) {
    const HttpIoThread::Batch batch(*thread_);
    socket_->check_deadlines(start + later);
  };
  socket_->receive("\r\n");
  EXPECT_TRUE(socket_->idle()) << "one may be the end of the last request";
  for (int i = 0; i < 20; ++i) socket_->receive("\r\n");
  EXPECT_FALSE(socket_->idle());
  look(std::chrono::seconds(29));
  EXPECT_EQ(socket_->sent, "");
  look(std::chrono::seconds(60));
  EXPECT_TRUE(socket_->sent.starts_with("HTTP/1.1 408")) << socket_->sent;
}

TEST_F(HttpConnectionTest, RequestsWithoutAKeyAreLoggedOrCounted) {
  transport_->options.access_log = true;
  constexpr int kRequests = 5000;
  ::testing::internal::CaptureStderr();
  for (int i = 0; i < kRequests; ++i) socket_->receive(get("/now"));
  const std::string log = ::testing::internal::GetCapturedStderr();
  transport_->options.access_log = false;
  auto told =
      static_cast<int>(transport_->stranger_lines.take_left_out(HttpIoThread::Clock::time_point::max()));
  constexpr std::string_view kLeftOut = "http_lines_left_out count=";
  for (size_t at = log.find(kLeftOut); at != log.npos; at = log.find(kLeftOut, at + 1))
    told += std::atoi(log.c_str() + at + kLeftOut.size());
  const int lines = count(log, "http method=GET");
  EXPECT_EQ(lines + told, kRequests);
  EXPECT_LT(lines, kRequests) << "at most a hundred a second";
}

TEST_F(HttpConnectionTest, ExpectContinueIsAnsweredBeforeTheBody) {
  socket_->receive("POST /now HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n");
  EXPECT_EQ(socket_->sent, "HTTP/1.1 100 Continue\r\n\r\n");
  socket_->receive("ab");
  EXPECT_EQ(num_answers(), 1);
}

TEST_F(HttpConnectionTest, MisuseIsLoggedAndChangesNothing) {
  // Returns the log lines of what `use` does in one task.
  const auto log_of = [&](const std::function<void(HttpExchange&)>& use) {
    ::testing::internal::CaptureStderr();
    {
      const HttpIoThread::Batch batch(*thread_);
      use(*waiting_[0]);
    }
    return ::testing::internal::GetCapturedStderr();
  };
  const auto has = [](const std::string& log, const char* what) {
    return count(log, "\n") == 1 && count(log, std::string("http_misuse: ") + what + " path=/wait") == 1;
  };
  socket_->receive(get("/wait"));
  HttpResponse other;
  other.body = "another answer";
  std::string log = log_of([](HttpExchange& exchange) { exchange.write("too early"); });
  EXPECT_TRUE(has(log, "write() before start_stream()")) << log;
  log = log_of([](HttpExchange& exchange) { exchange.finish(); });
  EXPECT_TRUE(has(log, "finish() before start_stream()")) << log;
  EXPECT_EQ(socket_->sent, "");
  EXPECT_EQ(log_of([](HttpExchange& exchange) {
              exchange.start_stream({});
              exchange.write("body");
            }),
            "");
  const std::string begun = socket_->sent;
  EXPECT_TRUE(begun.ends_with("4\r\nbody\r\n")) << begun;
  log = log_of([&](HttpExchange& exchange) { exchange.respond(other); });
  EXPECT_TRUE(has(log, "respond() after start_stream()")) << log;
  log = log_of([&](HttpExchange& exchange) { exchange.start_stream(other); });
  EXPECT_TRUE(has(log, "start_stream() twice")) << log;
  EXPECT_EQ(socket_->sent, begun);
  log = log_of([&](HttpExchange& exchange) {
    exchange.finish();
    exchange.finish();
    exchange.write("late");
  });
  EXPECT_EQ(log, "") << "a late call finds nothing to end, and is no misuse";
  EXPECT_EQ(socket_->sent, begun + "0\r\n\r\n");
  socket_->receive(get("/now"));
  EXPECT_EQ(num_answers(), 2) << "the connection goes on";
}

}  // namespace
}  // namespace hadal::server
