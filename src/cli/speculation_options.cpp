#include "cli/speculation_options.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "base/log.h"

namespace hadal::cli {

int64_t speculation_width(const ParsedFlags& flags) {
  if (!flags.has("speculative-algorithm")) return 0;
  const int64_t steps = flags.integer("speculative-num-steps").value_or(kDefaultSpeculationSteps);
  if (flags.integer("speculative-eagle-topk").value_or(1) == 1) return steps + 1;
  return std::min(steps + 1, flags.integer("speculative-num-draft-tokens").value_or(steps + 1));
}

Result<void> check_speculation_flags(const ParsedFlags& flags, const ModelOptions& options) {
  if (!flags.has("speculative-algorithm")) {
    for (const char* name : {"speculative-num-steps", "speculative-eagle-topk",
                             "speculative-num-draft-tokens", "speculative-draft-model-path"}) {
      if (flags.has(name))
        return invalid_argument("--{}: needs --speculative-algorithm, without which nothing speculates",
                                name);
    }
    return {};
  }
  if (options.device == DeviceType::kCuda) {
    return unsupported(
        "--speculative-algorithm: speculation runs only on the CPU so far; leave the flag out, because the "
        "tokens are the same without it, or use --device cpu");
  }
  if (const auto topk = flags.integer("speculative-eagle-topk"); topk.value_or(1) > 1) {
    log_warning("draft trees are not built, but chains topk={} tokens_a_step={}", *topk,
                speculation_width(flags));
  }
  if (const auto path = flags.text("speculative-draft-model-path"); path && *path != options.model_path) {
    std::error_code ignored;
    if (std::filesystem::equivalent(*path, options.model_path, ignored)) return {};
    if (std::filesystem::is_directory(*path, ignored)) {
      return unsupported(
          "--speculative-draft-model-path {}: this version reads the NextN layer from the model's own "
          "checkpoint; leave the flag out",
          *path);
    }
    if (std::filesystem::path(*path).is_absolute()) {
      return invalid_argument("--speculative-draft-model-path {}: no such directory", *path);
    }
    log_warning("draft model not read id={} reason=\"the checkpoint's own NextN layer is used\"", *path);
  }
  return {};
}

Result<void> check_has_nextn(const ModelOptions& options, const ModelConfig& config) {
  if (!options.load_nextn || config.num_nextn_predict_layers > 0) return {};
  return invalid_argument("{}: {} has no NextN layer (num_nextn_predict_layers is 0)", options.nextn_flag,
                          options.model_path);
}

}  // namespace hadal::cli
