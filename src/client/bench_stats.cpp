#include "client/bench_stats.h"

#include <algorithm>
#include <cmath>
#include <map>

namespace hadal::client {
namespace {

double peak_tokens_a_second(std::span<const RequestOutcome> outcomes) {
  std::map<int64_t, int64_t> tokens;  // tokens by second
  for (const RequestOutcome& one : outcomes) {
    if (!one.ok || one.output_tokens == 0) continue;
    double at = one.start_s + one.ttft_s;
    ++tokens[static_cast<int64_t>(at)];
    for (const float wait : one.itl_s) {
      at += wait;
      ++tokens[static_cast<int64_t>(at)];
    }
  }
  int64_t best = 0;
  for (const auto& [second, count] : tokens) best = std::max(best, count);
  return static_cast<double>(best);
}

int64_t peak_requests(std::span<const RequestOutcome> outcomes) {
  std::vector<std::pair<double, int>> edges;
  for (const RequestOutcome& one : outcomes) {
    if (!one.ok) continue;
    edges.emplace_back(one.start_s, 1);
    edges.emplace_back(one.start_s + one.latency_s, -1);
  }
  std::sort(edges.begin(), edges.end());  // at equal times, ends come before starts
  int64_t now = 0;
  int64_t best = 0;
  for (const auto& [time, change] : edges) best = std::max(best, now += change);
  return best;
}

}  // namespace

double quantile(std::span<const double> ascending, double q) {
  if (ascending.empty()) return 0.0;
  const double place = q * static_cast<double>(ascending.size() - 1);
  const auto below = static_cast<size_t>(place);
  const size_t above = std::min(below + 1, ascending.size() - 1);
  const double share = place - static_cast<double>(below);
  return ascending[below] + share * (ascending[above] - ascending[below]);
}

Spread spread_of(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  const auto count = static_cast<double>(values.size());
  Spread spread;
  for (const double value : values) spread.mean += value / count;
  double variance = 0.0;
  for (const double value : values) variance += (value - spread.mean) * (value - spread.mean) / count;
  spread.std = std::sqrt(variance);
  spread.median = quantile(values, 0.5);
  spread.p90 = quantile(values, 0.9);
  spread.p95 = quantile(values, 0.95);
  spread.p99 = quantile(values, 0.99);
  spread.max = values.back();
  return spread;
}

LoadMetrics summarise(std::span<const RequestOutcome> outcomes, double duration_s) {
  constexpr double kMs = 1e3;
  LoadMetrics metrics;
  metrics.duration_s = duration_s;
  std::vector<double> e2e;
  std::vector<double> ttft;
  std::vector<double> tpot;
  std::vector<double> itl;
  double busy_s = 0.0;
  for (const RequestOutcome& one : outcomes) {
    if (!one.ok) continue;
    ++metrics.completed;
    metrics.total_input += one.prompt_tokens;
    metrics.total_output += one.output_tokens;
    metrics.total_cached += one.cached_tokens;
    busy_s += one.latency_s;
    e2e.push_back(kMs * one.latency_s);
    ttft.push_back(kMs * one.ttft_s);
    if (one.output_tokens > 1 && !one.itl_s.empty()) {
      tpot.push_back(kMs * (one.latency_s - one.ttft_s) / static_cast<double>(one.output_tokens - 1));
    }
    for (const float wait : one.itl_s) itl.push_back(kMs * static_cast<double>(wait));
  }
  if (duration_s > 0.0) {
    metrics.request_throughput = static_cast<double>(metrics.completed) / duration_s;
    metrics.input_throughput = static_cast<double>(metrics.total_input) / duration_s;
    metrics.output_throughput = static_cast<double>(metrics.total_output) / duration_s;
    metrics.total_throughput = metrics.input_throughput + metrics.output_throughput;
    metrics.concurrency = busy_s / duration_s;
  }
  metrics.peak_output_throughput = peak_tokens_a_second(outcomes);
  metrics.peak_concurrency = peak_requests(outcomes);
  metrics.e2e_ms = spread_of(std::move(e2e));
  metrics.ttft_ms = spread_of(std::move(ttft));
  metrics.tpot_ms = spread_of(std::move(tpot));
  metrics.itl_ms = spread_of(std::move(itl));
  return metrics;
}

}  // namespace hadal::client
