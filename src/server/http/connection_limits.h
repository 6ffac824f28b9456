// Decides how many connections may be open at once, by the limits of the server, the descriptors that the
// process may open, and the memory that connections may have. It is a pure function.
#pragma once

#include <cstdint>

#include "server/http/http_server.h"

namespace hadal::server {

struct ConnectionLimits {
  // Connections leave this many descriptors to the rest of the process: to shards (a checkpoint may have 160,
  // all of which may be open at the same time), devices, logs and traces, and to connections that get a 503.
  int64_t reserved_descriptors = 0;
  int64_t all = 0;              // connections of all addresses, ≥ 1
  int64_t of_peer = 0;          // connections of one address, ≥ 1; `all` is a limit for them too
  int64_t refused_of_peer = 0;  // connections beyond of_peer that may be open while they get a 503
  // What allows the fewest connections: the limits, the descriptors or the memory.
  enum class Bound { kLimits, kDescriptors, kMemory } bound = Bound::kLimits;
};

// `max_descriptors` is how many the process may have open (int64_t's maximum: any number), of which
// `open_descriptors` are open already. The memory allows `of_memory` connections. Unless `limits` gives the
// number of connections of one address, an address leaves a quarter of all connections to others.
ConnectionLimits fit_connections(const HttpLimits& limits, int64_t max_descriptors, int64_t open_descriptors,
                                 int64_t of_memory);

// Returns how many descriptors a process needs for this many connections.
int64_t descriptors_for(int64_t connections, int64_t open_descriptors);

}  // namespace hadal::server
