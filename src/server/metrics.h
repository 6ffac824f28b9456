// /metrics: SGLang's names in Prometheus' text format. Gauges and counters are read from the engine at the
// time of a request; histograms are filled by the I/O threads. Any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "engine/engine.h"

namespace hadal::server {

struct MetricsOptions {
  bool enabled = false;
  std::string prefix = "sglang:";
  std::string model_name;
};

class Metrics {
 public:
  explicit Metrics(MetricsOptions options);
  ~Metrics();

  bool enabled() const { return options_.enabled; }
  // Time from the start of the process to the first token.
  void set_startup_seconds(double seconds) { startup_s_.store(seconds, std::memory_order_relaxed); }

  // These record one request; they do nothing while disabled.
  void observe_first_token(double seconds);
  // `num_tokens` tokens arrived `seconds` after the previous ones: each counts with its share of that time.
  void observe_tokens(double seconds, int64_t num_tokens);
  void observe_finished(double e2e_s, double queue_s);

  // Returns the whole page.
  std::string text(const EngineStats& stats) const;

  static constexpr const char* kContentType = "text/plain; version=0.0.4; charset=utf-8";

 private:
  struct Impl;
  MetricsOptions options_;
  std::atomic<double> startup_s_{0.0};
  std::unique_ptr<Impl> impl_;  // null while disabled
};

}  // namespace hadal::server
