#include "client/bench_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include <boost/json.hpp>

namespace hadal::client {
namespace {

namespace json = boost::json;

constexpr int kWidth = 50;

std::string line(std::string_view label, double value) {
  return fmt::format("{:<40} {:<10.2f}\n", label, value);
}
std::string line(std::string_view label, int64_t value) {
  return fmt::format("{:<40} {:<10}\n", label, value);
}
std::string line(std::string_view label, std::string_view value) {
  return fmt::format("{:<40} {:<10}\n", label, value);
}
std::string heading(std::string_view title, char fill) {
  return fill == '=' ? fmt::format("{:=^{}}\n", title, kWidth) : fmt::format("{:-^{}}\n", title, kWidth);
}

// Returns the lines for one latency: mean, median and these percentiles.
std::string latency_lines(std::string_view name, const Spread& spread, std::initializer_list<int> tails) {
  std::string out = line(fmt::format("Mean {} (ms):", name), spread.mean);
  out += line(fmt::format("Median {} (ms):", name), spread.median);
  for (const int tail : tails) {
    const double value = tail == 90 ? spread.p90 : tail == 95 ? spread.p95 : spread.p99;
    out += line(fmt::format("P{} {} (ms):", tail, name), value);
  }
  return out;
}

void add_spread(json::object& out, std::string_view name, const Spread& spread,
                std::initializer_list<int> tails) {
  out[fmt::format("mean_{}_ms", name)] = spread.mean;
  out[fmt::format("median_{}_ms", name)] = spread.median;
  out[fmt::format("std_{}_ms", name)] = spread.std;
  for (const int tail : tails) {
    out[fmt::format("p{}_{}_ms", tail, name)] = tail == 90   ? spread.p90
                                                : tail == 95 ? spread.p95
                                                             : spread.p99;
  }
}

json::value rate_value(double rate) {
  return std::isinf(rate) ? json::value("inf") : json::value(rate);
}

template <typename T>
json::value or_null(const std::optional<T>& value) {
  return value ? json::value(*value) : json::value(nullptr);
}

std::string accept_line(const std::optional<AcceptLength>& length) {
  if (!length) return {};
  return line(length->simulated ? "Accept length (simulated):" : "Accept length:", length->tokens);
}

void add_accept_length(json::object& out, const std::optional<AcceptLength>& length) {
  out["accept_length"] = length ? json::value(length->tokens) : json::value(nullptr);
  if (length && length->simulated) out["acceptance"] = "simulated";
}

json::object details_of(std::span<const RequestOutcome> outcomes) {
  json::array input_lens;
  json::array output_lens;
  json::array ttfts;
  json::array itls;
  json::array latencies;
  json::array starts;
  json::array texts;
  json::array errors;
  for (const RequestOutcome& one : outcomes) {
    input_lens.emplace_back(one.prompt_tokens);
    output_lens.emplace_back(one.ok ? one.output_tokens : 0);
    ttfts.emplace_back(one.ttft_s);
    itls.emplace_back(json::array(one.itl_s.begin(), one.itl_s.end()));
    latencies.emplace_back(one.latency_s);
    starts.emplace_back(one.start_s);
    texts.emplace_back(one.text);
    errors.emplace_back(one.error);
  }
  return {{"input_lens", std::move(input_lens)}, {"output_lens", std::move(output_lens)},
          {"ttfts", std::move(ttfts)},           {"itls", std::move(itls)},
          {"latencies", std::move(latencies)},   {"start_times", std::move(starts)},
          {"generated_texts", std::move(texts)}, {"errors", std::move(errors)}};
}

}  // namespace

std::string serving_report(const LoadSetup& setup, const LoadMetrics& metrics, const LoadExtras& extras) {
  std::string out = heading(" Serving Benchmark Result ", '=');
  out += line("Backend:", setup.backend);
  out += line("Traffic request rate:",
              std::isinf(setup.request_rate) ? "inf" : fmt::format("{}", setup.request_rate));
  out += line("Max request concurrency:",
              setup.max_concurrency > 0 ? fmt::format("{}", setup.max_concurrency) : "not set");
  out += line("Successful requests:", metrics.completed);
  out += line("Benchmark duration (s):", metrics.duration_s);
  out += line("Total input tokens:", metrics.total_input);
  out += line("Total generated tokens:", metrics.total_output);
  if (extras.output_retokenized) {
    out += line("Total generated tokens (retokenized):", *extras.output_retokenized);
  }
  out += line("Request throughput (req/s):", metrics.request_throughput);
  out += line("Input token throughput (tok/s):", metrics.input_throughput);
  out += line("Output token throughput (tok/s):", metrics.output_throughput);
  out += line("Peak output token throughput (tok/s):", metrics.peak_output_throughput);
  out += line("Peak concurrent requests:", metrics.peak_concurrency);
  out += line("Total token throughput (tok/s):", metrics.total_throughput);
  out += line("Concurrency:", metrics.concurrency);
  out += accept_line(extras.accept_length);
  out += heading("End-to-End Latency", '-');
  out += latency_lines("E2E Latency", metrics.e2e_ms, {90, 99});
  out += heading("Time to First Token", '-');
  out += latency_lines("TTFT", metrics.ttft_ms, {90, 99});
  out += heading("Time per Output Token (excl. 1st token)", '-');
  out += latency_lines("TPOT", metrics.tpot_ms, {90, 99});
  out += heading("Inter-Token Latency", '-');
  out += latency_lines("ITL", metrics.itl_ms, {90, 95, 99});
  out += line("Max ITL (ms):", metrics.itl_ms.max);
  return out + std::string(kWidth, '=') + "\n";
}

std::string serving_json(const LoadSetup& setup, const LoadMetrics& metrics, const LoadExtras& extras,
                         std::span<const RequestOutcome> details) {
  const DatasetOptions& dataset = setup.dataset;
  json::object out = {
      {"tag", setup.tag.empty() ? json::value(nullptr) : json::value(setup.tag)},
      {"backend", setup.backend},
      {"dataset_name", dataset.name},
      {"request_rate", rate_value(setup.request_rate)},
      {"max_concurrency", setup.max_concurrency > 0 ? json::value(setup.max_concurrency) : nullptr},
      {"sharegpt_output_len",
       dataset.sharegpt_output_len > 0 ? json::value(dataset.sharegpt_output_len) : nullptr},
      {"random_input_len", dataset.random_input_len},
      {"random_output_len", dataset.random_output_len},
      {"random_range_ratio", dataset.random_range_ratio},
      {"duration", metrics.duration_s},
      {"completed", metrics.completed},
      {"total_input_tokens", metrics.total_input},
      {"total_output_tokens", metrics.total_output},
      {"total_output_tokens_retokenized", or_null(extras.output_retokenized)},
      {"total_cached_tokens", metrics.total_cached},
      {"request_throughput", metrics.request_throughput},
      {"input_throughput", metrics.input_throughput},
      {"output_throughput", metrics.output_throughput},
      {"total_throughput", metrics.total_throughput},
  };
  add_spread(out, "e2e_latency", metrics.e2e_ms, {90, 99});
  add_spread(out, "ttft", metrics.ttft_ms, {90, 99});
  add_spread(out, "tpot", metrics.tpot_ms, {90, 99});
  add_spread(out, "itl", metrics.itl_ms, {90, 95, 99});
  out["max_itl_ms"] = metrics.itl_ms.max;
  out["concurrency"] = metrics.concurrency;
  add_accept_length(out, extras.accept_length);
  out["max_output_tokens_per_s"] = metrics.peak_output_throughput;
  out["max_concurrent_requests"] = metrics.peak_concurrency;
  if (!details.empty()) {
    for (auto& [name, value] : details_of(details)) out[name] = std::move(value);
  }
  return json::serialize(out);
}

std::string offline_report(const OfflineResult& result) {
  const double seconds = result.total_latency_s;
  const auto input = static_cast<double>(result.total_input_tokens);
  const auto output = static_cast<double>(result.total_output_tokens);
  std::string out = heading(" Offline Throughput Benchmark Result ", '=');
  out += line("Backend:", result.backend);
  out += line("Successful requests:", result.successful_requests);
  out += line("Benchmark duration (s):", seconds);
  out += line("Total input tokens:", result.total_input_tokens);
  out += line("Total generated tokens:", result.total_output_tokens);
  out += line("Last generation throughput (tok/s):", result.last_gen_throughput);
  out += line("Request throughput (req/s):", static_cast<double>(result.successful_requests) / seconds);
  out += line("Input token throughput (tok/s):", input / seconds);
  out += line("Output token throughput (tok/s):", output / seconds);
  out += line("Total token throughput (tok/s):", (input + output) / seconds);
  out += accept_line(result.accept_length);
  return out + std::string(kWidth, '=') + "\n";
}

std::string offline_json(const OfflineResult& result) {
  const double seconds = result.total_latency_s;
  const auto input = static_cast<double>(result.total_input_tokens);
  const auto output = static_cast<double>(result.total_output_tokens);
  json::object out = {
      {"backend", result.backend},
      {"successful_requests", result.successful_requests},
      {"total_latency", seconds},
      {"total_input_tokens", result.total_input_tokens},
      {"total_output_tokens", result.total_output_tokens},
      {"request_throughput", static_cast<double>(result.successful_requests) / seconds},
      {"input_throughput", input / seconds},
      {"output_throughput", output / seconds},
      {"total_throughput", (input + output) / seconds},
      {"last_gen_throughput", result.last_gen_throughput},
  };
  add_accept_length(out, result.accept_length);
  return json::serialize(out);
}

std::vector<std::string> failure_lines(std::span<const RequestOutcome> outcomes, size_t limit) {
  std::map<std::string, int64_t> counts;
  for (const RequestOutcome& one : outcomes) {
    if (!one.ok) ++counts[one.error];
  }
  std::vector<std::pair<std::string, int64_t>> sorted(counts.begin(), counts.end());
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  std::vector<std::string> lines;
  for (const auto& [error, count] : sorted) {
    if (lines.size() == limit) break;
    lines.push_back(fmt::format("{} failed: {}", count, error));
  }
  return lines;
}

}  // namespace hadal::client
