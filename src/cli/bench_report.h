// The tables and JSON objects in which SGLang's scripts report a load, line for line and key for key. Pure
// functions.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cli/bench_dataset.h"
#include "cli/bench_stats.h"

namespace hadal::cli {

// What was asked for, as far as it goes into a report.
struct LoadSetup {
  std::string backend;
  std::string tag;
  DatasetOptions dataset;
  double request_rate = std::numeric_limits<double>::infinity();
  int64_t max_concurrency = 0;  // 0: no limit
};

// Beside the metrics; nullopt where it is not known.
struct LoadExtras {
  std::optional<int64_t> output_retokenized;  // tokens of the answers' text, counted here
  std::optional<double> accept_length;        // tokens a speculative step, by the server
};

std::string serving_report(const LoadSetup& setup, const LoadMetrics& metrics, const LoadExtras& extras);

// One line, without its end. `details`: of every request, or empty.
std::string serving_json(const LoadSetup& setup, const LoadMetrics& metrics, const LoadExtras& extras,
                         std::span<const RequestOutcome> details);

struct OfflineResult {
  std::string backend = "engine";
  int64_t successful_requests = 0;
  double total_latency_s = 0.0;
  int64_t total_input_tokens = 0;
  int64_t total_output_tokens = 0;
  double last_gen_throughput = 0.0;  // decode tokens a second, as the engine last counted them
};
std::string offline_report(const OfflineResult& result);
std::string offline_json(const OfflineResult& result);

// The errors of failed requests, the most frequent first, one line each; at most `limit` of them.
std::vector<std::string> failure_lines(std::span<const RequestOutcome> outcomes, size_t limit);

}  // namespace hadal::cli
