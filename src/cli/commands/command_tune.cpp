// `hadal tune fp8-gemm` and `hadal tune moe`: measure which kernel is fastest for which shape, and write the
// results to files that --kernel-config-dir reads.
#include <chrono>
#include <iterator>

#include "base/log.h"
#include "cli/commands/commands.h"
#include "cli/run.h"
#include "cli/session.h"
#include "cli/terminal.h"
#include "tune/tune_report.h"
#include "tune/tuner.h"

namespace hadal::cli {
namespace {

constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;
constexpr double kMostWeightGiB = 64.0;  // weights of one product

bool of_experts(const ParsedFlags& flags) {
  return flags.command() == Command::kTuneMoe;
}

Result<std::vector<ProductSpec>> products_of_model(const ParsedFlags& flags, const Environment& environment) {
  for (const char* name : {"n", "k", "experts", "top-k", "weight-type"}) {
    if (flags.has(name))
      return invalid_argument(
          "--{}: cannot be used with --model-path, which gives the shapes; leave one of them out", name);
  }
  HADAL_ASSIGN_OR_RETURN(const auto session, Session::open(flags, environment, TokenizerUse::kNone));
  const ModelSplit split{flags.integer("tp-size").value_or(1), flags.integer("ep-size").value_or(1)};
  const LoadQuantization quantization = session->options().quantization;
  if (!of_experts(flags)) return dense_products(session->config(), quantization, split);
  HADAL_ASSIGN_OR_RETURN(std::vector<ProductSpec> products,
                         expert_products(session->config(), quantization, split));
  if (products.empty())
    return invalid_argument("--model-path {}: the model has no experts", session->options().model_path);
  return products;
}

// Returns bf16, or the type that --quantization of the same name produces.
Result<WeightType> weight_type_named(std::string_view name) {
  if (name == "bf16") return WeightType::kBF16;
  HADAL_ASSIGN_OR_RETURN(const LoadQuantization quantization, parse_load_quantization(name));
  return weight_type_of(quantization);
}

Result<std::vector<ProductSpec>> products_of_sizes(const ParsedFlags& flags) {
  const bool experts = of_experts(flags);
  for (const char* name : {"tp-size", "ep-size", "quantization", "json-model-override-args"}) {
    if (flags.has(name)) return invalid_argument("--{} needs --model-path", name);
  }
  std::vector<const char*> needed = {"n", "k"};
  if (experts) needed.insert(needed.end(), {"experts", "top-k"});
  for (const char* name : needed) {
    if (!flags.has(name)) {
      return invalid_argument("--{} is missing: use either --model-path, or {}", name,
                              experts ? "--experts, --n, --k and --top-k" : "--n and --k");
    }
  }
  HADAL_ASSIGN_OR_RETURN(const WeightType type, weight_type_named(flags.text_or("weight-type", "fp8")));
  const int64_t n = *flags.integer("n");
  const int64_t k = *flags.integer("k");
  if (!experts) {
    return std::vector<ProductSpec>{{.label = "product", .name = {.n = n, .k = k, .type = type}}};
  }
  const int64_t num_experts = *flags.integer("experts");
  const int64_t top_k = *flags.integer("top-k");
  if (top_k > num_experts)
    return invalid_argument("--top-k {}: must be at most --experts, which is {}", top_k, num_experts);
  return expert_products_of(type, num_experts, n, k, top_k);
}

Result<void> check_sizes(const std::vector<ProductSpec>& products, const ParsedFlags& flags) {
  for (const ProductSpec& product : products) {
    const double gib = product.weight_bytes() / kGiB;
    if (gib <= kMostWeightGiB) continue;
    const std::string names =
        flags.has("model-path")
            ? "--model-path"
            : fmt::format("{}--n {} --k {}",
                          of_experts(flags) ? fmt::format("--experts {} ", *flags.integer("experts")) : "",
                          *flags.integer("n"), *flags.integer("k"));
    return invalid_argument("{}: the weights of \"{}\" are {:.1f} GiB; must be at most {:.0f}", names,
                            product.label, gib, kMostWeightGiB);
  }
  return {};
}

}  // namespace

Result<int> run_tune(const ParsedFlags& flags, const Environment& environment) {
  HADAL_ASSIGN_OR_RETURN(const std::vector<ProductSpec> products, flags.has("model-path")
                                                                      ? products_of_model(flags, environment)
                                                                      : products_of_sizes(flags));
  HADAL_RETURN_IF_ERROR(check_sizes(products, flags));
  HADAL_ASSIGN_OR_RETURN(
      const std::vector<int64_t> named,
      parse_counts(flags, "m", std::vector<int64_t>(std::begin(kTunedBatches), std::end(kTunedBatches))));
  const std::vector<int64_t> batches = distinct(named);
  TuneOptions options;
  options.output_dir = flags.text_or("output-dir", ".");
  options.seconds = flags.number("time-budget").value_or(options.seconds);
  options.again = flags.has("retune");
  options.every = flags.has("exhaustive");
  options.compare_between = !flags.has("m") && !options.every;
  HADAL_RETURN_IF_ERROR(check_output_dir(options.output_dir));
  if (flags.has("dry-run")) {
    write_stdout(dry_run_text(products, batches, options));
    return kExitOk;
  }
  HADAL_ASSIGN_OR_RETURN(const std::unique_ptr<MeasurerSource> source, open_gpu_measurers());
  options.now = [] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  };
  const InterruptGuard guard;
  options.interrupted = [&] { return guard.interrupted(); };
  Progress progress("tuning");
  options.progress = [&](size_t done, size_t total, const std::string& what) {
    progress.update(done, total, what);
  };
  log_info("tuning device=\"{}\" multiprocessors={} products={} batch_sizes={} time_budget={:.0f}",
           source->device_name(), source->num_sms(), products.size(), batches.size(), options.seconds);
  auto report = tune(products, batches, *source, options);
  progress.finish();
  if (!report.ok()) return report.status();
  write_stdout(report_text(*report));
  if (guard.interrupted()) return kExitInterrupted;
  if (report->num_left > 0)
    log_warning("tuning ended early left={} hint=\"run the command again, or with a longer --time-budget\"",
                report->num_left);
  return kExitOk;
}

}  // namespace hadal::cli
