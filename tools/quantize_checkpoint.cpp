// Rewrites a Hugging Face checkpoint directory with its linears in another format
// (src/model/quantized_checkpoint.h). Exit codes: 0, 1 failure, 2 usage, 130 interrupted.
#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "model/quantized_checkpoint.h"

namespace {

constexpr const char* kUnquantised = "bfloat16";

std::atomic<bool> interrupted{false};  // set by the signal handler: lock-free on every platform we build for
static_assert(std::atomic<bool>::is_always_lock_free);

struct Options {
  std::string input;
  std::string output;
  std::string format;
  std::vector<std::string> ignore;
  int64_t max_shard_bytes = 5'000'000'000;
  int threads = 0;
};

std::vector<std::string> format_names() {
  std::vector<std::string> names;
  for (const hadal::PublishedFormat& format : hadal::published_formats()) names.emplace_back(format.name);
  names.emplace_back(kUnquantised);
  return names;
}

hadal::Result<hadal::QuantizedCheckpointSummary> run(const Options& options) {
  hadal::QuantizedCheckpointOptions checkpoint;
  checkpoint.format = hadal::find_published_format(options.format);
  checkpoint.unquantised = options.ignore;
  checkpoint.max_shard_bytes = options.max_shard_bytes;
  checkpoint.cancelled = &interrupted;
  int shown_percent = -1;
  if (isatty(STDERR_FILENO) != 0) {
    checkpoint.progress = [&](int64_t done, int64_t total) {
      const int percent = static_cast<int>(100.0 * static_cast<double>(done) / static_cast<double>(total));
      if (percent == shown_percent) return;
      shown_percent = percent;
      fmt::print(stderr, "\rwriting {} {:3}% of {:.2f} GiB{}", options.output, percent,
                 static_cast<double>(total) / 0x1p30, done == total ? "\n" : "");
    };
  }
  hadal::ThreadPool pool(options.threads);
  return hadal::write_quantized_checkpoint(options.input, options.output, checkpoint, pool);
}

int run_tool(int argc, char** argv) {
  Options options;
  CLI::App app("Rewrites a checkpoint directory with its linear layers in another format.",
               "quantize_checkpoint");
  app.add_option("--input", options.input, "A checkpoint directory, of 16 bits or of any format below")
      ->required();
  app.add_option("--output", options.output, "The directory to write; new or without weights")->required();
  app.add_option("--format", options.format, "What the linear layers become")
      ->required()
      ->check(CLI::IsMember(format_names()));
  app.add_option(
      "--ignore", options.ignore,
      "Linear layers to leave in 16 bits: names, parts of names in whole components, or re:PATTERN");
  app.add_option("--max-shard-bytes", options.max_shard_bytes,
                 "Largest data of one shard (default 5000000000)")
      ->check(CLI::PositiveNumber);
  app.add_option("--threads", options.threads, "Default 0: one per core")->check(CLI::Range(0, 256));
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  if (options.format == kUnquantised && !options.ignore.empty()) {
    fmt::print(stderr, "quantize_checkpoint: --ignore has no meaning with --format {}\n", kUnquantised);
    return 2;
  }
  std::signal(SIGINT, [](int) { interrupted.store(true); });
  std::signal(SIGTERM, [](int) { interrupted.store(true); });
  const auto summary = run(options);
  if (!summary.ok()) {
    fmt::print(stderr, "quantize_checkpoint: {}\n", summary.status().message);
    return summary.status().code == hadal::StatusCode::kCancelled ? 130 : 1;
  }
  fmt::print("wrote {}: tensors={} quantised={} shards={} bytes={}\n", options.output, summary->num_tensors,
             summary->num_quantised, summary->num_shards, summary->num_bytes);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run_tool(argc, argv);
  } catch (const std::exception& error) {  // what was half written is gone by now
    std::fprintf(stderr, "quantize_checkpoint: %s\n", error.what());
    return 1;
  }
}
