// Tests how many connections fit into the descriptors and the memory of a process.
#include "server/http/connection_limits.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>

namespace hadal::server {
namespace {

using Bound = ConnectionLimits::Bound;

constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

TEST(ConnectionLimits, AreThoseOfTheServerWhereThereAreDescriptors) {
  for (const int64_t descriptors : {int64_t{20'000}, int64_t{1'048'576}, kNoLimit}) {
    const ConnectionLimits limits = fit_connections({}, descriptors, 30, kNoLimit);
    EXPECT_EQ(limits.all, 16384) << descriptors;
    EXPECT_EQ(limits.of_peer, kMaxConnectionsPerPeer) << descriptors;
    EXPECT_EQ(limits.reserved_descriptors, 512) << descriptors;
    EXPECT_EQ(limits.bound, Bound::kLimits) << descriptors;
  }
}

TEST(ConnectionLimits, FollowTheDescriptorsAndLeaveAReserve) {
  const ConnectionLimits limits = fit_connections({}, 1024, 24, kNoLimit);
  EXPECT_EQ(limits.reserved_descriptors, 256);
  EXPECT_EQ(limits.all, 744);
  EXPECT_EQ(limits.of_peer, 558);
  EXPECT_EQ(limits.bound, Bound::kDescriptors);
}

TEST(ConnectionLimits, FollowTheMemoryWhereItAllowsFewest) {
  const ConnectionLimits limits = fit_connections({}, 1024, 24, 80);
  EXPECT_EQ(limits.all, 80);
  EXPECT_EQ(limits.of_peer, 60) << "one address leaves places to others here, too";
  EXPECT_EQ(limits.bound, Bound::kMemory);
  EXPECT_EQ(fit_connections({}, 1024, 24, 0).all, 1);
}

TEST(ConnectionLimits, OneAddressLeavesPlacesToOthersEvenWhileItIsRefused) {
  for (int64_t descriptors = 64; descriptors < 40'000; descriptors += 7) {
    const ConnectionLimits limits = fit_connections({}, descriptors, 24, kNoLimit);
    ASSERT_LE(limits.all + limits.reserved_descriptors + 24, descriptors);
    ASSERT_LT(limits.of_peer + limits.refused_of_peer, limits.all) << descriptors;
    ASSERT_GE(limits.of_peer, 1) << descriptors;
  }
}

TEST(ConnectionLimits, AFlagReplacesTheLimitOfOneAddress) {
  HttpLimits limits;
  limits.max_connections_per_peer = 700;
  EXPECT_EQ(fit_connections(limits, 1024, 24, kNoLimit).of_peer, 700);
  limits.max_connections_per_peer = 8000;
  EXPECT_EQ(fit_connections(limits, 1024, 24, kNoLimit).of_peer, 8000) << "the limit of all is smaller";
  EXPECT_EQ(fit_connections(limits, 20'000, 24, kNoLimit).of_peer, 8000);
}

TEST(ConnectionLimits, OneConnectionFitsWhateverIsOpen) {
  const ConnectionLimits limits = fit_connections({}, 16, 24, kNoLimit);
  EXPECT_EQ(limits.all, 1);
  EXPECT_EQ(limits.of_peer, 1);
  EXPECT_EQ(limits.refused_of_peer, 1);
}

TEST(ConnectionLimits, SoManyDescriptorsAreNeededAndNoFewer) {
  for (const int connections : {4, 100, 744, 1500, 16384}) {
    HttpLimits limits;
    limits.max_connections = connections;
    const int64_t descriptors = descriptors_for(connections, 24);
    EXPECT_EQ(fit_connections(limits, descriptors, 24, kNoLimit).bound, Bound::kLimits) << connections;
    EXPECT_EQ(fit_connections(limits, descriptors - 2, 24, kNoLimit).bound, Bound::kDescriptors)
        << connections;
  }
}

}  // namespace
}  // namespace hadal::server
