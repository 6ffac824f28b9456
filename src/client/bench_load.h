// Sends a list of requests to a server, at a given rate and concurrency, and measures each answer.
#pragma once

#include <functional>
#include <limits>
#include <span>
#include <vector>

#include "client/bench_backend.h"
#include "client/bench_stats.h"
#include "client/http_client.h"

namespace hadal::client {

struct LoadOptions {
  BodyOptions body;
  double request_rate = std::numeric_limits<double>::infinity();  // per second; infinity: all at once
  int64_t max_concurrency = 0;                                    // 0: no limit
  uint64_t seed = 1;                                              // for the times between requests
};

struct LoadResult {
  std::vector<RequestOutcome> outcomes;  // in the order of the requests
  double duration_s = 0.0;
  bool stopped = false;
};

// Sends all requests and waits for their answers, on the caller's thread. `on_done` receives the number of
// requests that have ended, and `stop` is polled ten times per second; either may be null.
LoadResult run_load(HttpClient& client, std::span<const LoadRequest> requests, const LoadOptions& options,
                    const std::function<void(size_t)>& on_done, const std::function<bool()>& stop);

// Returns when `count` requests are sent, in seconds after the first one, as a Poisson process of `rate` per
// second.
std::vector<double> arrival_times(size_t count, double rate, uint64_t seed);

}  // namespace hadal::client
