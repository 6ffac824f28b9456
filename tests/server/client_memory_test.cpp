// Tests the part of the memory of all requests that those of one client may hold.
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "server/admission/request_memory.h"
#include "tests/server/test_server.h"

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

TEST(RequestMemory, EveryBodyIsCountedInItsClientsLedger) {
  constexpr size_t kLimit = size_t{64} << 20;
  TestServer::Options options;
  options.server.memory = std::make_shared<RequestMemory>(kLimit);
  options.client_memory = std::make_shared<RequestMemory>(options.server.memory);
  options.chat_format = ChatFormat::kV2;
  TestServer server(options);
  const size_t held = kLimit - kLimit / 8 - 64;
  ASSERT_TRUE(options.client_memory->take(MemoryKind::kOutput, held));
  for (const char* path :
       {"/generate", "/v1/completions", "/v1/chat/completions", "/v1/messages", "/v1/responses", "/api/chat",
        "/api/show", "/tokenize", "/detokenize", "/parse_function_call", "/separate_reasoning"}) {
    const HttpResponse refused = server.call("POST", path, R"({"a":[1,2,3,4,5,6,7,8,9,10,11,12]})");
    EXPECT_EQ(refused.status, 503) << path;
    EXPECT_NE(refused.body.find("this client's requests"), std::string::npos) << path << refused.body;
  }
  EXPECT_EQ(options.server.memory->total(), held);
  options.client_memory->give_back(MemoryKind::kOutput, held);
}

}  // namespace
}  // namespace hadal::server
