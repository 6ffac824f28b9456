// Writes a Hugging Face checkpoint directory of any supported config with seeded random weights whose routing
// spreads evenly (src/model/random_weights.h). The exit code is 0, 1 (failure), 2 (usage) or 130
// (interrupted).
#include <fmt/format.h>

#include <cstdio>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "base/mapped_file.h"
#include "model/presets.h"
#include "model/quantization.h"
#include "model/random_checkpoint.h"
#include "tools/tool.h"

namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kTool = "make_checkpoint";

struct Options {
  std::string config_path;
  std::string preset;
  std::string output;
  std::string override_json;
  std::string quantization = "config";
  std::string checksum;
  uint64_t seed = 0;
  int64_t max_shard_bytes = 5'000'000'000;
  double gate_bias_amplitude = -1.0;
  bool no_nextn_copies = false;
  int threads = 0;
};

// Returns the text of the config.json to write: the file or preset with the overrides and the quantisation.
hadal::Result<std::string> make_config(const Options& options) {
  std::string text;
  if (options.preset.empty()) {
    HADAL_ASSIGN_OR_RETURN(text, hadal::read_text_file(options.config_path));
  } else {
    HADAL_ASSIGN_OR_RETURN(text, hadal::preset_config_json(options.preset));
  }
  const std::string source = options.preset.empty() ? options.config_path : "preset " + options.preset;
  Json config = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!config.is_object()) return hadal::data_loss("{} is not a JSON object", source);
  if (!options.override_json.empty()) {
    const Json changes = Json::parse(options.override_json, nullptr, false);
    if (!changes.is_object())
      return hadal::invalid_argument("--override is {}; allowed: a JSON object", options.override_json);
    for (const auto& [key, value] : changes.items()) config[key] = value;
  }
  if (options.quantization != "config") {
    const hadal::PublishedFormat* format = hadal::find_published_format(options.quantization);
    // A config with fp8 may have more fields than the format defines, such as scale_fmt.
    const Json stated = config.value("quantization_config", Json::object());
    const bool keeps = options.quantization == "fp8" && stated.is_object() &&
                       stated.contains("weight_block_size") && stated.value("quant_method", Json()) == "fp8";
    if (!keeps) config.erase("quantization_config");
    if (!keeps && format != nullptr)
      config["quantization_config"] = Json::parse(hadal::quantization_config_json(*format, {}));
  }
  return config.dump(2) + "\n";
}

hadal::Result<hadal::RandomCheckpointSummary> run(const Options& options) {
  HADAL_ASSIGN_OR_RETURN(const std::string text, make_config(options));
  HADAL_ASSIGN_OR_RETURN(const hadal::ModelConfig config, hadal::parse_model_config(text, "config.json"));
  hadal::RandomCheckpointOptions checkpoint;
  checkpoint.weights = hadal::RandomWeightOptions::for_config(config, options.seed);
  if (options.gate_bias_amplitude >= 0.0)
    checkpoint.weights.gate_bias_amplitude = options.gate_bias_amplitude;
  checkpoint.max_shard_bytes = options.max_shard_bytes;
  checkpoint.nextn_copies = !options.no_nextn_copies;
  checkpoint.cancelled = &hadal::tool::interrupted;
  if (!options.checksum.empty()) {
    HADAL_ASSIGN_OR_RETURN(const uint64_t sum, hadal::random_checkpoint_checksum(config, checkpoint.weights));
    if (fmt::format("{:016x}", sum) != options.checksum)
      return hadal::data_loss("--checksum is {}, but the weights have {:016x}", options.checksum, sum);
  }
  checkpoint.progress = hadal::tool::writing_progress(options.output);
  hadal::ThreadPool pool(options.threads);
  return hadal::write_random_checkpoint(options.output, text, config, checkpoint, pool);
}

int run_tool(int argc, char** argv) {
  Options options;
  CLI::App app("Writes a Hugging Face checkpoint directory of random weights.", "make_checkpoint");
  auto* config = app.add_option("--config", options.config_path, "A config.json");
  auto* preset = app.add_option("--preset", options.preset, "A published model")
                     ->check(CLI::IsMember(hadal::preset_names()));
  config->excludes(preset);
  app.add_option("--output", options.output, "The directory to write; new or without weights")->required();
  app.add_option("--seed", options.seed, "Seed of all weights (default 0)");
  app.add_option("--override", options.override_json, "JSON object whose fields replace the config's");
  std::vector<std::string> formats = {"config", "none"};
  for (const hadal::PublishedFormat& format : hadal::published_formats()) formats.emplace_back(format.name);
  app.add_option("--quantization", options.quantization,
                 "Format of the linear layers (fp8: 128x128 blocks; none; config: as in the config)")
      ->check(CLI::IsMember(formats));
  app.add_option("--max-shard-bytes", options.max_shard_bytes,
                 "Most bytes of tensor data per shard (default 5000000000)")
      ->check(hadal::tool::at_least(1));
  app.add_option("--gate-bias-amplitude", options.gate_bias_amplitude,
                 "Amplitude of e_score_correction_bias (default 0.01, which keeps routing even)")
      ->check(hadal::tool::at_least(0));
  app.add_option("--checksum", options.checksum,
                 "Fail unless the weights have this checksum (16 hex digits)");
  app.add_flag("--no-nextn-copies", options.no_nextn_copies,
               "Leave out the NextN layer's copies of embedding and head");
  app.add_option("--threads", options.threads, "Threads (default 0: one per core)")
      ->check(CLI::Range(0, 256));
  int exit_code = 0;
  if (!hadal::tool::parse(app, argc, argv, exit_code)) return exit_code;
  if (options.config_path.empty() && options.preset.empty()) {
    fmt::print(stderr, "{}: one of --config and --preset is required\n", kTool);
    return hadal::tool::kUsage;
  }
  hadal::tool::catch_signals();
  const auto summary = run(options);
  if (!summary.ok()) return hadal::tool::fail(kTool, summary.status());
  fmt::print("wrote {}: tensors={} shards={} bytes={}\n", options.output, summary->num_tensors,
             summary->num_shards, summary->num_bytes);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return hadal::tool::run_main(kTool, argc, argv, run_tool);
}
