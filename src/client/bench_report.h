// Reports a load, with the same lines and JSON keys as SGLang's scripts print. The functions are pure.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "client/bench_dataset.h"
#include "client/bench_stats.h"

namespace hadal::client {

// LoadSetup holds the settings of the load that the report shows.
struct LoadSetup {
  std::string backend;
  std::string tag;
  DatasetOptions dataset;
  double request_rate = std::numeric_limits<double>::infinity();
  int64_t max_concurrency = 0;  // 0: no limit
};

// AcceptLength is the mean number of tokens per speculative step.
struct AcceptLength {
  double tokens = 0.0;
  bool simulated = false;  // a flag has chosen which drafts are accepted
};

// LoadExtras holds further figures; nullopt if a figure is not known.
struct LoadExtras {
  std::optional<int64_t> output_retokenized;  // tokens of the answers, counted by our tokenizer
  std::optional<AcceptLength> accept_length;  // as the server reports
};

std::string serving_report(const LoadSetup& setup, const LoadMetrics& metrics, const LoadExtras& extras);

// Returns one line without a line break. `details` is either empty or has an element for every request.
std::string serving_json(const LoadSetup& setup, const LoadMetrics& metrics, const LoadExtras& extras,
                         std::span<const RequestOutcome> details);

struct OfflineResult {
  std::string backend = "engine";
  int64_t successful_requests = 0;
  double total_latency_s = 0.0;
  int64_t total_input_tokens = 0;
  int64_t total_output_tokens = 0;
  double last_gen_throughput = 0.0;           // decode tokens per second, as the engine last reported them
  std::optional<AcceptLength> accept_length;  // nullopt: nothing speculated
};
std::string offline_report(const OfflineResult& result);
std::string offline_json(const OfflineResult& result);

// Returns a line for each error of the failed requests, the most frequent first; at most `limit` lines.
std::vector<std::string> failure_lines(std::span<const RequestOutcome> outcomes, size_t limit);

}  // namespace hadal::client
