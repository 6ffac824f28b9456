#include "server/metrics.h"

#include <prometheus/histogram.h>
#include <prometheus/metric_family.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/version.h"
#include "server/admission/request_memory.h"
#include "server/http/answer_counts.h"
#include "server/http/http_server.h"
#include "server/process_stats.h"
#include "text/grammar/grammar.h"

namespace hadal::server {
namespace {

using Buckets = prometheus::Histogram::BucketBoundaries;

// These are SGLang's bucket boundaries, so that its dashboards show the same quantiles.
const Buckets kFirstTokenBuckets = {0.1, 0.2, 0.4, 0.6, 0.8, 1,  2,   4,   6,
                                    8,   10,  20,  40,  60,  80, 100, 200, 400};
const Buckets kInterTokenBuckets = {0.002, 0.004, 0.006, 0.008, 0.010, 0.015, 0.020, 0.025,
                                    0.030, 0.035, 0.040, 0.060, 0.080, 0.100, 0.200, 0.400,
                                    0.600, 0.800, 1.000, 2.000, 4.000, 6.000, 8.000};
const Buckets kEndToEndBuckets = {0.1, 0.2, 0.4, 0.6, 0.8, 1,   2,   4,   6,    8,    10,
                                  20,  40,  60,  80,  100, 200, 400, 600, 1200, 1800, 2400};
const Buckets kQueueBuckets = {0.0, 0.1, 0.2, 0.5, 1,  2,   3,   4,   5,   10,  15,   20,   30,  40,
                               50,  60,  70,  80,  90, 100, 200, 300, 400, 500, 1000, 1500, 2000};
const Buckets kPromptTokenBuckets = {100,   300,    500,    700,    1000,   1500,  2000,  3000,
                                     4000,  5000,   6000,   7000,   8000,   9000,  10000, 12000,
                                     15000, 20000,  22000,  25000,  30000,  35000, 40000, 60000,
                                     80000, 100000, 200000, 300000, 400000, 600000};
const Buckets kGeneratedTokenBuckets = {100,  300,  500,   1000,  1200,  1500,  1700,  2000,
                                        2500, 3000, 3500,  4000,  4500,  5000,  6000,  7000,
                                        8000, 9000, 10000, 20000, 40000, 80000, 160000};

double ratio(double part, double whole) {
  return whole > 0 ? part / whole : 0.0;
}

using prometheus::MetricType;

// Adds families whose samples may have labels besides those of the server.
class FamilyWriter {
 public:
  FamilyWriter(std::vector<prometheus::MetricFamily>& families, const MetricsOptions& options)
      : families_(families), options_(options) {}

  prometheus::MetricFamily& add(const char* name, const char* help, MetricType type) {
    return families_.emplace_back(prometheus::MetricFamily{options_.prefix + name, help, type, {}});
  }
  template <typename T>
  void sample(prometheus::MetricFamily& family, T value, const char* label, std::string_view text) {
    sample(family, value, {{label, std::string(text)}});
  }
  template <typename T>
  void sample(prometheus::MetricFamily& family, T value,
              const std::vector<prometheus::ClientMetric::Label>& labels = {}) {
    prometheus::ClientMetric metric;
    metric.label = {{"engine_type", "unified"}, {"model_name", options_.model_name}};
    metric.label.insert(metric.label.end(), labels.begin(), labels.end());
    (family.type == MetricType::Counter ? metric.counter.value : metric.gauge.value) =
        static_cast<double>(value);
    family.metric.push_back(std::move(metric));
  }

