// `hadal bench serving` puts load on a server over HTTP and measures at the client, with a row per
// concurrency.
#include <charconv>
#include <cmath>
#include <fstream>

#include "base/log.h"
#include "base/printable.h"
#include "cli/client_options.h"
#include "cli/commands/commands.h"
#include "cli/run.h"
#include "cli/terminal.h"
#include "client/bench_load.h"
#include "client/bench_report.h"
#include "client/plot.h"
#include "client/server_connection.h"

namespace hadal::cli {
namespace {

struct ServingOptions {
  client::Backend backend;
  client::DatasetOptions dataset;
  client::LoadOptions load;
  std::vector<int64_t> concurrencies;  // 0: no limit
  int64_t warmup_requests = 1;
  bool flush_cache = false;
  bool profile = false;
  std::string tag;
  std::string output_file;
  bool output_details = false;
  std::string plot;
};

Result<double> parse_rate(const std::string& text) {
  if (text == "inf" || text == "Infinity") return std::numeric_limits<double>::infinity();
  double rate = 0.0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), rate);
  if (error != std::errc() || end != text.data() + text.size() || !(rate > 0.0) || !std::isfinite(rate)) {
    return invalid_argument("--request-rate {}: must be a number above 0, or inf",
                            text.empty() ? "''" : text);
  }
  return rate;
}

Result<ServingOptions> resolve_serving(const ParsedFlags& flags) {
  ServingOptions options;
  HADAL_ASSIGN_OR_RETURN(options.backend, client::find_backend(flags.text_or("backend", "sglang")));
  HADAL_ASSIGN_OR_RETURN(options.dataset, resolve_dataset(flags));
  HADAL_ASSIGN_OR_RETURN(options.load.request_rate, parse_rate(flags.text_or("request-rate", "inf")));
  options.load.seed = options.dataset.seed;
  client::BodyOptions& body = options.load.body;
  body.api = options.backend.api;
  body.stream = !flags.has("disable-stream");
  body.ignore_eos = !flags.has("disable-ignore-eos");
  body.return_logprob = flags.has("return-logprob");
  if (const auto extra = flags.text("extra-request-body")) {
    HADAL_RETURN_IF_ERROR(client::check_extra(*extra, "--extra-request-body"));
    body.extra = *extra;
  }
  HADAL_ASSIGN_OR_RETURN(options.concurrencies, parse_counts(flags, "max-concurrency", {0}));
  options.warmup_requests = flags.integer("warmup-requests").value_or(options.warmup_requests);
  options.flush_cache = flags.has("flush-cache");
  options.profile = flags.has("profile");
  options.tag = flags.text_or("tag", "");
  options.output_file = flags.text_or("output-file", "");
  options.output_details = flags.has("output-details");
  if (options.output_details && options.output_file.empty()) {
    return invalid_argument("--output-details: needs --output-file, to which the details are written");
  }
  options.plot = flags.text_or("plot", "");
  if (!options.plot.empty()) HADAL_RETURN_IF_ERROR(client::check_plot_path(options.plot, "--plot"));
  const bool as_ids = options.dataset.ids_only || options.dataset.name == "random-ids";
  if (as_ids && body.api == client::ServerApi::kChat) {
    return invalid_argument(
        "--backend {}: a chat cannot send token ids; use --dataset-name random, or another backend",
        options.backend.name);
  }
  return options;
}

// Every step of a sweep has new requests, because the server's prefix cache would contain prompts that were
// sent before.
Result<std::vector<client::LoadRequest>> make_requests(const ServingOptions& options, size_t step,
                                                       const Tokenizer* tokenizer,
                                                       std::optional<ChatFormat> format, int64_t vocab_size) {
  client::DatasetOptions dataset = options.dataset;
  dataset.seed += step;
  return client::make_dataset(dataset, tokenizer, format, vocab_size);
}

