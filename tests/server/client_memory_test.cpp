// Tests the part of the memory of all requests that those of one client may hold.
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "server/admission/request_memory.h"

namespace hadal::server {
namespace {

TEST(RequestMemory, AClientHasSevenEighthsAndLeavesTheRestToOthers) {
  const auto server = std::make_shared<RequestMemory>(800);
  const auto part = std::make_shared<const int>(1);
  {
    MemoryCharge greedy(std::make_shared<RequestMemory>(server));
    EXPECT_TRUE(greedy.add(MemoryKind::kLogprob, 600).ok());
    EXPECT_TRUE(greedy.add_shared(MemoryKind::kGrammar, part, 100).ok());
    const auto refused = greedy.add(MemoryKind::kOutput, 1);
    ASSERT_FALSE(refused.ok());
    EXPECT_NE(refused.status().message.find("this client's requests"), std::string::npos)
        << refused.status().message;
    EXPECT_EQ(server->total(), 700U);
    EXPECT_EQ(server->bytes(MemoryKind::kLogprob), 600U);
    EXPECT_EQ(server->refused(MemoryKind::kOutput), 1);

    MemoryCharge other(std::make_shared<RequestMemory>(server));
    EXPECT_TRUE(other.add(MemoryKind::kBody, 60).ok());
    EXPECT_TRUE(other.add_shared(MemoryKind::kGrammar, part, 100).ok())
        << "it is counted once for all clients";
    EXPECT_EQ(server->total(), 760U);
    const auto full = other.add(MemoryKind::kBody, 41);
    ASSERT_FALSE(full.ok());
    EXPECT_NE(full.status().message.find("all requests"), std::string::npos) << full.status().message;
    greedy.clear();
    EXPECT_EQ(server->total(), 160U) << "the other client still holds the part";
    EXPECT_TRUE(other.memory()->has_room(540));
    EXPECT_FALSE(other.memory()->has_room(541));
  }
  EXPECT_EQ(server->total(), 0U);
}

}  // namespace
}  // namespace hadal::server
