// Tests the protocol half of a connection over a socket that is a pair of strings, deterministically and
// without a network.
#include "server/http_connection.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace hadal::server {
namespace {

class FakeSocket final : public HttpConnection {
 public:
  explicit FakeSocket(std::shared_ptr<HttpIoThread> thread)
      : HttpConnection(thread, {"test", ConnectionSlot(thread->transport().ledger->account("peer:test"))},
                       /*refuse=*/std::nullopt) {}

  void start() override {
    const HttpIoThread::Batch batch(thread());
    on_open();
  }
  void receive(std::string_view data) {
    const HttpIoThread::Batch batch(thread());
    on_data(data);
  }
  void end() {
    const HttpIoThread::Batch batch(thread());
    on_end();
  }
  // The kernel accepts `n` more bytes.
  void take(size_t n) {
    const HttpIoThread::Batch batch(thread());
    room += n;
    const std::string_view data = std::exchange(blocked_, {});
    if (data.data() != nullptr) give(data);
  }

  size_t room = SIZE_MAX / 2;
  int num_sends = 0;
  int num_resumes = 0;
  std::string sent;
  bool shut = false;
  using HttpConnection::closed;
  using HttpConnection::wants_data;

 private:
  void give(std::string_view data) {
    const size_t n = std::min(room, data.size());
    if (n == 0) {
      blocked_ = data;
      return;
    }
    room -= n;
    sent.append(data.substr(0, n));
    on_sent(n);
  }
  void send(std::string_view data) override {
    ++num_sends;
    give(data);
  }
  void resume_reading() override { ++num_resumes; }
  void shut_down_writing() override { shut = true; }
  void close_socket() override {}
  bool peer_has_closed() override { return false; }

  std::string_view blocked_;
};

class HttpConnectionTest : public ::testing::Test {
 protected:
  HttpConnectionTest() {
    HttpServerOptions options;
    options.limits.stream_high_water = 1000;
    options.limits.header_bytes = 2000;
    transport_ = std::make_shared<HttpTransport>(options, [this](std::shared_ptr<HttpExchange> exchange) {
      paths_.push_back(exchange->request().path);
      if (exchange->request().path == "/now") {
        HttpResponse response;
        response.body = "answer";
        return exchange->respond(std::move(response));
      }
      if (exchange->request().path == "/big") {
        HttpResponse response;
        response.body = std::string(1500, 'b');
        return exchange->respond(std::move(response));
      }
      waiting_.push_back(std::move(exchange));
    });
    // never started: the test's thread plays its part
    thread_ = std::make_shared<HttpIoThread>(0, transport_);
    socket_ = std::make_shared<FakeSocket>(thread_);
    thread_->add(socket_);
    socket_->start();
  }
  ~HttpConnectionTest() override {
    {
      const HttpIoThread::Batch batch(*thread_);
      socket_->cut("test ends");
    }
    waiting_.clear();
    thread_->remove(*socket_);  // as a real socket does at its end, because they own each other
    thread_->request_stop();    // tasks that never ran own the socket too
  }

  static std::string get(const std::string& path) { return "GET " + path + " HTTP/1.1\r\nHost: h\r\n\r\n"; }
  static int count(const std::string& text, std::string_view part) {
    int n = 0;
    for (size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++n;
    return n;
  }
  int num_answers() const { return count(socket_->sent, "HTTP/1.1 200"); }

  std::shared_ptr<HttpTransport> transport_;
  std::shared_ptr<HttpIoThread> thread_;
  std::shared_ptr<FakeSocket> socket_;
  std::vector<std::string> paths_;
  std::vector<std::shared_ptr<HttpExchange>> waiting_;
};

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

TEST_F(HttpConnectionTest, PipelinedAnswersOfOneReadAreOneSend) {
  socket_->receive(get("/now") + get("/now") + get("/now"));
  EXPECT_EQ(num_answers(), 3);
  EXPECT_EQ(socket_->num_sends, 1);
}

TEST_F(HttpConnectionTest, TheNextRequestWaitsForTheAnswer) {
  socket_->receive(get("/wait") + get("/now"));
  EXPECT_EQ(paths_, std::vector<std::string>{"/wait"});
  {
    const HttpIoThread::Batch batch(*thread_);
    waiting_[0]->respond({});
    EXPECT_EQ(paths_.size(), 1u) << "the next handler runs after this task, not inside it";
  }
  EXPECT_EQ(paths_, (std::vector<std::string>{"/wait", "/now"}));
  EXPECT_EQ(num_answers(), 2);
}

TEST_F(HttpConnectionTest, RequestsWaitWhileTheClientReadsNoAnswers) {
  socket_->room = 0;
  std::string burst;
  for (int i = 0; i < 5; ++i) burst += get("/big");
  socket_->receive(burst);
  EXPECT_EQ(paths_.size(), 1u);  // its answer alone is over the high water mark
  socket_->take(SIZE_MAX / 2);
  EXPECT_EQ(paths_.size(), 5u);
  EXPECT_EQ(num_answers(), 5);
}

TEST_F(HttpConnectionTest, ReadingPausesWhenTooManyPipelinedBytesWait) {
  socket_->receive(get("/wait"));
  EXPECT_TRUE(socket_->wants_data());
  int sent = 0;
  while (socket_->wants_data()) {
    socket_->receive(get("/now"));
    ASSERT_LT(++sent, 1000);
  }
  const int resumes = socket_->num_resumes;
  {
    const HttpIoThread::Batch batch(*thread_);
    waiting_[0]->respond({});
  }
  EXPECT_TRUE(socket_->wants_data());
  EXPECT_GT(socket_->num_resumes, resumes);
  EXPECT_EQ(num_answers(), sent + 1);
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

TEST_F(HttpConnectionTest, ExpectContinueIsAnsweredBeforeTheBody) {
  socket_->receive("POST /now HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n");
  EXPECT_EQ(socket_->sent, "HTTP/1.1 100 Continue\r\n\r\n");
  socket_->receive("ab");
  EXPECT_EQ(num_answers(), 1);
}

TEST_F(HttpConnectionTest, MisuseIsLoggedAndChangesNothing) {
  transport_->options.access_log = false;
  // The log lines of what `use` does in one task.
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
