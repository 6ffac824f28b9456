#include "cli/speculation_options.h"

#include <algorithm>

#include "base/log.h"
#include "cli/flags/flag_values.h"
#include "engine/engine.h"

namespace hadal::cli {

namespace {

// Returns the shape of the tree that the flags ask for.
DraftShape wanted_shape(const ParsedFlags& flags) {
  return {.num_steps = flags.integer("speculative-num-steps").value_or(kDefaultSpeculationSteps),
          .topk = flags.integer("speculative-eagle-topk").value_or(1)};
}

}  // namespace

DraftShape draft_shape(const ParsedFlags& flags, DeviceType device) {
  DraftShape shape = wanted_shape(flags);
  if (device == DeviceType::kCuda) shape.topk = 1;
  return shape;
}

int64_t speculation_width(const ParsedFlags& flags, DeviceType device) {
  if (!flags.has("speculative-algorithm")) return 0;
  const DraftShape wanted = wanted_shape(flags);
  const int64_t chain = wanted.num_steps + 1;
  if (wanted.topk == 1) return chain;
  const int64_t num_nodes = flags.integer("speculative-num-draft-tokens").value_or(chain);
  return device == DeviceType::kCuda ? std::min(chain, num_nodes) : num_nodes;
}

Result<std::vector<double>> simulated_acceptance(const ParsedFlags& flags, DeviceType device) {
  std::vector<double> chances;
  const auto text = flags.text("speculative-simulate-acceptance");
  if (!text) return chances;
  const std::string field = fmt::format("--speculative-simulate-acceptance {}:", *text);
  for (const std::string_view part : split(*text, ",")) {
    const std::optional<double> chance = number_from<double>(part);
    if (!chance) {
      return invalid_argument("{} {} is not a number; allowed: numbers in [0, 1], separated by commas", field,
                              part);
    }
    chances.push_back(*chance);
  }
  if (chances.empty()) {
    return invalid_argument("{} it is empty; allowed: numbers in [0, 1], separated by commas", field);
  }
  HADAL_RETURN_IF_ERROR(check_simulated_acceptance(chances, speculation_width(flags, device),
                                                   draft_shape(flags, device), field));
  return chances;
}

Result<void> check_speculation_flags(const ParsedFlags& flags, DeviceType device) {
  for (const char* name : {"speculative-draft-load-format", "speculative-draft-model-quantization"}) {
    if (flags.has(name) && !flags.has("speculative-draft-model-path")) {
      return invalid_argument(
          "--{}: needs --speculative-draft-model-path; the model's own NextN layer is loaded as the model is",
          name);
    }
  }
  if (!flags.has("speculative-algorithm")) {
    for (const char* name :
         {"speculative-num-steps", "speculative-eagle-topk", "speculative-num-draft-tokens",
          "speculative-fixed", "speculative-simulate-acceptance"}) {
      if (flags.has(name))
        return invalid_argument("--{}: needs --speculative-algorithm, without which nothing speculates",
                                name);
    }
    if (!flags.has("speculative-draft-model-path") || flags.has("nextn")) return {};
    return invalid_argument(
        "--speculative-draft-model-path: needs {}, without which no NextN layer is loaded",
        flags.command() == Command::kLogits ? "--nextn" : "--speculative-algorithm");
  }
  HADAL_RETURN_IF_ERROR(simulated_acceptance(flags, device));
  const DraftShape wanted = wanted_shape(flags);
  const int64_t width = speculation_width(flags, device);
  if (width > wanted.most_nodes()) {
    return invalid_argument(
        "--speculative-num-draft-tokens {}: allowed: at most {}, because --speculative-num-steps {} with "
        "--speculative-eagle-topk {} gives no larger tree",
        width, wanted.most_nodes(), wanted.num_steps, wanted.topk);
  }
  if (draft_shape(flags, device).topk != wanted.topk) {
    log_warning("draft trees are not supported on GPUs, so drafts are a chain topk={} tokens_per_step={}",
                wanted.topk, width);
  }
  return {};
}

Result<void> check_has_nextn(const ModelOptions& options, const ModelConfig& config) {
  if (!options.load_nextn || config.num_nextn_predict_layers > 0) return {};
  return invalid_argument("{}: {} has no NextN layer (num_nextn_predict_layers is 0)", options.nextn_flag,
                          options.model_path);
}

}  // namespace hadal::cli
