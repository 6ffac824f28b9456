// Sends a list of requests to a server, at a rate and under a limit, and times each answer.
#pragma once

#include <functional>
#include <limits>
#include <span>
#include <vector>

#include "cli/bench_backend.h"
#include "cli/bench_stats.h"
#include "cli/http_client.h"

namespace hadal::cli {

struct LoadOptions {
  BodyOptions body;
  double request_rate = std::numeric_limits<double>::infinity();  // a second; infinity: all at once
  int64_t max_concurrency = 0;                                    // 0: no limit
  uint64_t seed = 1;                                              // of the times between requests
};

struct LoadResult {
  std::vector<RequestOutcome> outcomes;  // in the order of the requests
  double duration_s = 0.0;
  bool stopped = false;
};

// `on_done` hears how many requests are over; `stop` is asked ten times a second (either may be null). One
// thread: that of the caller.
LoadResult run_load(HttpClient& client, std::span<const LoadRequest> requests, const LoadOptions& options,
                    const std::function<void(size_t)>& on_done, const std::function<bool()>& stop);

// The times in seconds, since the first, at which `count` requests go out: a Poisson process of `rate`.
std::vector<double> arrival_times(size_t count, double rate, uint64_t seed);

}  // namespace hadal::cli
