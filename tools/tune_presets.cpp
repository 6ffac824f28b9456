// Makes the files of share/kernel-configs/<card>/ that the program ships: the fastest kernels for the
// products of every published model at every split, found as `hadal tune` finds them for one model. One
// process does all of it, because opening a device and filling its memory takes longer than many of the
// searches. A run continues where the last one ended. The exit code is 0, 1 (failure), 2 (usage) or 130
// (interrupted).
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <iterator>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "model/presets.h"
#include "tools/tool.h"
#include "tune/tune_report.h"
#include "tune/tuner.h"

namespace {

using namespace hadal;

constexpr const char* kTool = "tune_presets";

struct Options {
  std::vector<std::string> presets{std::begin(kTunedPresets), std::end(kTunedPresets)};
  std::vector<int64_t> tp_sizes{std::begin(kTunedTpSizes), std::end(kTunedTpSizes)};
  std::vector<int64_t> batches{std::begin(kTunedBatches), std::end(kTunedBatches)};
  std::string share = "1/1";
  TuneOptions tune;
  bool dry_run = false;
};

// "2/8" selects every eighth product from the second on, so that eight processes can share the work.
Result<std::vector<ProductSpec>> share_of(std::vector<ProductSpec> products, const std::string& share) {
  int index = 0, count = 0, end = 0;
  if (std::sscanf(share.c_str(), "%d/%d%n", &index, &count, &end) != 2 ||
      static_cast<size_t>(end) != share.size() || index < 1 || count < index)
    return invalid_argument("--share {}: must be I/N with I from 1 to N", share);
  if (static_cast<size_t>(count) > products.size())
    return invalid_argument("--share {}: N must be at most {}, the number of products", share,
                            products.size());
  std::vector<ProductSpec> out;
  for (size_t i = static_cast<size_t>(index) - 1; i < products.size(); i += static_cast<size_t>(count))
    out.push_back(std::move(products[i]));
  return out;
}

Result<int> run(Options& options) {
  HADAL_ASSIGN_OR_RETURN(std::vector<ProductSpec> all, preset_products(options.presets, options.tp_sizes));
  HADAL_ASSIGN_OR_RETURN(const std::vector<ProductSpec> products, share_of(std::move(all), options.share));
  HADAL_RETURN_IF_ERROR(check_output_dir(options.tune.output_dir));
  if (options.dry_run) {
    fmt::print("{}", dry_run_text(products, options.batches, options.tune));
    return 0;
  }
  const auto clock = [] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  };
  const double begin = clock();
  HADAL_ASSIGN_OR_RETURN(const std::unique_ptr<MeasurerSource> source, open_gpu_measurers());
  const double opened = clock();
  options.tune.now = clock;
  options.tune.interrupted = [] { return tool::interrupted.load(); };
  options.tune.progress = [](size_t, size_t, const std::string&) {};
  HADAL_ASSIGN_OR_RETURN(const TuneReport report, tune(products, options.batches, *source, options.tune));
  fmt::print("{}{}: {} products, {:.1f} s to open the device, {:.1f} s to measure\n", report_text(report),
             source->device_name(), products.size(), opened - begin, clock() - opened);
  return tool::interrupted.load() ? tool::kInterrupted : 0;
}

int run_tool(int argc, char** argv) {
  Options options;
  CLI::App app("Finds the fastest kernels for the products of published models.", "tune_presets");
  app.add_option("--presets", options.presets, "Published models (default v2-lite v2 v3)")
      ->check(CLI::IsMember(preset_names()));
  app.add_option("--tp-size", options.tp_sizes, "GPUs that share a model (default 8 4 2 1)")
      ->check(CLI::Range(1, 1024));
  auto* m = app.add_option("--m", options.batches, "Batch sizes, in tokens (default: those of hadal tune)")
                ->check(CLI::Range(1, 1 << 16));
  app.add_option("--share", options.share, "I/N: every Nth product from the Ith on (default 1/1)");
  app.add_option("--output-dir", options.tune.output_dir, "Where the files go")->required();
  app.add_option("--time-budget", options.tune.seconds, "Seconds for the whole run (default 280)")
      ->check(tool::at_least(1));
  app.add_flag("--exhaustive", options.tune.every, "Measure every choice");
  app.add_flag("--retune", options.tune.again, "Measure again what the files already have");
  app.add_flag("--dry-run", options.dry_run, "Print the products and the expected time");
  int exit_code = 0;
  if (!tool::parse(app, argc, argv, exit_code)) return exit_code;
  options.batches = distinct(options.batches);
  options.tune.compare_between = m->count() == 0 && !options.tune.every;
  tool::catch_signals();
  const Result<int> code = run(options);
  if (code.ok()) return *code;
  const int failure = tool::fail(kTool, code.status());
  return code.status().code == StatusCode::kInvalidArgument ? tool::kUsage : failure;
}

}  // namespace

int main(int argc, char** argv) {
  return hadal::tool::run_main(kTool, argc, argv, run_tool);
}
