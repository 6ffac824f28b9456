#include "server/http/connection_limits.h"

#include <algorithm>
#include <utility>

namespace hadal::server {
namespace {

constexpr int64_t kMaxReserved = 512;
constexpr int64_t kMaxRefusedOfPeer = 64;

}  // namespace

ConnectionLimits fit_connections(const HttpLimits& limits, int64_t max_descriptors, int64_t open_descriptors,
                                 int64_t of_memory) {
  using Bound = ConnectionLimits::Bound;
  ConnectionLimits out;
  out.reserved_descriptors = std::min(max_descriptors / 4, kMaxReserved);
  const int64_t possible = max_descriptors - out.reserved_descriptors - open_descriptors;
  const auto [most, bound] = std::min({std::pair<int64_t, Bound>(limits.max_connections, Bound::kLimits),
                                       {possible, Bound::kDescriptors},
                                       {of_memory, Bound::kMemory}});
  out.all = std::max<int64_t>(most, 1);
  out.bound = bound;
  const int64_t fair = std::clamp<int64_t>(out.all * 3 / 4, 1, kMaxConnectionsPerPeer);
  out.of_peer = limits.max_connections_per_peer.value_or(static_cast<int>(fair));
  out.refused_of_peer = std::clamp<int64_t>((out.all - out.of_peer) / 2, 1, kMaxRefusedOfPeer);
  return out;
}

int64_t descriptors_for(int64_t connections, int64_t open_descriptors) {
  const int64_t others = connections + open_descriptors;
  return others + std::min((others + 2) / 3, kMaxReserved);  // a quarter of the sum is a third of the others
}

}  // namespace hadal::server