Result<void> warm_up_server(client::ServerConnection& server, const ServingOptions& options,
                            const client::LoadRequest& first, const InterruptGuard& guard) {
  if (options.warmup_requests == 0) return {};
  constexpr int64_t kWarmUpOutput = 32;
  client::LoadRequest request = first;
  request.output_tokens = std::min(request.output_tokens, kWarmUpOutput);
  client::LoadOptions load = options.load;
  load.request_rate = std::numeric_limits<double>::infinity();
  const std::vector<client::LoadRequest> requests(static_cast<size_t>(options.warmup_requests), request);
  const client::LoadResult result =
      client::run_load(server.client(), requests, load, nullptr, [&guard] { return guard.interrupted(); });
  for (const client::RequestOutcome& one : result.outcomes) {
    if (one.ok || result.stopped) return {};
  }
  return make_status(StatusCode::kInternal, "the warm-up failed: {}", result.outcomes[0].error);
}

int64_t retokenized(const Tokenizer& tokenizer, std::span<const client::RequestOutcome> outcomes) {
  int64_t count = 0;
  for (const client::RequestOutcome& one : outcomes) {
    if (one.ok) count += static_cast<int64_t>(tokenizer.encode(one.text, false).size());
  }
  return count;
}

struct Step {
  int64_t max_concurrency = 0;
  client::LoadMetrics metrics;
};

client::PlotSeries series_of(std::span<const Step> steps, std::string name,
                             client::Spread client::LoadMetrics::*latency, double client::Spread::*value) {
  client::PlotSeries series{.name = std::move(name), .points = {}};
  for (const Step& step : steps) {
    series.points.push_back(
        {.x = step.metrics.*latency.*value,
         .y = step.metrics.output_throughput,
         .label = step.max_concurrency > 0 ? fmt::format("{}", step.max_concurrency) : "no limit"});
  }
  return series;
}

client::Plot make_plot(const ServingOptions& options, const std::string& model, std::span<const Step> steps) {
  // Returns the last part of a path.
  const std::string name = model.substr(model.find_last_of('/') + 1);
  client::Plot plot{.title = "Throughput against latency",
                    .subtitle = fmt::format("{}, {}, {} requests per point; labels: concurrent requests",
                                            name, options.dataset.name, steps[0].metrics.completed),
                    .panels = {}};
  const bool has_tpot = steps[0].metrics.tpot_ms.max > 0.0;
  const std::pair<const char*, client::Spread client::LoadMetrics::*> panels[] = {
      {"Time to first token (ms)", &client::LoadMetrics::ttft_ms},
      has_tpot ? std::pair{"Time per output token (ms)", &client::LoadMetrics::tpot_ms}
               : std::pair{"End-to-end latency (ms)", &client::LoadMetrics::e2e_ms}};
  for (const auto& [label, latency] : panels) {
    plot.panels.push_back({.title = "",
                           .x_label = label,
                           .y_label = "Output tokens per second",
                           .series = {series_of(steps, "median", latency, &client::Spread::median),
                                      series_of(steps, "p99", latency, &client::Spread::p99)}});
  }
  return plot;
}

Result<void> call_profiler(client::ServerConnection& server, const ServingOptions& options,
                           const char* target) {
  if (!options.profile) return {};
  HADAL_ASSIGN_OR_RETURN(const std::string body, server.call("POST", target));
  log_info("profiler target={} answer=\"{}\"", target, printable(body.substr(0, 200)));
  return {};
}