 private:
  std::vector<prometheus::MetricFamily>& families_;
  const MetricsOptions& options_;
};

// Adds the memory that requests hold, and how many requests were refused or ended for lack of memory.
void append_memory(FamilyWriter writer, const RequestMemory& memory) {
  prometheus::MetricFamily& bytes = writer.add(
      "request_memory_bytes", "Memory that requests hold or will hold, by kind.", MetricType::Gauge);
  for (size_t i = 0; i < kNumMemoryKinds; ++i) {
    const auto kind = static_cast<MemoryKind>(i);
    writer.sample(bytes, memory.bytes(kind), "kind", to_string(kind));
  }
  writer.sample(writer.add("request_memory_limit_bytes", "Limit of the memory of all requests together.",
                           MetricType::Gauge),
                memory.limit());
  prometheus::MetricFamily& refused = writer.add(
      "request_memory_refused_total",
      "Requests that were refused or ended because this kind of memory would have passed the limit.",
      MetricType::Counter);
  for (size_t i = 0; i < kNumMemoryKinds; ++i) {
    const auto kind = static_cast<MemoryKind>(i);
    writer.sample(refused, memory.refused(kind), "kind", to_string(kind));
  }
}

// Adds the entries and the bytes of the cache of compiled grammars.
void append_grammars(FamilyWriter writer, const GrammarCacheStats& cache) {
  writer.sample(writer.add("grammar_cache_entries", "Compiled grammars that are kept.", MetricType::Gauge),
                cache.entries);
  writer.sample(writer.add("grammar_cache_bytes",
                           "Memory of the compiled grammars that are kept, with vocabularies of their own.",
                           MetricType::Gauge),
                cache.size_bytes);
}

// Adds the transport's connections and body bytes, refusals by reason, and each I/O thread's longest task.
void append_transport(FamilyWriter writer, HttpServer& http) {
  const auto add = [&](const char* name, const char* help, MetricType type) -> prometheus::MetricFamily& {
    return writer.add(name, help, type);
  };
  const auto sample = [&](prometheus::MetricFamily& family, auto value, const auto&... label) {
    writer.sample(family, value, label...);
  };
  sample(add("http_connections", "Open connections.", MetricType::Gauge), http.num_connections());
  sample(
      add("http_body_bytes", "Memory of request bodies that arrive or are being parsed.", MetricType::Gauge),
      http.ledger().body_bytes());
  prometheus::MetricFamily& refused =
      add("http_refused_requests_total", "Requests that were refused before a handler saw them.",
          MetricType::Counter);
  for (size_t i = 0; i < kNumRefusals; ++i) {
    const auto refusal = static_cast<Refusal>(i);
    sample(refused, http.ledger().refused(refusal), "reason", to_string(refusal));
  }
  sample(add("http_idle_connections_closed_total", "Idle connections that were closed for new ones.",
             MetricType::Counter),
         http.ledger().idle_cuts());
  prometheus::MetricFamily& longest = add(
      "http_longest_task_seconds",
      "Longest time that an I/O thread served one event, in the last one to two minutes.", MetricType::Gauge);
  for (int i = 0; i < http.num_threads(); ++i) {
    sample(longest, http.longest_task_seconds(i), "thread", std::to_string(i));
  }
}

// Adds the answers by endpoint and status.
void append_answers(FamilyWriter writer, const AnswerCounts& answers,
                    const std::vector<Endpoint>& endpoints) {
  // This is SGLang's word for paths without a route.
  constexpr Endpoint kNone{.method = "Unknown", .path = "Unknown"};
  prometheus::MetricFamily& family =
      writer.add("http_responses_total", "HTTP answers, by endpoint and status.", MetricType::Counter);
  for (const auto& [key, count] : answers.counts()) {
    const auto& [route, status] = key;
    const Endpoint& endpoint = route < 0 || static_cast<size_t>(route) >= endpoints.size()
                                   ? kNone
                                   : endpoints[static_cast<size_t>(route)];
    writer.sample(family, count,
                  {{"endpoint", std::string(endpoint.path)},
                   {"method", std::string(endpoint.method)},
                   {"status_code", std::to_string(status)}});
  }
}

// Adds the metrics that Prometheus' client libraries export for every process, and a metric that names this
// build.
void append_process(std::vector<prometheus::MetricFamily>& families, const ProcessStats& stats) {
  const auto add = [&](const char* name, const char* help, MetricType type, auto value) {
    prometheus::ClientMetric metric;
    (type == MetricType::Counter ? metric.counter.value : metric.gauge.value) = static_cast<double>(value);
    families.push_back({name, help, type, {std::move(metric)}});
  };
  add("process_resident_memory_bytes", "Resident memory.", MetricType::Gauge, stats.resident_bytes);
  add("process_virtual_memory_bytes", "Virtual memory.", MetricType::Gauge, stats.virtual_bytes);
  add("process_cpu_seconds_total", "Processor time of all threads.", MetricType::Counter, stats.cpu_s);
  add("process_open_fds", "Open file descriptors.", MetricType::Gauge, stats.open_descriptors);
  add("process_max_fds", "Limit of open file descriptors; -1: none.", MetricType::Gauge,
      stats.max_descriptors);
  add("process_start_time_seconds", "When the process started, in seconds since 1970.", MetricType::Gauge,
      stats.start_time_s);
  add("hadal_build_info", "Always 1; the label is the version of this build.", MetricType::Gauge, 1);
  families.back().metric.front().label = {{"version", std::string(version())}};
}

}  // namespace

struct Metrics::Impl {
  ProcessReader process;
  prometheus::Registry registry;
  prometheus::Histogram* first_token = nullptr;
  prometheus::Histogram* inter_token = nullptr;
  prometheus::Histogram* end_to_end = nullptr;
  prometheus::Histogram* queue_time = nullptr;
  prometheus::Histogram* prompt_tokens = nullptr;
  prometheus::Histogram* generated_tokens = nullptr;
};

Metrics::Metrics(MetricsOptions options) : options_(std::move(options)) {
  if (!options_.enabled) return;
  impl_ = std::make_unique<Impl>();
  const auto histogram = [&](const char* name, const char* help, const Buckets& buckets) {
    auto& family =
        prometheus::BuildHistogram().Name(options_.prefix + name).Help(help).Register(impl_->registry);
    return &family.Add({{"model_name", options_.model_name}, {"engine_type", "unified"}}, buckets);
  };
  impl_->first_token = histogram("time_to_first_token_seconds",
                                 "Seconds from a request's arrival to its first token.", kFirstTokenBuckets);
  impl_->inter_token =
      histogram("inter_token_latency_seconds", "Seconds between two tokens of a stream.", kInterTokenBuckets);
  impl_->end_to_end = histogram("e2e_request_latency_seconds", "Seconds from a request's arrival to its end.",
                                kEndToEndBuckets);
  impl_->queue_time =
      histogram("queue_time_seconds", "Seconds a request waited before work on it began.", kQueueBuckets);
  impl_->prompt_tokens =
      histogram("prompt_tokens_histogram", "Tokens of a request's prompt.", kPromptTokenBuckets);
  impl_->generated_tokens =
      histogram("generation_tokens_histogram", "Tokens of a request's answer.", kGeneratedTokenBuckets);
}

Metrics::~Metrics() = default;

void Metrics::observe_first_token(double seconds) {
  if (impl_ != nullptr) impl_->first_token->Observe(seconds);
}

void Metrics::observe_tokens(double seconds, int64_t num_tokens) {
  if (impl_ == nullptr || num_tokens <= 0) return;
  for (int64_t i = 0; i < num_tokens; ++i) {
    impl_->inter_token->Observe(seconds / static_cast<double>(num_tokens));
  }
}

void Metrics::observe_finished(double e2e_s, double queue_s) {
  if (impl_ == nullptr) return;
  impl_->end_to_end->Observe(e2e_s);
  impl_->queue_time->Observe(queue_s);
}

void Metrics::observe_lengths(int64_t prompt_tokens, int64_t generated_tokens) {
  if (impl_ == nullptr) return;
  if (prompt_tokens > 0) impl_->prompt_tokens->Observe(static_cast<double>(prompt_tokens));
  impl_->generated_tokens->Observe(static_cast<double>(generated_tokens));
}

std::string Metrics::text(const EngineStats& stats, HttpServer* http, const RequestMemory* memory,
                          const GrammarCompiler* grammars) const {
  std::vector<prometheus::MetricFamily> families;
  if (impl_ != nullptr) families = impl_->registry.Collect();
  const SchedulerStats& scheduler = stats.scheduler;
  const auto add = [&](const char* name, const char* help, prometheus::MetricType type, double value) {
    prometheus::ClientMetric metric;
    for (const auto& [key, text] :
         std::initializer_list<std::pair<const char*, std::string>>{{"model_name", options_.model_name},
                                                                    {"engine_type", "unified"},
                                                                    {"tp_rank", "0"},
                                                                    {"pp_rank", "0"}}) {
      metric.label.push_back({key, text});
    }
    if (type == prometheus::MetricType::Counter) {
      metric.counter.value = value;
    } else {
      metric.gauge.value = value;
    }
    families.push_back({options_.prefix + name, help, type, {metric}});
  };
  const auto gauge = [&](const char* name, const char* help, auto value) {
    add(name, help, prometheus::MetricType::Gauge, static_cast<double>(value));
  };
  const auto counter = [&](const char* name, const char* help, auto value) {
    add(name, help, prometheus::MetricType::Counter, static_cast<double>(value));
  };
  gauge("num_running_reqs", "Requests in the running batch.", scheduler.num_running);
  gauge("num_queue_reqs", "Requests that wait.", scheduler.num_queued);
  gauge("num_used_tokens", "Tokens of the KV cache that requests hold.", scheduler.num_used_tokens);
  gauge("token_usage", "Share of the KV cache that requests hold.",
        ratio(static_cast<double>(scheduler.num_used_tokens), static_cast<double>(stats.max_total_tokens)));
  gauge("gen_throughput", "Generated tokens per second.", stats.gen_throughput);
  gauge("cache_hit_rate", "Share of prompt tokens that came from the prefix cache.",
        ratio(static_cast<double>(scheduler.total_cached_tokens),
              static_cast<double>(scheduler.total_prompt_tokens)));
  gauge("spec_accept_length", "Tokens accepted per verification; 0: nothing speculates.",
        stats.speculation.accept_length());
  gauge("spec_accept_rate", "Share of drafted tokens accepted; 0: nothing speculates.",
        stats.speculation.accept_rate());
  gauge("num_retracted_reqs", "Requests sent back to the queue because memory was missing, since the start.",
        scheduler.total_retractions);
  gauge("max_total_num_tokens", "Tokens the KV cache holds.", stats.max_total_tokens);
  gauge("page_size", "Tokens per page of the KV cache.", kPageSize);
  gauge("utilization", "Share of the last second in which a step was running.", stats.utilization);
  gauge("is_cuda_graph", "1 when the last decode step ran as a CUDA graph, else 0.",
        stats.decode_graphed ? 1 : 0);
  gauge("startup_time_seconds", "Seconds from the start of the process to the first token.",
        startup_s_.load(std::memory_order_relaxed));
  counter("prompt_tokens_total", "Prompt tokens of admitted requests.", scheduler.total_prompt_tokens);
  counter("generation_tokens_total", "Tokens generated.", stats.generation_tokens);
  counter("cached_tokens_total", "Prompt tokens that came from the prefix cache.",
          scheduler.total_cached_tokens);
  counter("num_requests_total", "Requests accepted.", stats.num_requests);
  counter("num_aborted_requests_total", "Requests aborted.", stats.num_aborted);
  counter("unknown_request_fields_total", "Fields of requests that no API here defines; they are ignored.",
          unknown_fields_.load(std::memory_order_relaxed));
  counter("evicted_tokens_total", "Tokens evicted from the prefix cache.", scheduler.total_evicted_tokens);
  const FamilyWriter writer(families, options_);
  if (http != nullptr) {
    append_transport(writer, *http);
    append_answers(writer, http->answers(), endpoints_);
  }
  if (memory != nullptr) append_memory(writer, *memory);
  if (grammars != nullptr) append_grammars(writer, grammars->cache_stats());
  if (impl_ != nullptr) append_process(families, impl_->process.read());
  return prometheus::TextSerializer().Serialize(families);
}

}  // namespace hadal::server
