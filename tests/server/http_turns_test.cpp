// Tests pipelining: requests that follow another are answered in order and wait for turns, so that
// connections and clients share their I/O thread.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/server/http_connection_fixture.h"

namespace hadal::server {
namespace {

using testing::FakeSocket;

class HttpTurnsTest : public testing::HttpConnectionTest {
 protected:
  static std::string times(int n, const std::string& text) {
    std::string out;
    for (int i = 0; i < n; ++i) out += text;
    return out;
  }
  // Lets the thread handle one event, which is one turn if no other event is due.
  void take_turn() { ASSERT_EQ(thread_->context().poll_one(), 1U); }
};

TEST_F(HttpTurnsTest, ARequestAloneIsAnsweredWithoutATurn) {
  socket_->receive(get("/now"));
  EXPECT_EQ(num_answers(), 1);
  const std::string wire = get("/now");
  for (size_t cut = 1; cut < wire.size(); ++cut) {
    socket_->receive(wire.substr(0, cut));
    socket_->receive(wire.substr(cut));
    EXPECT_EQ(num_answers(), static_cast<int>(cut) + 1);
  }
  EXPECT_EQ(run(), 0U) << "nothing was posted";
}

TEST_F(HttpTurnsTest, APipelineDelaysAnotherConnectionByOneRequest) {
  socket_->receive(times(100, get("/now")));
  EXPECT_EQ(num_answers(), 1);
  const auto other = connect();
  for (int turns = 1; turns < 50; ++turns) {
    take_turn();
    EXPECT_EQ(num_answers(), 1 + turns);
    other->receive(get("/now"));
    EXPECT_EQ(answers_of(*other), turns) << "it does not wait for any other request";
  }
  run();
  EXPECT_EQ(num_answers(), 100);
  EXPECT_EQ(socket_->sent.find("HTTP/1.1 503"), std::string::npos);
}

TEST_F(HttpTurnsTest, PipelinesOfOneClientAdvanceTogether) {
  std::vector<std::shared_ptr<FakeSocket>> sockets;
  for (int i = 0; i < 5; ++i) {
    sockets.push_back(connect());
    sockets.back()->receive(times(20, get("/now")));
  }
  for (int turns = 0; turns < 5 * 19; ++turns) {
    for (int i = 0; i < 5; ++i)
      EXPECT_EQ(answers_of(*sockets[static_cast<size_t>(i)]), 1 + turns / 5 + (i < turns % 5 ? 1 : 0))
          << turns;
    take_turn();
  }
  EXPECT_EQ(run(), 0U);
}

TEST_F(HttpTurnsTest, ClientsTakeTurnsHoweverManyConnectionsTheyHave) {
  for (int i = 0; i < 20; ++i) connect("peer:many")->receive(times(20, get("/now")));
  const auto one = connect("peer:one");
  const auto two = connect("peer:two");
  for (const auto& socket : {one, two}) socket->receive(times(20, get("/now")));
  for (int turns = 1; turns <= 19; ++turns) {
    for (int i = 0; i < 3; ++i) take_turn();
    EXPECT_EQ(answers_of(*one), 1 + turns);
    EXPECT_EQ(answers_of(*two), 1 + turns);
  }
}

TEST_F(HttpTurnsTest, WhatArrivesDoesNotLetAConnectionOvertakeItsTurn) {
  socket_->receive(times(3, get("/now")));
  for (int i = 0; i < 10; ++i) socket_->receive(get("/now"));
  EXPECT_EQ(num_answers(), 1);
  take_turn();
  EXPECT_EQ(num_answers(), 2);
  run();
  EXPECT_EQ(num_answers(), 13);
}

TEST_F(HttpTurnsTest, ARequestThatArrivesInPiecesBehindOthersIsAnswered) {
  const std::string wire = get("/now") + get("/wait?x=1") + "\r\n" + get("/now") + get("/now");
  for (size_t cut = 1; cut < wire.size(); ++cut) {
    const auto socket = connect();
    socket->receive(wire.substr(0, cut));
    run();
    socket->receive(wire.substr(cut));
    run();
    ASSERT_EQ(answers_of(*socket), 1) << cut;
    answer_waiting(waiting_.size() - 1);
    run();
    EXPECT_EQ(answers_of(*socket), 4) << cut;
  }
}

TEST_F(HttpTurnsTest, TheNextRequestWaitsForTheAnswer) {
  socket_->receive(get("/wait") + get("/now"));
  run();
  EXPECT_EQ(paths_, std::vector<std::string>{"/wait"});
  answer_waiting();
  EXPECT_EQ(paths_.size(), 1U) << "the next handler has a turn of its own";
  run();
  EXPECT_EQ(paths_, (std::vector<std::string>{"/wait", "/now"}));
  EXPECT_EQ(num_answers(), 2);
}

TEST_F(HttpTurnsTest, RequestsWaitWhileTheClientReadsNoAnswers) {
  socket_->room = 0;
  socket_->receive(times(5, get("/big")));
  run();
  EXPECT_EQ(paths_.size(), 1U);  // its answer alone is over the high water mark
  socket_->take(SIZE_MAX / 2);
  run();
  EXPECT_EQ(paths_.size(), 5U);
  EXPECT_EQ(num_answers(), 5);
}

TEST_F(HttpTurnsTest, ReadingPausesWhenTooManyPipelinedBytesWait) {
  socket_->receive(get("/wait"));
  EXPECT_TRUE(socket_->wants_data());
  int sent = 0;
  while (socket_->wants_data()) {
    socket_->receive(get("/now"));
    ASSERT_LT(++sent, 1000);
  }
  const int resumes = socket_->num_resumes;
  answer_waiting();
  run();
  EXPECT_TRUE(socket_->wants_data());
  EXPECT_GT(socket_->num_resumes, resumes);
  EXPECT_EQ(num_answers(), sent + 1);
}

TEST_F(HttpTurnsTest, NothingIsReadBehindARequestWhileThereIsNoMemoryForIt) {
  socket_->receive(get("/wait"));
  EXPECT_TRUE(socket_->wants_data());
  ASSERT_TRUE(memory_->take(MemoryKind::kPrompt, memory_->limit() - memory_->total() - 1000));
  EXPECT_FALSE(socket_->wants_data());
  memory_->give_back(MemoryKind::kPrompt, memory_->bytes(MemoryKind::kPrompt));
  EXPECT_TRUE(socket_->wants_data());
  const int resumes = socket_->num_resumes;
  socket_->check_deadlines(HttpIoThread::Clock::now());
  EXPECT_GT(socket_->num_resumes, resumes) << "the next look at the deadlines notices";
  ASSERT_TRUE(memory_->take(MemoryKind::kPrompt, memory_->limit() - memory_->total() - 1000));
  answer_waiting();
  EXPECT_TRUE(socket_->wants_data()) << "a request of its own is always read";
  memory_->give_back(MemoryKind::kPrompt, memory_->bytes(MemoryKind::kPrompt));
}

// A read that began while there was room may end when there is none left, as with TLS.
TEST_F(HttpTurnsTest, WhatWasReadWithoutRoomForItIsDroppedAndTheConnectionEndsAfterTheAnswer) {
  socket_->receive(get("/wait"));
  socket_->receive(get("/now"));  // in the first block, which is always granted
  const size_t held = memory_->bytes(MemoryKind::kHeader);
  ASSERT_TRUE(memory_->take(MemoryKind::kPrompt, memory_->limit() - memory_->total() - 1000));
  socket_->receive(times(300, get("/now")));
  EXPECT_LT(memory_->bytes(MemoryKind::kHeader), held) << "what waited is dropped, too";
  EXPECT_LE(memory_->total(), memory_->limit());
  EXPECT_FALSE(socket_->wants_data());
  answer_waiting();
  EXPECT_EQ(run(), 0U);
  EXPECT_EQ(paths_, std::vector<std::string>{"/wait"});
  EXPECT_EQ(num_answers(), 1);
  EXPECT_EQ(count(socket_->sent, "Connection: close"), 1);
  EXPECT_TRUE(socket_->shut);
  memory_->give_back(MemoryKind::kPrompt, memory_->bytes(MemoryKind::kPrompt));
}

TEST_F(HttpTurnsTest, NothingIsKeptBehindTheLastRequest) {
  const std::string last = "GET /wait HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";
  for (const std::string& before : {std::string(), get("/now")}) {
    const auto socket = connect();
    const size_t waiting = waiting_.size();
    socket->receive(before + last + times(50, get("/now")));
    run();
    ASSERT_EQ(waiting_.size(), waiting + 1);
    EXPECT_FALSE(socket->wants_data());
    EXPECT_EQ(memory_->total(), paths_.size() * HeadCharge::kBlock) << "the requests' own headers";
    answer_waiting(waiting);
    EXPECT_EQ(run(), 0U);
    EXPECT_EQ(answers_of(*socket), before.empty() ? 1 : 2);
    EXPECT_TRUE(socket->shut);
    const HttpIoThread::Batch batch(*thread_);
    socket->cut("done");
  }
}

TEST_F(HttpTurnsTest, AHalfClosedClientGetsTheAnswersToAllThatItHasAsked) {
  socket_->room = 0;
  socket_->receive(times(3, get("/now")) + times(3, get("/big")) + "GET /unfinished");
  socket_->end();
  EXPECT_FALSE(socket_->closed());
  run();
  socket_->take(SIZE_MAX / 2);
  run();
  EXPECT_EQ(num_answers(), 6);
  EXPECT_TRUE(socket_->closed());
}

TEST_F(HttpTurnsTest, AHalfClosedClientsRequestThatIsNotAnsweredAtOnceIsGivenUp) {
  socket_->receive(get("/now") + get("/now") + get("/wait") + get("/now"));
  socket_->end();
  run();
  EXPECT_EQ(paths_, (std::vector<std::string>{"/now", "/now", "/wait"}));
  EXPECT_EQ(num_answers(), 2);
  EXPECT_TRUE(socket_->closed());
  EXPECT_TRUE(waiting_.at(0)->disconnected());
}

TEST_F(HttpTurnsTest, AConnectionThatEndsLeavesItsTurnToOthers) {
  std::vector<std::shared_ptr<FakeSocket>> sockets;
  for (const char* peer : {"peer:a", "peer:a", "peer:b", "peer:c"}) {
    sockets.push_back(connect(peer));
    sockets.back()->receive(times(5, get("/now")));
  }
  {
    const HttpIoThread::Batch batch(*thread_);
    sockets[0]->cut("broken");
    sockets[2]->cut("broken");
  }
  run();
  for (const size_t i : {0U, 2U}) EXPECT_EQ(answers_of(*sockets[i]), 1);
  for (const size_t i : {1U, 3U}) EXPECT_EQ(answers_of(*sockets[i]), 5);
}

}  // namespace
}  // namespace hadal::server
