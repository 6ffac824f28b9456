// Writes /metrics: SGLang's names in Prometheus' text format, and Prometheus' own names for the process.
// Gauges and counters are read from the engine at the time of a request; the I/O threads fill the histograms.
// Any thread may call it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine.h"

namespace hadal {
class GrammarCompiler;  // text/grammar/grammar.h
}

namespace hadal::server {

class HttpServer;     // server/http/http_server.h
class RequestMemory;  // server/admission/request_memory.h

struct MetricsOptions {
  bool enabled = false;
  std::string prefix = "sglang:";
  std::string model_name;
};

// Endpoint labels a route in /metrics with the route's pattern, so that paths from clients never become
// labels.
struct Endpoint {
  std::string_view method;
  std::string_view path;
};

class Metrics {
 public:
  explicit Metrics(MetricsOptions options);
  ~Metrics();

  bool enabled() const { return options_.enabled; }
  // Sets the time from the start of the process to the first token.
  void set_startup_seconds(double seconds) { startup_s_.store(seconds, std::memory_order_relaxed); }

  // Names the routes by their index. It is called before the first request.
  void set_endpoints(std::vector<Endpoint> endpoints) { endpoints_ = std::move(endpoints); }

  // These record one request; they do nothing while disabled.
  void observe_first_token(double seconds);
  // Records that `num_tokens` tokens arrived `seconds` after the previous ones. Each token counts with its
  // share of that time.
  void observe_tokens(double seconds, int64_t num_tokens);
  void observe_finished(double e2e_s, double queue_s);
  // Records the lengths of a prompt (0 if another choice of the same prompt has recorded it) and of its
  // answer.
  void observe_lengths(int64_t prompt_tokens, int64_t generated_tokens);

  // Returns the whole page, and changes nothing. If `http`, `memory` or `grammars` is null, the page leaves
  // out its metrics.
  std::string text(const EngineStats& stats, HttpServer* http = nullptr,
                   const RequestMemory* memory = nullptr, const GrammarCompiler* grammars = nullptr) const;

  // Counts request fields that were ignored because no API here defines them. Any thread may call it.
  void count_unknown_fields(int64_t count) { unknown_fields_.fetch_add(count, std::memory_order_relaxed); }

  static constexpr const char* kContentType = "text/plain; version=0.0.4; charset=utf-8";

 private:
  struct Impl;
  MetricsOptions options_;
  std::vector<Endpoint> endpoints_;
  std::atomic<double> startup_s_{0.0};
  std::atomic<int64_t> unknown_fields_{0};
  std::unique_ptr<Impl> impl_;  // null while disabled
};

}  // namespace hadal::server
