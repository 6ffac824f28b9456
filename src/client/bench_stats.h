// Holds the measurements of a load, request by request, and their summary. The functions are pure.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace hadal::client {

// RequestOutcome is one request as its client measured it. Times are in seconds; ttft and latency count from
// the request's own start.
struct RequestOutcome {
  bool ok = false;
  std::string error;          // why it failed
  int64_t prompt_tokens = 0;  // that were asked for
  int64_t output_tokens = 0;  // as counted by the server
  int64_t cached_tokens = 0;  // prompt tokens from the cache, if the server reports them
  double start_s = 0.0;       // since the start of the measurement
  double ttft_s = 0.0;        // time to first token
  double latency_s = 0.0;     // until the last byte
  std::vector<float> itl_s;   // between tokens; tokens that arrive together share the time evenly
  std::string text;
};

// Spread holds statistics of one quantity, in its unit.
struct Spread {
  double mean = 0.0;
  double median = 0.0;
  double std = 0.0;  // standard deviation of the population
  double p90 = 0.0;
  double p95 = 0.0;
  double p99 = 0.0;
  double max = 0.0;
};

// All fields are zero if there are no values.
Spread spread_of(std::vector<double> values);

// Returns the q-quantile of ascending values, q in [0, 1], with linear interpolation (numpy's default); 0 if
// there are none.
double quantile(std::span<const double> ascending, double q);

struct LoadMetrics {
  double duration_s = 0.0;
  int64_t completed = 0;
  int64_t total_input = 0;  // tokens; like all that follows, of completed requests
  int64_t total_output = 0;
  int64_t total_cached = 0;
  double request_throughput = 0.0;  // per second, like those below
  double input_throughput = 0.0;
  double output_throughput = 0.0;
  double total_throughput = 0.0;
  double peak_output_throughput = 0.0;  // tokens in the best whole second
  int64_t peak_concurrency = 0;         // largest number of requests under way at once
  double concurrency = 0.0;             // mean number of requests under way
  Spread e2e_ms;
  Spread ttft_ms;
  Spread tpot_ms;  // (latency − ttft) / (tokens − 1), for streamed answers of two or more tokens
  Spread itl_ms;   // over all tokens of all requests
};

LoadMetrics summarise(std::span<const RequestOutcome> outcomes, double duration_s);

}  // namespace hadal::client
