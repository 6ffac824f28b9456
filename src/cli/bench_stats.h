// What a load measured, request by request, and its summary. Pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace hadal::cli {

// One request as its client saw it. Times in seconds; ttft and latency count from its own start.
struct RequestOutcome {
  bool ok = false;
  std::string error;          // why not
  int64_t prompt_tokens = 0;  // as asked for
  int64_t output_tokens = 0;  // as the server counts them
  int64_t cached_tokens = 0;  // prompt tokens the server did not have to compute, where it says so
  double start_s = 0.0;       // since the measurement's start
  double ttft_s = 0.0;        // first token
  double latency_s = 0.0;     // last byte
  std::vector<float> itl_s;   // between tokens; those that came together share their wait evenly
  std::string text;
};

// Of one quantity, in its own unit.
struct Spread {
  double mean = 0.0;
  double median = 0.0;
  double std = 0.0;  // of the population
  double p90 = 0.0;
  double p95 = 0.0;
  double p99 = 0.0;
  double max = 0.0;
};

// All zero for no values.
Spread spread_of(std::vector<double> values);

// The q-quantile of ascending values, q in [0, 1], linear between neighbours (numpy's default); 0 for none.
double quantile(std::span<const double> ascending, double q);

struct LoadMetrics {
  double duration_s = 0.0;
  int64_t completed = 0;
  int64_t total_input = 0;  // tokens, of completed requests, as all that follows
  int64_t total_output = 0;
  int64_t total_cached = 0;
  double request_throughput = 0.0;  // a second
  double input_throughput = 0.0;
  double output_throughput = 0.0;
  double total_throughput = 0.0;
  double peak_output_throughput = 0.0;  // tokens in the best whole second
  int64_t peak_concurrency = 0;         // requests under way at once
  double concurrency = 0.0;             // mean number of requests under way
  Spread e2e_ms;
  Spread ttft_ms;
  Spread tpot_ms;  // (latency − ttft) / (tokens − 1), of streamed answers of two or more
  Spread itl_ms;   // over all tokens of all requests
};

LoadMetrics summarise(std::span<const RequestOutcome> outcomes, double duration_s);

}  // namespace hadal::cli
