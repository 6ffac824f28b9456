// Rewrites a Hugging Face checkpoint directory with its linears in another format
// (src/model/quantized_checkpoint.h). The exit code is 0, 1 (failure), 2 (usage) or 130 (interrupted).
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdio>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "model/config.h"
#include "model/quantized_checkpoint.h"
#include "tools/tool.h"

namespace {

constexpr const char* kTool = "quantize_checkpoint";
constexpr const char* kUnquantised = "bfloat16";

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

// Checks that each entry of --ignore is plausible: no module's name contains a comma, but a pattern may
// contain one.
hadal::Result<void> check_ignored(const std::vector<std::string>& entries) {
  for (const std::string& entry : entries) {
    if (!entry.starts_with("re:") && entry.find(',') != entry.npos)
      return hadal::invalid_argument(
          "--ignore {}: a name must not contain a comma; separate several with spaces: --ignore A B", entry);
  }
  const auto list = hadal::ModuleList::parse(entries);
  if (!list.ok()) return hadal::invalid_argument("--ignore {}", list.status().message);
  return {};
}

hadal::Result<hadal::QuantizedCheckpointSummary> run(const Options& options) {
  hadal::QuantizedCheckpointOptions checkpoint;
  checkpoint.format = hadal::find_published_format(options.format);
  checkpoint.unquantised = options.ignore;
  checkpoint.max_shard_bytes = options.max_shard_bytes;
  checkpoint.cancelled = &hadal::tool::interrupted;
  checkpoint.progress = hadal::tool::writing_progress(options.output);
  hadal::ThreadPool pool(options.threads);
  return hadal::write_quantized_checkpoint(options.input, options.output, checkpoint, pool);
}

int run_tool(int argc, char** argv) {
  Options options;
  CLI::App app("Rewrites a checkpoint directory with its linear layers in another format.",
               "quantize_checkpoint");
  app.add_option("--input", options.input, "A checkpoint directory in 16 bits or in any format below")
      ->required();
  app.add_option("--output", options.output, "The directory to write; new or without weights")->required();
  app.add_option("--format", options.format, "Format of the written linear layers")
      ->required()
      ->check(CLI::IsMember(format_names()));
  app.add_option(
      "--ignore", options.ignore,
      "Linear layers to leave in 16 bits: names, parts of names in whole components, or re:PATTERN");
  app.add_option("--max-shard-bytes", options.max_shard_bytes,
                 "Most bytes of tensor data per shard (default 5000000000)")
      ->check(hadal::tool::at_least(1));
  app.add_option("--threads", options.threads, "Threads (default 0: one per core)")
      ->check(CLI::Range(0, 256));
  int exit_code = 0;
  if (!hadal::tool::parse(app, argc, argv, exit_code)) return exit_code;
  if (options.format == kUnquantised && !options.ignore.empty()) {
    fmt::print(stderr, "{}: --ignore has no meaning with --format {}\n", kTool, kUnquantised);
    return hadal::tool::kUsage;
  }
  if (const auto checked = check_ignored(options.ignore); !checked.ok()) {
    hadal::tool::fail(kTool, checked.status());
    return hadal::tool::kUsage;
  }
  hadal::tool::catch_signals();
  const auto summary = run(options);
  if (!summary.ok()) return hadal::tool::fail(kTool, summary.status());
  for (const std::string& entry : summary->without_effect) {
    fmt::print(stderr, "{}: warning: --ignore {} matches no linear layer of the model\n", kTool, entry);
  }
  if (summary->num_quantised == 0 && options.format != kUnquantised) {
    fmt::print(stderr, "{}: warning: no linear layer was quantised{}\n", kTool,
               options.ignore.empty() ? "" : ", because --ignore matches all of them");
  }
  if (!summary->kept_files.empty()) {
    fmt::print(stderr, "{}: already in {} and not changed: {}\n", kTool, options.output,
               fmt::join(summary->kept_files, ", "));
  }
  fmt::print("wrote {}: tensors={} quantised={} shards={} bytes={}\n", options.output, summary->num_tensors,
             summary->num_quantised, summary->num_shards, summary->num_bytes);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return hadal::tool::run_main(kTool, argc, argv, run_tool);
}
