// Tests which responses a full store keeps, and what the store counts.
#include "server/responses/response_store.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "text/chat/chat_template.h"

namespace hadal::server {
namespace {

TEST(ResponseStore, TheOldestOfWhoeverHoldsMostGiveWay) {
  ResponseStore store(16 << 10);
  const auto put = [&](const std::string& id, std::string_view owner) {
    store.put(id, owner, std::string(2000, 'x'), {}, {});
  };
  put("bob", "bob");
  for (const char* id : {"1", "2", "3", "4", "5", "6", "7"}) put(id, "alice");
  EXPECT_NE(store.find("bob", "bob"), nullptr);
  EXPECT_EQ(store.find("1", "alice"), nullptr);
  EXPECT_NE(store.find("7", "alice"), nullptr);
  EXPECT_LE(store.bytes(), store.max_bytes());
}

TEST(ResponseStore, ATurnIsCountedUntilTheLastResponseAfterItHasGone) {
  ResponseStore store(1 << 20);
  ChatMessage message;
  message.content = std::string(100'000, 'x');
  store.put("1", "", "{}", {}, {message});
  store.put("2", "", "{}", store.find("1", "")->conversation, {});
  EXPECT_EQ(store.find("2", "")->conversation.turns.size(), 2U);
  EXPECT_TRUE(store.erase("1", ""));
  EXPECT_GT(store.bytes(), 100'000U);
  EXPECT_TRUE(store.erase("2", ""));
  EXPECT_EQ(store.bytes(), 0U);
}

// Returns a message of a turn with about this many bytes.
std::vector<ChatMessage> message_of(size_t bytes) {
  ChatMessage message;
  message.content = std::string(bytes, 'x');
  return {message};
}

TEST(ResponseStore, SharedTurnsCountForTheirOwnerUntilNoResponseHasThem) {
  ResponseStore store(32 << 10);
  const auto bobs = {"b1", "b2", "b3", "b4"};
  for (const char* id : bobs) store.put(id, "bob", std::string(2000, 'x'), {}, {});
  store.put("a0", "alice", "{}", {}, message_of(12'000));
  // Each response continues the one before it, so the first turn stays in the store although its own response
  // is evicted.
  for (int i = 1; i < 12; ++i) {
    const std::string last = "a" + std::to_string(i - 1);
    ASSERT_NE(store.find(last, "alice"), nullptr) << last;
    const Conversation earlier = store.find(last, "alice")->conversation;
    store.put("a" + std::to_string(i), "alice", std::string(2000, 'x'), earlier, {});
  }
  EXPECT_EQ(store.find("a0", "alice"), nullptr);
  for (const char* id : bobs) EXPECT_NE(store.find(id, "bob"), nullptr) << id;
  EXPECT_LE(store.bytes(), store.max_bytes());
}

TEST(ResponseStore, WhatARunningRequestHoldsCountsAsItsOwners) {
  ResponseStore store(16 << 10);
  for (const char* id : {"b1", "b2"}) store.put(id, "bob", std::string(2000, 'x'), {}, {});
  store.put("a1", "alice", "{}", {}, message_of(6000));
  const auto running = store.find("a1", "alice");
  ASSERT_TRUE(store.erase("a1", "alice"));
  store.put("a2", "alice", std::string(4000, 'x'), {}, {});
  EXPECT_EQ(store.find("a2", "alice"), nullptr) << "alice holds most, and has nothing that could give way";
  EXPECT_NE(store.find("b1", "bob"), nullptr);
  store.put("b3", "bob", std::string(4000, 'x'), {}, {});
  EXPECT_NE(store.find("b3", "bob"), nullptr);
  EXPECT_EQ(store.find("b1", "bob"), nullptr) << "bob's own oldest gives way, because alice has none";
}

TEST(ResponseStore, OwnersWhoHoldTheSameDisplaceTheirOwn) {
  ResponseStore store(16 << 10);
  for (const char* owner : {"alice", "bob"})
    for (const char* id : {"1", "2"})
      store.put(std::string(owner) + id, owner, std::string(2500, 'x'), {}, {});
  store.put("alice3", "alice", std::string(2500, 'x'), {}, {});
  EXPECT_EQ(store.find("alice1", "alice"), nullptr);
  EXPECT_NE(store.find("alice3", "alice"), nullptr);
  EXPECT_NE(store.find("bob1", "bob"), nullptr);
}

TEST(ResponseStore, AConversationThatDoesNotFitIsNotStoredAndDisplacesNothing) {
  ResponseStore store(16 << 10);
  store.put("1", "", "{}", {}, message_of(10'000));
  store.put("2", "", std::string(8000, 'x'), store.find("1", "")->conversation, {});
  EXPECT_NE(store.find("1", ""), nullptr);
  EXPECT_EQ(store.find("2", ""), nullptr);
}

// Another thread uses the store whenever something is destroyed; it would wait forever for a lock that is
// held.
TEST(ResponseStore, OthersMayUseTheStoreWhileWhatGivesWayIsDestroyed) {
  ResponseStore store(16 << 10);
  store.put("bob", "bob", "{}", {}, {});
  int num_destroyed = 0;
  const auto put = [&](const std::string& id, size_t bytes) {
    Conversation earlier;
    earlier.turns.emplace_back(new StoredTurn(), [&](const StoredTurn* turn) {
      delete turn;
      ++num_destroyed;
      std::thread([&] { EXPECT_NE(store.find("bob", "bob"), nullptr); }).join();
    });
    store.put(id, "alice", std::string(bytes, 'x'), std::move(earlier), {});
  };
  for (const char* id : {"1", "2", "3", "4", "5"}) put(id, 1000);
  EXPECT_EQ(num_destroyed, 0);
  put("large", 14'000);
  EXPECT_EQ(num_destroyed, 5);
  EXPECT_NE(store.find("large", "alice"), nullptr);
  EXPECT_TRUE(store.erase("large", "alice"));
  EXPECT_EQ(num_destroyed, 6);
}

TEST(ResponseStore, WhatDoesNotFitIsNotStoredAndDisplacesNothing) {
  ResponseStore store(8 << 10);
  store.put("1", "", "{}", {}, {});
  store.put("2", "", std::string(10'000, 'x'), {}, {});
  EXPECT_NE(store.find("1", ""), nullptr);
  EXPECT_EQ(store.find("2", ""), nullptr);
}

}  // namespace
}  // namespace hadal::server