Result<Step> measure(client::ServerConnection& server, const ServingOptions& options, int64_t max_concurrency,
                     std::span<const client::LoadRequest> requests, const Tokenizer* tokenizer,
                     std::ostream* rows, bool show_progress, const InterruptGuard& guard) {
  if (options.flush_cache) HADAL_RETURN_IF_ERROR(server.call("POST", "/flush_cache"));
  HADAL_RETURN_IF_ERROR(call_profiler(server, options, "/start_profile"));
  client::LoadOptions load = options.load;
  load.max_concurrency = max_concurrency;
  Progress progress("requests");
  const auto on_done = [&](size_t done) {
    if (show_progress) progress.update(done, requests.size(), fmt::format("{}/{}", done, requests.size()));
  };
  const client::LoadResult result =
      client::run_load(server.client(), requests, load, on_done, [&guard] { return guard.interrupted(); });
  progress.finish();
  HADAL_RETURN_IF_ERROR(call_profiler(server, options, "/stop_profile"));
  if (result.stopped) return make_status(StatusCode::kCancelled, "interrupted");
  const client::LoadSetup setup{.backend = std::string(options.backend.name),
                                .tag = options.tag,
                                .dataset = options.dataset,
                                .request_rate = load.request_rate,
                                .max_concurrency = max_concurrency};
  const Step step{max_concurrency, client::summarise(result.outcomes, result.duration_s)};
  client::LoadExtras extras{.output_retokenized = std::nullopt, .accept_length = server.accept_length()};
  if (tokenizer != nullptr) extras.output_retokenized = retokenized(*tokenizer, result.outcomes);
  for (const std::string& line : client::failure_lines(result.outcomes, 5))
    log_warning("{}", printable(line));
  write_stdout("\n" + client::serving_report(setup, step.metrics, extras));
  if (rows != nullptr) {
    const std::span<const client::RequestOutcome> details(result.outcomes);
    *rows << client::serving_json(setup, step.metrics, extras,
                                  options.output_details ? details : details.first(0))
          << std::endl;
    if (!*rows) return make_status(StatusCode::kResourceExhausted, "cannot write {}", options.output_file);
  }
  if (step.metrics.completed == 0) {
    return make_status(StatusCode::kInternal, "all {} requests failed", requests.size());
  }
  return step;
}

}  // namespace

Result<int> run_bench_serving(const ParsedFlags& flags, const Environment& /*environment*/) {
  HADAL_ASSIGN_OR_RETURN(ServingOptions options, resolve_serving(flags));
  std::ofstream rows;
  if (!options.output_file.empty()) {
    rows.open(options.output_file, std::ios::app);
    if (!rows) return make_status(StatusCode::kResourceExhausted, "cannot write {}", options.output_file);
  }
  HADAL_ASSIGN_OR_RETURN(client::ServerConnection server, open_server(flags, options.backend.default_port));
  HADAL_ASSIGN_OR_RETURN(options.load.body.model, model_name(flags, server));
  HADAL_ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer, tokenizer_for(flags, server));
  HADAL_RETURN_IF_ERROR(check_has_tokenizer(options.dataset, tokenizer.get()));
  std::optional<ChatFormat> format;
  if (options.dataset.apply_chat_template) {
    if (tokenizer == nullptr) return invalid_argument("--apply-chat-template: needs --tokenizer-path");
    HADAL_ASSIGN_OR_RETURN(format, detect_chat_format(tokenizer->chat_template()));
  }
  int64_t vocab_size = 0;
  if (options.dataset.name == "random-ids" && tokenizer == nullptr) {
    const std::optional<int64_t> said = server.vocab_size();
    if (!said) {
      return invalid_argument(
          "--dataset-name random-ids: the server does not report how many ids its model "
          "has; use --tokenizer-path");
    }
    vocab_size = *said;
  }

  const InterruptGuard guard;
  std::vector<Step> steps;
  for (const int64_t max_concurrency : options.concurrencies) {
    HADAL_ASSIGN_OR_RETURN(const std::vector<client::LoadRequest> requests,
                           make_requests(options, steps.size(), tokenizer.get(), format, vocab_size));
    if (steps.empty()) {
      log_info("load target={}{} model={} dataset={} requests={}", server.address(),
               client::target_of(options.backend.api), options.load.body.model, options.dataset.name,
               requests.size());
      HADAL_RETURN_IF_ERROR(warm_up_server(server, options, requests[0], guard));
    }
    HADAL_ASSIGN_OR_RETURN(const Step step,
                           measure(server, options, max_concurrency, requests, tokenizer.get(),
                                   rows.is_open() ? &rows : nullptr, !flags.has("disable-tqdm"), guard));
    steps.push_back(step);
  }
  if (!options.plot.empty()) {
    HADAL_RETURN_IF_ERROR(
        client::write_plot(make_plot(options, options.load.body.model, steps), options.plot));
    log_info("plot written file={}", options.plot);
  }
  return kExitOk;
}

}  // namespace hadal::cli
